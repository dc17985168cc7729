"""The stand-in reads cubins as pallasc does, and loads them where a driver would."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import pytest
from rig import Rig, code_of, cubin, load, value_of
from standin import Standin

from pallasc.specs.artifacts.cubin import parse_cubin

# architecture of the cubin, compute capability of a device that runs it
ARCHITECTURES = {
    "sm_80": "8.0",
    "sm_89": "8.9",
    "sm_90": "9.0",
    "sm_90a": "9.0",
    "sm_100a": "10.0",
    "sm_100f": "10.0",
    "sm_103a": "10.3",
    "sm_120a": "12.0",
}
SHARED, LOCAL, REGISTERS = 1, 3, 4


@pytest.mark.parametrize(("arch", "capability"), ARCHITECTURES.items())
def test_cubins_are_read_as_specs_reads_them(standin: Standin, arch: str, capability: str) -> None:
    standin.devices(capability)
    rig = Rig(standin, cubin(arch)).start()
    driver = rig.driver
    for name, expected in parse_cubin(cubin(arch)).kernels.items():
        kernel = rig.kernel(name)
        numbers = [
            value_of(driver.cuKernelGetAttribute(driver.CUfunction_attribute(number), kernel, 0))
            for number in (REGISTERS, LOCAL, SHARED)
        ]
        assert numbers == [expected.registers, expected.stack_bytes, expected.static_smem_bytes]
        for index, parameter in enumerate(expected.parameters):
            found = value_of(driver.cuKernelGetParamInfo(kernel, index))
            assert tuple(map(int, found)) == (parameter.offset, parameter.size)
        end = len(expected.parameters)
        assert code_of(driver.cuKernelGetParamInfo(kernel, end)) == 1


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
    assert rig.library
    assert code_of(load(cubin("sm_100a"))) == 209


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
    assert value_of(driver.cuKernelGetFunction(kernel))


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
