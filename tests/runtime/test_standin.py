"""The structures and numbers of the stand-in driver are those of the CUDA toolkit."""

import re
import subprocess
from pathlib import Path

import pytest
import standin as control
from rig import ptxas


def test_structures_and_numbers_are_those_of_the_toolkit(tmp_path: Path) -> None:
    if control.compiler() is None:
        pytest.skip("no C compiler (cc or gcc) that would read it")
    include = ptxas().parents[1] / "include"
    if not (include / "cuda.h").is_file():
        pytest.skip("no cuda.h beside ptxas to compare with")
    abi = (control.SOURCES / "abi.h").read_text()
    numbers = re.findall(r"^    ([A-Z][A-Z_0-9]+) = (\d+),", abi, re.M)
    checks = ["#include <cuda.h>", "#include <stddef.h>"]
    for name, number in numbers:
        for prefix in ("CU_", "CU_LAUNCH_", "CUDA_ERROR_", "CUDA_"):
            full = prefix + name.replace("FUNC_", "FUNC_ATTRIBUTE_")
            if f" {full} " in (include / "cuda.h").read_text():
                checks.append(f'_Static_assert({full} == {number}, "{full}");')
                break
    sizes = {"CUlaunchConfig": 56, "CUlaunchAttribute": 72, "CUtensorMap": 128, "CUuuid": 16}
    checks += [f'_Static_assert(sizeof({name}) == {n}, "{name}");' for name, n in sizes.items()]
    places = {"hStream": 32, "attrs": 40, "numAttrs": 48, "sharedMemBytes": 24}
    checks += [
        f'_Static_assert(offsetof(CUlaunchConfig, {name}) == {at}, "{name}");'
        for name, at in places.items()
    ]
    assert len(checks) > 50
    source = tmp_path / "abi.c"
    source.write_text("\n".join(checks))
    subprocess.run([control.compiler(), "-fsyntax-only", f"-I{include}", source], check=True)
