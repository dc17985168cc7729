"""What every command prints with `--json` is described by docs/json.md."""

from pathlib import Path
from typing import Any

import click
import pytest
from json_outputs import check_output, command_of, described

from pallasc.cli.main import COMMANDS, root

LINES = """\
list SPEC
build SPEC STORE --reproduce 1
inspect SPEC STORE -k dtype=f32 --lines --resources
diff SPEC STORE -k dtype=f32 -k dtype=bf16 --depth sass
check SPEC STORE -k dtype=f32 --level interpreter
run SPEC STORE -k dtype=f32
bench SPEC STORE -k dtype=f32
tune show SPEC
lock SPEC STORE --update --lock pallasc.lock
bundle create SPEC STORE -o FILE
list FILE
bundle create FILE -o merged.pallasc
bundle export FILE --c -o sources
inspect FILE -k dtype=f32
bundle keygen key
bundle sign FILE --key key
bundle verify FILE
cache stats STORE
cache push SPEC STORE REMOTE
cache pull STORE REMOTE
cache stats STORE REMOTE
cache prune REMOTE --age 1d
cache verify STORE
cache export packed STORE
cache import packed STORE
cache prune STORE --size 0
targets
doctor
"""
ELSEWHERE = {"tune plan", "tune run", "tune pick", "warm", "warm --verify"}
"""Outputs that the tests of these commands compare."""


def test_every_output_is_as_described(
    gpu: Any, run: Any, own: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec, store = own
    words = {
        "SPEC": [str(spec)],
        "STORE": ["--store", str(store)],
        "FILE": ["kernels.pallasc"],
        "REMOTE": ["--remote", f"file://{tmp_path}/remote"],
    }
    compared = set()
    for line in LINES.splitlines():
        arguments = [each for word in line.split() for each in words.get(word, [word])]
        result = run(*arguments, "--json")
        assert result.out, f"{line}: {result.err}"
        compared.add(check_output(arguments, result.out))
    assert compared | ELSEWHERE == described().keys()


def test_the_commands_with_json_are_described() -> None:
    found = set()
    for name in COMMANDS:
        command = root.get_command(click.Context(root), name)
        own = getattr(command, "commands", {"": command})
        for inner, each in own.items():
            if any("--json" in option.opts for option in each.params):
                found.add(f"{name} {inner}".strip())
    assert found == set(map(command_of, described()))
