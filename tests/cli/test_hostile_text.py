"""Every command is fed the same hostile names: none of them reaches a terminal or a CI service."""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

HOSTILE = (
    "\x1b[2J\x1b]0;title\x07\r\n::error file=x::owned\n##[add-mask]x "
    "\u202egnp.exe\u2066 \x9b31m\u2028::debug::y\u200f##vso[task]z"
)
"""A screen cleared, a title set, commands of three CI services, letters shown in reverse."""

KERNELS = f"""
import warnings
from pallasc.specs.library import elementwise

HOSTILE = {HOSTILE!r}


def add(x, y, *, label):
    print(label)
    warnings.warn(HOSTILE, stacklevel=1)
    return elementwise.add(x, y, block_size=1024)


def fails(x, *, label):
    print(label)
    raise ValueError(HOSTILE + label)
"""
NAME = HOSTILE.replace("/", "_")
"""As what a file may be called."""


def _kernel(name: str, arrays: int) -> dict[str, Any]:
    return {
        "name": name,
        "entry": f"kernels.py:{name}",
        "args": ["f32[1024]"] * arrays,
        "static": {"label": "{label}"},
        "matrix": {"label": [HOSTILE]},
        "budget": {"registers": 255},
    }


@dataclass(frozen=True, slots=True)
class Fed:
    """Where hostile things lie: specs, one that fails, a store and a bundle of the first."""

    good: Path
    bad: Path
    store: Path
    bundle: Path
    folder: Path


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Fed:
    """Build once; commands are given their own copies of nothing, so they must not write here."""
    from pallasc.cli.main import main

    folder = tmp_path_factory.mktemp("fed") / NAME
    folder.mkdir()
    good, bad = folder / f"good{NAME}.yaml", folder / f"bad{NAME}.yaml"
    for spec, kernel in ((good, _kernel("add", 2)), (bad, _kernel("fails", 1))):
        whole = {"schema": 1, "targets": ["sm_90a"], "kernels": [kernel]}
        spec.write_text(yaml.safe_dump(whole))
    (folder / "kernels.py").write_text(KERNELS)
    store, bundle = folder / f"store{NAME}", folder / f"k{NAME}.pallasc"
    assert main(["bundle", "create", str(good), "-o", str(bundle), "--store", str(store)]) == 0
    return Fed(good, bad, store, bundle, folder)


COMMANDS = [
    "list {good}",
    "list {folder}/nothing{name}.yaml",
    "build {good}",
    "build {good} --frozen",
    "build {good} --json",
    "build {bad} --explain --dry-run",
    "build {good} --target {hostile}",
    "lock {good} --lock {out}/x{name}.lock --update",
    "inspect {good} --plan --ptx --sass --resources --debug-output",
    "inspect {good} --plan --output {out}/shown{name}/",
    "bundle create {good} -o {out}/k{name}.pallasc",
    "list {bundle}",
    "list {bundle} --target {hostile}",
    "inspect {bundle}",
    "inspect {bundle} -k {hostile}",
    "bundle verify {bundle}",
    "bundle verify {bundle} --key {hostile}",
    "inspect {bundle} -o {out}/x{name}/",
    "bundle create {bundle} -o {out}/m{name}.pallasc",
    "bundle keygen {out}/key{name} --comment {hostile}",
    "bundle sign {bundle} --key {out}/none{name}",
    "cache stats",
    "cache verify",
    "cache prune --dry-run --keep {hostile}",
    "cache prune --all --dry-run",
    "run {good}",
    "bench {good} --repeats 1 --warmup 0",
    "init {out}/i{name}",
    "init {folder}",
    "{hostile}",
    "build --{hostile}",
    "--traceback build {bad} --junit {out}/report{name}.xml",
    "--traceback list {folder}/nothing{name}.yaml",
]


@pytest.mark.parametrize("line", COMMANDS)
def test_nothing_that_a_terminal_or_a_ci_service_obeys_is_printed(
    line: str, fed: Fed, run: Any, process: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALLASC_CACHE_DIR", str(fed.store))
    values = {
        "good": fed.good, "bad": fed.bad, "bundle": fed.bundle, "folder": fed.folder,
        "out": tmp_path, "name": NAME, "hostile": HOSTILE,
    }  # fmt: skip
    if line.startswith(("run", "bench")):
        run = process  # cuda-bindings remembers that there is no driver, and later tests need one
    result = run(*(word.format(**values) for word in shlex.split(line)))
    assert result.out or result.err, "a command that prints nothing shows nothing"
    for text in (result.out, result.err):
        check(text)
    if "--json" in line:
        assert json.loads(result.out)["variants"][0]["params"]["label"] == HOSTILE


def check(text: str) -> None:
    """Check that text only shows."""
    assert re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u2066\u200f\u2028]", text) is None
    assert [line for line in text.splitlines() if line.lstrip().startswith("::")] == []
    assert "##[" not in text
    assert "##vso[" not in text


def test_annotations_are_the_only_workflow_commands(
    fed: Fed, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALLASC_CACHE_DIR", str(fed.store))
    result = run("build", fed.bad, "--annotations", "github", "--json")
    check(result.out)
    assert json.loads(result.out)["variants"][0]["params"]["label"] == HOSTILE
    commands = [line for line in result.err.splitlines() if line.startswith("::")]
    assert [line.partition(" ")[0] for line in commands] == ["::error"]
    others = "\n".join(line for line in result.err.splitlines() if line not in commands)
    check(others)
    assert "##[" not in commands[0]


def test_every_command_prints_through_one_function() -> None:
    cli = Path(__file__).parents[2] / "cli"
    raw = re.compile(r"click\.s?echo\(|(?<![\w.])print\(|std(out|err)\.write\(")
    found = {path.name for path in cli.rglob("*.py") if raw.search(path.read_text("utf-8"))}
    assert found == {"text.py"}
