"""Resources of kernels, against what the assembler reports of their PTX."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pallasc.compiler.lowering.resources import kernel_resources, parse_report
from pallasc.compiler.lowering.translate import Translation
from pallasc.compiler.toolchain.toolchain import find_toolchain
from pallasc.specs.artifacts.plan import Buffer, Launch
from pallasc.specs.canonical import digest


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_the_resources_of_mosaic_kernels_are_the_assemblers(
    build: Any, arch: str, tmp_path: Path
) -> None:
    results = build("resources", arch)
    for name in ("small", "spilling"):
        (kernel,) = results[name].artifact.kernels
        source = tmp_path / f"{name}.ptx"
        source.write_text(results[name].artifact.ptx())
        command = [find_toolchain().ptxas, "-v", "-O3", "-lineinfo", f"-arch={arch}", source]
        command += ["-o", "/dev/null"]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        report = answer.stdout + answer.stderr
        used = re.search(r"Used (\d+) registers, used (\d+) barriers", report)
        assert used is not None
        assert (kernel.registers, kernel.barriers) == (int(used[1]), int(used[2]))
        spills = kernel.stack_bytes, kernel.spill_store_bytes, kernel.spill_load_bytes
        assert parse_report(report)[kernel.name] == spills
    assert results["small"].artifact.kernels[0].spill_bytes == 0
    assert (results["spilling"].artifact.kernels[0].spill_bytes or 0) > 0


def _translation(build: Any, **launch: Any) -> tuple[Translation, Launch]:
    result = build("resources", "sm_90a")["spilling"]
    (found,) = result.plan.launches
    cubin = result.artifact.blob(found.cubin)
    return Translation([Buffer("input", 1)], [], [found], {found.cubin: cubin}), found


def test_spills_of_another_code_are_not_believed(build: Any, tmp_path: Path) -> None:
    translation, launch = _translation(build)
    other = tmp_path / "ptxas"
    other.write_text(
        "#!/bin/sh\necho 'ptxas info    : Function properties for "
        f"{launch.kernel}'\necho '    1 bytes stack frame, 2 bytes spill stores, "
        "3 bytes spill loads'\n"
    )
    other.chmod(0o755)
    (kernel,) = kernel_resources(translation, other, "sm_90a")
    assert kernel.spill_bytes is None
    (kernel,) = kernel_resources(translation, Path("/bin/true"), "sm_90a")  # no report
    assert kernel.stack_bytes > 0
    assert (kernel.spill_store_bytes, kernel.spill_load_bytes) == (None, None)


def test_a_kernel_that_is_launched_twice_is_listed_once_with_the_larger_memory(build: Any) -> None:
    translation, launch = _translation(build)
    translation.steps.append(replace(launch, dynamic_smem_bytes=4096))
    (kernel,) = kernel_resources(translation, find_toolchain().ptxas, "sm_90a")
    assert kernel.dynamic_smem_bytes == 4096
    assert digest(translation.blobs[kernel.ptx or ""]) == kernel.ptx
