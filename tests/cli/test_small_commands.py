"""`pallasc list`, `targets`, `init`, shell completion, and `--quiet`."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import captured

from pallasc.specs.gpus import DEFAULT_MODELS, MODELS

ENTRY = "pallasc.specs.library.elementwise:add"


# ---- list


@pytest.fixture
def listed(run: Any, spec: Path, tmp_path: Path) -> Any:
    """Return a function that lists the spec."""
    return lambda *arguments: run("list", spec, "--store", tmp_path / "store", *arguments)


def test_list_prints_a_table(listed: Any) -> None:
    result = listed()
    arrays = "x: {0}[1024, 4096], y: {0}[1024, 4096]"
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        "VARIANT                          ARCH    ENTRY                                  ARRAYS\n"
        f"add[m=1024,dtype=f32]@h100-sxm   sm_90a  {ENTRY}  {arrays.format('f32')}\n"
        f"add[m=1024,dtype=bf16]@h100-sxm  sm_90a  {ENTRY}  {arrays.format('bf16')}\n"
    )
    result = listed("--target", "b200", "--target", "sm_80", "-k", "dtype=f*")
    assert [line.split()[0] for line in result.out.splitlines()[1:]] == [
        "add[m=1024,dtype=f32]@b200",
        "add[m=1024,dtype=f32]@a100-sxm",
    ]


def test_list_prints_json(listed: Any, spec: Path) -> None:
    arrays = {"x": "f32[1024, 4096]", "y": "f32[1024, 4096]"}
    assert json.loads(listed("--json", "-k", "dtype=f32").out) == {
        "schema": 1,
        "variants": [
            {
                "id": "add[m=1024,dtype=f32]@h100-sxm",
                "name": "add",
                "params": {"m": 1024, "dtype": "f32"},
                "target": "h100-sxm",
                "arch": "sm_90a",
                "entry": ENTRY,
                "args": arrays,
                "arrays": arrays,
                "static": {"block_size": 2048},
                "mesh": {},
                "reference": None,
                "file": str(spec),
                "line": 4,
            }
        ],
    }


def test_selections_that_mean_nothing_are_mistakes(listed: Any) -> None:
    for arguments, message in (
        (
            ("-k", "dtype=bf17"),
            "-k 'dtype=bf17' selects none of 2 variants.\n  Did you mean 'dtype=bf16'? "
            "Values of dtype: bf16, f32.",
        ),
        (("--target", "sm_90"), "unknown target 'sm_90'.\n  Did you mean 'sm_90a'?"),
        (
            ("--target", "sm_90a,b200"),
            "unknown target 'sm_90a,b200'.\n"
            "  Write --target sm_90a --target b200, or [sm_90a, b200] in a spec.",
        ),
    ):
        result = listed(*arguments)
        assert (result.code, result.out, result.err) == (2, "", f"error: {message}\n")


# ---- targets


MODEL_SPEC = """\
schema: 1
models:
  small-h100: {like: h100-sxm, sm_count: 7}
targets: [small-h100]
kernels:
  - {name: add, entry: "pallasc.specs.library.elementwise:add", args: ["f32[2048]", "f32[2048]"]}
