"""Resources of kernels, against what the assembler reports of their PTX."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pallasc.compiler.lowering.resources import Spills, kernel_resources, parse_report
from pallasc.compiler.lowering.translate import Translation
from pallasc.compiler.toolchain.toolchain import find_toolchain
from pallasc.specs.artifacts.plan import Buffer, Launch
from pallasc.specs.canonical import digest

REPORT = """\
ptxas info    : 0 bytes gmem, 16 bytes cmem[3]
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
    24 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 24 bytes cumulative stack size
ptxas info    : Compiling entry function 'f' for 'sm_90a'
ptxas info    : Function properties for f
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers
"""


def test_a_report_is_read_by_function() -> None:
    assert parse_report(REPORT) == {"k": Spills(24, 12, 8), "f": Spills(0, 0, 0)}


def test_text_that_is_no_report_holds_nothing() -> None:
    assert parse_report("ptxas fatal   : Ptx assembly aborted due to errors") == {}


def _spilling_ptx() -> str:
    """Return a kernel that keeps 64 numbers until the end."""
    names = range(64)
    loads = "\n".join(f"ld.volatile.global.u32 %r{n}, [%p+{4 * n}];" for n in names)
    stores = "\n".join(f"st.volatile.global.u32 [%p+{4 * n}], %r{63 - n};" for n in names)
    return (
        ".version 8.7\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 a) {\n"
        ".reg .b64 %p;\n.reg .b32 %r<64>;\nld.param.u64 %p, [a];\n"
        f"{loads}\nbar.sync 0;\n{stores}\nret;\n}}\n"
    )


def test_a_report_of_a_kernel_that_spills_has_its_bytes(tmp_path: Path) -> None:
    source = tmp_path / "k.ptx"
    source.write_text(_spilling_ptx())
    command = [find_toolchain().ptxas, "-v", "-arch=sm_90a", "-maxrregcount=32", "-o", "/dev/null"]
    answer = subprocess.run([*command, source], capture_output=True, text=True, check=True)
    (spills,) = parse_report(answer.stdout + answer.stderr).values()
    assert spills.store_bytes >= 4 * 32
    assert spills.load_bytes >= 4 * 32
    assert spills.stack_bytes >= 4 * 32


def _reported(result: Any, ptxas: Path, arch: str, folder: Path) -> dict[str, str]:
    """Return what the assembler prints of each Mosaic kernel of an artifact."""
    found = {}
    for kernel in result.artifact.kernels:
        if kernel.ptx:
            source = folder / f"{kernel.name}.ptx"
            source.write_bytes(result.artifact.blob(kernel.ptx))
            command = [ptxas, "-v", "-O3", "-lineinfo", f"-arch={arch}", "-o", "/dev/null", source]
            answer = subprocess.run(command, capture_output=True, text=True, check=True)
            found[kernel.name] = answer.stdout + answer.stderr
    return found


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_the_resources_of_mosaic_kernels_are_the_assemblers(
    build: Any, arch: str, tmp_path: Path
) -> None:
    results = build("resources", arch)
    for name in ("small", "spilling"):
        (kernel,) = results[name].artifact.kernels
        (report,) = _reported(results[name], find_toolchain().ptxas, arch, tmp_path).values()
        used = re.search(r"Used (\d+) registers, used (\d+) barriers", report)
        assert used is not None
        assert (kernel.registers, kernel.barriers) == (int(used[1]), int(used[2]))
        spills = parse_report(report)[kernel.name]
        assert kernel.stack_bytes == spills.stack_bytes
        assert (kernel.spill_store_bytes, kernel.spill_load_bytes) == (
            spills.store_bytes, spills.load_bytes,
        )  # fmt: skip
    assert results["small"].artifact.kernels[0].spill_bytes == 0
    assert (results["spilling"].artifact.kernels[0].spill_bytes or 0) > 0


def test_kernels_of_xla_have_static_shared_memory_and_no_ptx(build: Any) -> None:
    mosaic, xla = build("resources", "sm_90a")["reducing"].artifact.kernels
    assert (mosaic.origin, xla.origin) == ("mosaic", "xla")
    assert (mosaic.ptx is None, xla.ptx) == (False, None)
    assert xla.static_smem_bytes > 0
    assert xla.spill_bytes == 0


def _translation(build: Any, **launch: Any) -> tuple[Translation, Launch]:
    result = build("resources", "sm_90a")["spilling"]
    (found,) = result.plan.launches
    cubin = result.artifact.blob(found.cubin)
    return Translation([Buffer("input", 1)], [], [found], {found.cubin: cubin}), found


def test_spills_are_unknown_where_there_is_a_stack_and_no_report(build: Any) -> None:
    translation, _ = _translation(build)
    (kernel,) = kernel_resources(translation, Path("/bin/true"), "sm_90a")
    assert kernel.stack_bytes > 0
    assert (kernel.spill_store_bytes, kernel.spill_load_bytes) == (None, None)


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


def test_a_kernel_that_is_launched_twice_is_listed_once_with_the_larger_memory(
    build: Any,
) -> None:
    from dataclasses import replace

    translation, launch = _translation(build)
    translation.steps.append(replace(launch, dynamic_smem_bytes=4096))
    (kernel,) = kernel_resources(translation, find_toolchain().ptxas, "sm_90a")
    assert kernel.dynamic_smem_bytes == 4096
    assert digest(translation.blobs[kernel.ptx or ""]) == kernel.ptx
