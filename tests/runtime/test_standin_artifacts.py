"""The stand-in reads and loads what `pallasc build` makes."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from rig import Rig, code_of, ptxas, value_of
from standin import Standin

from pallasc.specs.artifacts.cubin import EM_CUDA, Cubin, parse_cubin

LIBRARY = Path(__file__).parents[2] / "specs" / "library"
BUILDS = {
    "rms_norm.yaml": "n=4096 and dtype=f32 and (target=a100-sxm or target=h100-sxm or target=b200)",
    "hopper_matmul.yaml": "m=1024 and tile_n=128",
}


@pytest.fixture(scope="session")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> Mapping[bytes, Cubin]:
    """Give the cubins of a few library kernels, each with what specs reads in it."""
    ptxas()
    store = tmp_path_factory.mktemp("store")
    for name, variants in BUILDS.items():
        options = ["-k", variants, "--store", str(store), "--jobs", "1"]
        command = [sys.executable, "-P", "-m", "pallasc", "build", str(LIBRARY / name), *options]
        subprocess.run(command, check=True, capture_output=True, text=True)
    files = [path.read_bytes() for path in store.rglob("*") if path.is_file()]
    machine = EM_CUDA.to_bytes(2, "little")
    images = [data for data in files if data[:4] == b"\x7fELF" and data[18:20] == machine]
    assert len(images) == 4
    return {image: parse_cubin(image) for image in images}


def test_library_cubins_are_read_as_specs_reads_them(
    standin: Standin, cubins: Mapping[bytes, Cubin]
) -> None:
    for image, parsed in cubins.items():
        text = ctypes.create_string_buffer(1 << 16)
        assert not standin.library.standin_cubin(image, text, len(text))
        lines = [line.split() for line in text.value.decode().splitlines()]
        assert lines[0][:2] == ["sm", str(parsed.sm)]
        assert lines[0][3] == ("a" if parsed.sm >= 90 else "-")
        assert lines[0][5] == parsed.toolkit
        found = [line for line in lines if line[0] in ("kernel", "parameter")]
        expected: list[list[str]] = []
        for k in parsed.kernels.values():
            numbers = [str(n) for n in (k.registers, k.stack_bytes, k.static_smem_bytes)]
            named = ["registers", numbers[0], "stack", numbers[1], "smem", numbers[2]]
            expected.append(["kernel", k.name, *named, "barriers", str(k.barriers)])
            expected += [["parameter", str(p.offset), str(p.size)] for p in k.parameters]
        assert found == expected


@pytest.mark.parametrize("capability", ["8.0", "8.9", "9.0", "10.0", "10.3"])
def test_library_cubins_load_where_they_were_compiled_for(
    standin: Standin, cubins: Mapping[bytes, Cubin], capability: str
) -> None:
    standin.devices(capability)
    sm = int(capability.replace(".", ""))
    for image, parsed in cubins.items():
        standin.reset()
        standin.devices(capability)
        rig = Rig(standin, image).start()
        for name, kernel in parsed.kernels.items():
            handle = rig.kernel(name)
            runs = sm == parsed.sm or (parsed.sm, sm) == (80, 89)
            assert code_of(rig.driver.cuKernelGetFunction(handle)) == (0 if runs else 209)
            sizes = [
                int(value_of(rig.driver.cuKernelGetParamInfo(handle, i))[1])
                for i in range(len(kernel.parameters))
            ]
            assert sizes == [parameter.size for parameter in kernel.parameters]
