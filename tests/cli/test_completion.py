"""What a shell completes: targets, kernels, parameters and values; without JAX, in no time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pallasc.cli.arguments.completion import complete_expression, complete_target

RunCommand = Callable[..., Any]

SPEC = """\
schema: 1
targets: [mine, h200]
models: {mine: {arch: sm_90a, sm_count: 78}}
kernels:
  - name: matmul
    entry: json:loads
    args: {a: "f32[{m}]"}
    static: {layout: "{layout}"}
    matrix: {m: [1024, 4096], layout: [row major, column]}
  - name: softmax
    entry: json:loads
    args: {}
    targets: [b200]
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.yaml"
    path.write_text(SPEC)
    return path


@pytest.mark.parametrize(
    ("beginning", "words"),
    [
        ("", ["layout=", "m=", "matmul", "softmax", "target="]),
        ("ma", ["matmul"]),
        ("m", ["m=", "matmul"]),
        ("m=", ["m=1024", "m=4096"]),
        ("m=4", ["m=4096"]),
        ("layout=", ["layout=column"]),
        ("target=b", ["target=b200"]),
        ("target=sm", ["target=sm_100a", "target=sm_90a"]),
        ("matmul and m=4", ["matmul and m=4096"]),
        ("not (m=1", ["not (m=1024"]),
        ("matmul a", ["matmul and"]),
        ("matmul or s", ["matmul or softmax"]),
        ("x=", []),
    ],
)
def test_an_expression_is_completed(beginning: str, words: list[str], spec: Path) -> None:
    assert complete_expression([str(spec)], beginning) == words


def test_targets_are_those_of_pallasc_and_of_the_spec(spec: Path) -> None:
    assert complete_target([], "h1") == ["h100-pcie", "h100-sxm"]
    assert complete_target([str(spec)], "mi") == ["mine"]
    assert "sm_90a" in complete_target([], "")


def test_what_cannot_be_read_completes_nothing(spec: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("kernels: [")
    python = tmp_path / "spec.py"
    python.write_text("raise SystemExit(3)")
    for path in (wrong, python, tmp_path / "none.yaml", tmp_path / "none.pallasc"):
        assert complete_expression([str(path)], "") == []
    assert complete_expression([str(wrong), str(spec)], "so") == ["softmax"]


def test_a_bundle_completes_what_it_holds(run: RunCommand, built: Any, tmp_path: Path) -> None:
    bundle = tmp_path / "kernels.pallasc"
    run("bundle", "create", *built.arguments, "-o", bundle, "-q")
    assert complete_expression([str(bundle)], "dtype=") == ["dtype=bf16", "dtype=f32"]


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


def _complete(words: list[str], *, instruction: str = "bash_complete") -> tuple[list[str], str]:
    environment = {
        **os.environ,
        "_PALLASC_COMPLETE": instruction,
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    result = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return result.stdout.splitlines(), result.stderr


def test_a_shell_gets_the_words_without_jax(spec: Path) -> None:
    words, loaded = _complete(["pallasc", "list", str(spec), "-k", "m=1"])
    assert words == ["plain,m=1024"]
    assert "jax" not in loaded
    assert _complete(["pallasc", "build", str(spec), "--target", "h20"])[0] == ["plain,h200"]
    assert _complete(["pallasc", "bu"])[0] == ["plain,build", "plain,bundle"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_a_script_that_it_can_read(shell: str, tmp_path: Path) -> None:
    if shell == "bash" and shutil.which("bash") is None:
        pytest.skip("click asks bash for its version")
    lines, _ = _complete(["pallasc"], instruction=f"{shell}_source")
    script = tmp_path / "script"
    script.write_text("\n".join(lines))
    assert any("pallasc" in line for line in lines)
    if shutil.which(shell):
        subprocess.run([shell, "-n", script], check=True)
