"""The headers of the C library stand alone, in C and in C++."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[3] / "runtime" / "native"


@pytest.mark.parametrize(
    ("compiler", "language", "standard", "header"),
    [("cc", "c", "c11", "flat_plan.h"), ("c++", "c++", "c++11", "include/pallasc.h")],
)
def test_a_header_compiles_alone(compiler: str, language: str, standard: str, header: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} on the PATH")
    flags = [f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    # In the format no byte may lie between fields: what a compiler adds is not in the grammar.
    padding = ["-Wpadded"] if header == "flat_plan.h" else []
    done = subprocess.run(
        [compiler, *flags, *padding, "-x", language, NATIVE / header],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