"""


def test_targets_are_all_models_the_default_ones_marked_and_those_of_a_spec(
    run: Any, tmp_path: Path
) -> None:
    result = run("targets")
    head, *lines = result.out.splitlines()
    assert (result.code, result.err) == (0, "")
    assert head == "MODEL          ARCH      SMS  SMEM PER BLOCK       L2   MEMORY  DEVICE"
    line = "h100-sxm       sm_90a*   132         232,448   50 MiB   79 GiB  NVIDIA H100"
    assert any(each.startswith(line) for each in lines)
    rows = [each.split() for each in lines]
    assert [row[0] for row in rows] == list(MODELS)
    assert {row[1][:-1]: row[0] for row in rows if row[1].endswith("*")} == DEFAULT_MODELS
    spec = tmp_path / "kernels.yaml"
    spec.write_text(MODEL_SPEC)
    result = run("targets", spec, "--store", tmp_path / "store")
    assert result.out.splitlines()[-1].split()[:3] == ["small-h100", "sm_90a", "7"]
    data = json.loads(run("targets", "--json").out)
    assert (data["schema"], data["architectures"]) == (1, dict(DEFAULT_MODELS))
    assert [model["name"] for model in data["models"]] == list(MODELS)
    assert data["models"][0]["smem_optin_bytes"] == 166912


# ---- init


def test_init_writes_two_files_that_build_and_commands_that_can_be_pasted(
    run: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "my kernels; rm x"
    spec = folder / "kernels.yaml"
    result = run("init", folder)
    assert (result.code, result.out) == (0, "")
    assert result.err == (
        f"wrote {spec}\n"
        f"wrote {folder / 'kernels.py'}\n"
        "Now try:\n"
        f"  pallasc list {shlex.quote(str(spec))}\n"
        f"  pallasc build {shlex.quote(str(spec))}\n"
        f'  pallasc inspect {shlex.quote(str(spec))} --plan -k "n=4096 and dtype=f32"\n'
        f'  pallasc check {shlex.quote(str(spec))} -k "n=4096 and dtype=f32"\n'
    )
    result = run("build", spec, "--store", tmp_path / "store")
    assert (result.code, result.out) == (0, "")
    assert result.err.splitlines()[-1].endswith(": 4 compiled")


def test_init_writes_into_this_folder_by_default_and_overwrites_nothing(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("init").err.splitlines()[:2] == ["wrote kernels.yaml", "wrote kernels.py"]
    (tmp_path / "kernels.yaml").unlink()
    before = (tmp_path / "kernels.py").read_text()
    result = run("init", tmp_path)
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        f"error: {tmp_path}/kernels.py already exists.\n  Move it, or choose another folder.\n"
    )
    found = [(path.name, path.read_text()) for path in tmp_path.iterdir()]
    assert found == [("kernels.py", before)]


# ---- completion


# Prints what a shell gets, and then the packages that this took.
PROGRAM = """
import sys
from pallasc.cli.main import main
try:
    main()
finally:
    print({name for name in ("jax", "numpy", "yaml", "google") if name in sys.modules} or "light",
          file=sys.stderr)
"""


def _complete(*words: str, instruction: str = "bash_complete") -> tuple[str, str]:
    environment = {
        **os.environ,
        "_PALLASC_COMPLETE": instruction,
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    command = [sys.executable, "-P", "-c", PROGRAM]
    done = captured(command, env=environment)
    return done.stdout, done.stderr


def test_a_shell_gets_the_words_without_jax_and_a_script_that_it_can_read(tmp_path: Path) -> None:
    words, loaded = _complete("pallasc", "build", "spec.yaml", "--target", "h20")
    assert (words, "jax" in loaded) == ("plain,h200\n", False)
    assert _complete("pallasc", "bu")[0] == "plain,build\nplain,bundle\n"
    if shutil.which("bash"):
        script = tmp_path / "script"
        script.write_text(_complete("pallasc", instruction="bash_source")[0])
        assert "pallasc" in script.read_text()
        subprocess.run(["bash", "-n", script], check=True)


# ---- --quiet


@pytest.mark.parametrize(
    "command",
    [
        "build --shard 1/2",
        "check --level artifact",
        "lock --update",
        "bundle create -o kernels.pallasc",
    ],
)
def test_a_quiet_run_in_which_nothing_fails_prints_nothing(
    command: str, run: Any, built: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*command.split(), *built.arguments, "-q")
    assert (result.code, result.out, result.err) == (0, "", "")


def test_a_quiet_run_prints_what_was_asked_for_and_what_went_wrong(
    run: Any, built: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("build", *built.arguments, "--quiet", "--json")
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out)["totals"]["hit"] == 2
    run("lock", *built.arguments, "--update", "-q")
    result = run("build", *built.arguments, "-q", "--frozen", "--target", "b200")
    assert (result.code, "hit" in result.err) == (3, False)
    assert "add[m=1024,dtype=f32]@b200" in result.err
    assert result.err.splitlines()[-1].startswith("2 variants in ")
    lock = Path("pallasc.lock")
    lock.write_text("".join(lock.read_text().splitlines(keepends=True)[:-1]))
    result = run("lock", *built.arguments, "-q")
    assert (result.code, result.out.count("\n")) == (3, 1)
    assert result.err.startswith("pallasc.lock is not current: ")
