"""Cubins of `kernels.ptx` from the installed assembler, made once per session and architecture."""

import functools
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

PTX = Path(__file__).parent / "kernels.ptx"


class Assembled(NamedTuple):
    """A cubin, and the output of `ptxas -v` for it."""

    cubin: bytes
    report: str


@pytest.fixture(scope="session")
def assemble(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Assembled]:
    """Return a function that assembles `kernels.ptx` for an architecture."""
    from pallasc.compiler.toolchain.toolchain import find_toolchain

    ptxas = find_toolchain().ptxas
    folder = tmp_path_factory.mktemp("cubins")

    @functools.cache
    def run(arch: str) -> Assembled:
        source, output = folder / f"{arch}.ptx", folder / f"{arch}.cubin"
        source.write_text(PTX.read_text().replace("@ARCH@", arch))
        command = [ptxas, "-v", "-O3", f"-arch={arch}", "-o", output, source]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        return Assembled(output.read_bytes(), answer.stdout + answer.stderr)

    return run
