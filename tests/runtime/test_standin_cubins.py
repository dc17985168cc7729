"""The stand-in reads cubins as pallasc does, and loads them where a driver would."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import pytest
from rig import Rig, code_of, cubin, load, value_of
from standin import Standin

from pallasc.specs.artifacts.cubin import parse_cubin

ARCHITECTURES = ("sm_80", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_100f", "sm_103a", "sm_120a")


def _described(standin: Standin, image: bytes) -> list[list[str]]:
    text = ctypes.create_string_buffer(1 << 16)
    assert not standin.library.standin_cubin(image, text, len(text))
    return [line.split() for line in text.value.decode().splitlines()]


def _expected(image: bytes) -> list[list[str]]:
    parsed = parse_cubin(image)
    lines = []
    for kernel in parsed.kernels.values():
        numbers = (kernel.registers, kernel.stack_bytes, kernel.static_smem_bytes, kernel.barriers)
        names = ("registers", "stack", "smem", "barriers")
        pairs = zip(names, map(str, numbers), strict=True)
        lines.append(["kernel", kernel.name, *(word for pair in pairs for word in pair)])
        lines += [["parameter", str(p.offset), str(p.size)] for p in kernel.parameters]
    return lines


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_cubins_are_read_as_specs_reads_them(standin: Standin, arch: str) -> None:
    lines = _described(standin, cubin(arch))
    found = [line for line in lines if line[0] in ("kernel", "parameter")]
    assert found == _expected(cubin(arch))
    number, suffix = arch.removeprefix("sm_").rstrip("af"), arch.lstrip("sm_0123456789") or "-"
    assert lines[0] == ["sm", number, "suffix", suffix, "toolkit", parse_cubin(cubin(arch)).toolkit]


def test_limits_that_only_the_driver_reads_come_from_the_attributes(standin: Standin) -> None:
    lines = _described(standin, cubin("sm_90a"))
    limits = {}
    name = ""
    for line in lines:
        name = line[1] if line[0] == "kernel" else name
        if line[0] in ("maxntid", "reqntid", "cluster"):
            limits[name, line[0]] = line[1:]
    assert limits["bounded", "maxntid"] == ["128", "2", "1"]
    assert limits["exact", "reqntid"] == ["64", "1", "1"]
    assert limits["clustered", "cluster"] == ["4", "2", "1", "rank", "0", "explicit", "1"]
    assert limits["ranked", "cluster"] == ["0", "0", "0", "rank", "4", "explicit", "1"]
    assert limits["none", "maxntid"] == ["0", "0", "0"]


# architecture of the cubin, compute capability of the device, whether it runs there
ARCH_TABLE = (
    ("sm_80", "8.0", True),
    ("sm_80", "8.6", True),
    ("sm_80", "9.0", False),
    ("sm_89", "8.6", False),
    ("sm_90", "9.0", True),
    ("sm_90a", "9.0", True),
    ("sm_90a", "10.0", False),
    ("sm_100a", "10.0", True),
    ("sm_100a", "10.3", False),
    ("sm_100f", "10.0", True),
    ("sm_100f", "10.3", True),
    ("sm_103a", "10.0", False),
    ("sm_103a", "10.3", True),
    ("sm_120a", "12.0", True),
    ("sm_120a", "12.1", False),
    ("sm_120a", "10.0", False),
)


@pytest.mark.parametrize(("arch", "capability", "runs"), ARCH_TABLE)
def test_a_cubin_runs_only_where_its_architecture_says(
    standin: Standin, arch: str, capability: str, runs: bool
) -> None:
    standin.devices(capability)
    rig = Rig(standin, cubin(arch)).start()
    kernel = rig.kernel("none")
    assert code_of(rig.driver.cuKernelGetFunction(kernel)) == (0 if runs else 209)
    assert rig.launch("none") == (0 if runs else 209)


def test_eager_loading_refuses_a_cubin_for_no_device_at_once(standin: Standin) -> None:
    standin.configure(eager_loading=1)
    rig = Rig(standin, cubin("sm_90a")).start()
    assert code_of(load(cubin("sm_100a"))) == 209
    assert value_of(rig.driver.cuModuleGetLoadingMode()) == 1


def _patched(image: bytes, at: int, data: bytes) -> bytes:
    return image[:at] + data + image[at + len(data) :]


def _damaged(kind: str) -> bytes:
    image = cubin("sm_90a")
    sections = struct.unpack_from("<Q", image, 40)[0]
    changes = {
        "magic": (0, b"\x7fELG"),
        "class": (4, b"\x01"),
        "machine": (18, struct.pack("<H", 62)),
        "section_table": (40, struct.pack("<Q", 1 << 60)),
        "names": (62, struct.pack("<H", 0xFFFF)),
        "row_size": (58, struct.pack("<H", 40)),
        "section_size": (sections + 64 + 32, struct.pack("<Q", 1 << 60)),
        "section_start": (sections + 64 + 24, struct.pack("<Q", 1 << 40)),
    }
    return _patched(image, *changes[kind])


@pytest.mark.parametrize(
    "kind",
    [
        *("magic", "class", "machine", "section_table", "names", "row_size"),
        *("section_size", "section_start"),
    ],
)
def test_a_damaged_cubin_is_an_invalid_image(standin: Standin, rig: Rig, kind: str) -> None:
    assert code_of(load(_damaged(kind))) == 200


@pytest.mark.parametrize(
    ("image", "code"),
    [
        (b"\0" * 64, 200),
        (b"not a cubin at all, but text\0", 200),
        (b".version 8.0\n.target sm_90\n\0", 221),
        (b"//\n.version 12.0\n.target sm_90\n\0", 222),
    ],
)
def test_text_and_noise_are_refused(rig: Rig, image: bytes, code: int) -> None:
    assert code_of(load(image)) == code


@pytest.mark.parametrize(("version", "code"), [(12080, 200), (13000, 0), (13050, 0), (14000, 0)])
def test_a_cubin_of_a_newer_major_toolkit_is_refused(
    standin: Standin, version: int, code: int
) -> None:
    standin.configure(driver_version=version)
    rig = Rig(standin, b"")
    rig.driver.cuInit(0)
    assert code_of(load(cubin("sm_90a"))) == code


def test_kernels_are_found_by_name(rig: Rig) -> None:
    driver = rig.driver
    assert code_of(driver.cuLibraryGetKernel(rig.library, b"absent")) == 500
    kernel = rig.kernel("plain")
    assert value_of(driver.cuKernelGetName(kernel)) == b"plain"
    assert value_of(driver.cuKernelGetFunction(kernel))
    count = value_of(driver.cuLibraryGetKernelCount(rig.library))
    names = {
        value_of(driver.cuKernelGetName(found))
        for found in value_of(driver.cuLibraryEnumerateKernels(count, rig.library))
    }
    assert names == {name.encode() for name in parse_cubin(cubin("sm_90a")).kernels}


def test_parameters_lie_where_the_cubin_says(rig: Rig) -> None:
    kernel = rig.kernel("plain")
    found = [value_of(rig.driver.cuKernelGetParamInfo(kernel, i)) for i in range(3)]
    assert [tuple(map(int, pair)) for pair in found] == [(0, 8), (48, 128), (176, 4)]
    assert code_of(rig.driver.cuKernelGetParamInfo(kernel, 3)) == 1
    assert value_of(rig.driver.cuKernelGetParamCount(kernel)) == 3


def _read(rig: Rig, address: Any, size: int) -> bytes:
    data = ctypes.create_string_buffer(size)
    assert code_of(rig.driver.cuMemcpyDtoH(ctypes.addressof(data), int(address), size)) == 0
    return data.raw


def test_variables_of_a_cubin_lie_in_device_memory_with_their_first_values(rig: Rig) -> None:
    address, size = value_of(rig.driver.cuLibraryGetGlobal(rig.library, b"flag"))
    assert size == 24
    assert _read(rig, address, 24) == bytes((1, 2, 3)) + bytes(21)
    table, _ = value_of(rig.driver.cuLibraryGetGlobal(rig.library, b"table"))
    assert _read(rig, table, 3) == bytes((9, 8, 7))
    assert code_of(rig.driver.cuLibraryGetGlobal(rig.library, b"absent")) == 500


def test_handles_of_an_unloaded_library_are_invalid(rig: Rig) -> None:
    driver = rig.driver
    kernel = rig.kernel("none")
    function = value_of(driver.cuKernelGetFunction(kernel))
    assert code_of(driver.cuLibraryUnload(rig.library)) == 0
    assert code_of(driver.cuLibraryUnload(rig.library)) == 400
    assert code_of(driver.cuKernelGetFunction(kernel)) == 400
    assert rig.launch(kernel) == 400
    assert rig.launch(function) == 400


def test_a_module_is_loaded_at_once_into_the_current_context(rig: Rig) -> None:
    driver = rig.driver
    module = value_of(driver.cuModuleLoadData(cubin("sm_90")))
    assert rig.launch(value_of(driver.cuModuleGetFunction(module, b"none"))) == 0
    assert code_of(driver.cuModuleLoadData(cubin("sm_100a"))) == 209
    assert code_of(driver.cuModuleUnload(module)) == 0
