"""The stand-in driver through cuda.bindings: devices, contexts, memory, results, faults, log."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import standin as control
from rig import NO_PARAMETERS, Rig, code_of, cubin, ptxas, value_of
from standin import Device, Standin


@pytest.fixture
def driver(standin: Standin) -> Any:
    """Give `cuda.bindings.driver` after cuInit, without a context."""
    from cuda.bindings import driver

    assert code_of(driver.cuInit(0)) == 0
    return driver


def test_one_that_is_built_already_is_used_without_a_compiler(
    standin: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import pytest, sys; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', sys.argv[1]]))"
    )
    test = f"{__file__}::{test_nothing_works_before_init.__name__}"

    def summary(**changes: str) -> str:
        environment = {**os.environ, "PATH": "/nowhere", **changes}
        done = subprocess.run(
            [sys.executable, "-P", "-c", program, test],
            env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        return done.stdout.splitlines()[-1]

    library = str(control.build())
    monkeypatch.delenv("STANDIN_LIBRARY", raising=False)
    assert summary().startswith("1 skipped")
    assert summary(STANDIN_LIBRARY=library).startswith("1 passed")


def test_nothing_works_before_init(standin: Standin) -> None:
    from cuda.bindings import driver

    assert code_of(driver.cuDeviceGetCount()) == 3
    assert code_of(driver.cuCtxGetCurrent()) == 3
    assert value_of(driver.cuDriverGetVersion()) == 13000
    assert code_of(driver.cuInit(1)) == 1
    assert code_of(driver.cuInit(0)) == 0
    assert value_of(driver.cuDeviceGetCount()) == 1


@pytest.mark.parametrize("code", [100, 803, 804, 999])
def test_init_answers_what_it_was_told(standin: Standin, code: int) -> None:
    from cuda.bindings import driver

    standin.configure(init_code=code)
    assert code_of(driver.cuInit(0)) == code
    assert code_of(driver.cuDeviceGetCount()) == 3


def test_a_machine_without_devices_says_so(standin: Standin) -> None:
    from cuda.bindings import driver

    standin.devices()
    assert code_of(driver.cuInit(0)) == 100


def test_every_result_has_the_name_of_the_binding(driver: Any) -> None:
    known = [result for result in driver.CUresult if driver.cuGetErrorName(result)[1]]
    assert len(known) > 50
    for result in known:
        assert driver.cuGetErrorName(result)[1] == result.name.encode()
        assert value_of(driver.cuGetErrorString(result))
    assert value_of(driver.cuGetErrorString(driver.CUresult(700))) == (
        b"an illegal memory access was encountered"
    )
    assert code_of(driver.cuGetErrorName(driver.CUresult(915))) == 1


def test_devices_are_as_configured(standin: Standin) -> None:
    from cuda.bindings import driver

    standin.devices("8.0", Device("9.0", name="H200", memory_bytes=1 << 30, sms=7))
    assert code_of(driver.cuInit(0)) == 0
    assert value_of(driver.cuDeviceGetCount()) == 2
    names = [value_of(driver.cuDeviceGetName(64, i)).partition(b"\0")[0] for i in range(2)]
    assert names == [b"Stand-in A100", b"H200"]
    assert value_of(driver.cuDeviceTotalMem(1)) == 1 << 30
    assert code_of(driver.cuDeviceGet(2)) == 101
    assert code_of(driver.cuDeviceGetName(64, -1)) == 101


# attribute of a device, what 8.0 and 9.0 answer
ATTRIBUTES = {
    "MAX_THREADS_PER_BLOCK": (1024, 1024),
    "MAX_SHARED_MEMORY_PER_BLOCK": (49152, 49152),
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": (166912, 232448),
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": (167936, 233472),
    "RESERVED_SHARED_MEMORY_PER_BLOCK": (1024, 1024),
    "MULTIPROCESSOR_COUNT": (108, 132),
    "MAX_THREADS_PER_MULTIPROCESSOR": (2048, 2048),
    "MAX_REGISTERS_PER_BLOCK": (65536, 65536),
    "WARP_SIZE": (32, 32),
    "COMPUTE_CAPABILITY_MAJOR": (8, 9),
    "COMPUTE_CAPABILITY_MINOR": (0, 0),
    "CLUSTER_LAUNCH": (0, 1),
    "TENSOR_MAP_ACCESS_SUPPORTED": (0, 1),
    "MEMORY_POOLS_SUPPORTED": (1, 1),
    "CLOCK_RATE": (1410000, 1980000),
    "MEMORY_CLOCK_RATE": (1215000, 2619000),
    "GLOBAL_MEMORY_BUS_WIDTH": (5120, 5120),
    "L2_CACHE_SIZE": (41943040, 52428800),
    "PCI_BUS_ID": (1, 2),
}


def test_attributes_are_those_of_the_chip(standin: Standin) -> None:
    from cuda.bindings import driver

    standin.devices("8.0", "9.0")
    assert code_of(driver.cuInit(0)) == 0
    for name, expected in ATTRIBUTES.items():
        attribute = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        found = tuple(value_of(driver.cuDeviceGetAttribute(attribute, i)) for i in range(2))
        assert found == expected, name
    if NO_PARAMETERS:  # the enumeration of CUDA 12 lacks this number
        assert code_of(driver.cuDeviceGetAttribute(driver.CUdevice_attribute(162), 0)) == 1


def test_contexts_are_a_stack_of_each_thread(standin: Standin) -> None:
    standin.devices("9.0", "9.0")
    driver = Rig(standin, cubin("sm_90a")).start().driver
    first = value_of(driver.cuCtxGetCurrent())
    second = value_of(driver.cuDevicePrimaryCtxRetain(1))
    assert code_of(driver.cuCtxPushCurrent(second)) == 0
    assert int(value_of(driver.cuCtxGetDevice())) == 1
    seen = []
    thread = threading.Thread(target=lambda: seen.append(driver.cuCtxGetCurrent()))
    thread.start()
    thread.join()
    assert int(value_of(seen[0])) == 0
    assert int(value_of(driver.cuCtxPopCurrent())) == int(second)
    assert int(value_of(driver.cuCtxGetCurrent())) == int(first)
    assert code_of(driver.cuCtxPopCurrent()) == 0
    assert code_of(driver.cuCtxPopCurrent()) == 201
    assert code_of(driver.cuCtxPushCurrent(0x1234)) == 201


def test_a_call_without_a_context_is_refused(driver: Any) -> None:
    calls: tuple[Callable[[], Any], ...] = (
        lambda: driver.cuMemAlloc(16),
        lambda: driver.cuStreamCreate(0),
        lambda: driver.cuEventCreate(0),
        lambda: driver.cuCtxSynchronize(),
        lambda: driver.cuCtxGetDevice(),
        lambda: driver.cuMemGetInfo(),
        lambda: driver.cuStreamSynchronize(0),
        lambda: driver.cuMemAllocAsync(16, 0),
    )
    assert [code_of(call()) for call in calls] == [201] * len(calls)


def test_memory_is_limited_and_counted(standin: Standin) -> None:
    standin.devices(Device("9.0", memory_bytes=1 << 20))
    rig = Rig(standin, cubin("sm_90a")).start()
    driver = rig.driver
    assert code_of(driver.cuMemAlloc(0)) == 1
    half = rig.allocate(1 << 19)
    assert value_of(driver.cuMemGetInfo()) == (1 << 19, 1 << 20)
    assert standin.live() == (1, 1 << 19)
    assert code_of(driver.cuMemAlloc((1 << 19) + 1)) == 2
    assert code_of(driver.cuMemAllocAsync(1 << 20, 0)) == 2
    assert code_of(driver.cuMemFree(half + 8)) == 1
    assert code_of(driver.cuMemFree(half)) == 0
    assert code_of(driver.cuMemFree(half)) == 1
    assert code_of(driver.cuMemFree(0)) == 0
    whole = value_of(driver.cuMemAllocAsync(1 << 20, 0))
    assert int(whole) % 512 == 0
    assert code_of(driver.cuMemFreeAsync(whole, 0)) == 0
    assert standin.live() == (0, 0)


def test_fresh_memory_holds_a_pattern(rig: Rig) -> None:
    assert _bytes(rig, rig.allocate(64), 64) == b"\xa5" * 64


def _bytes(rig: Rig, address: int, size: int) -> bytes:
    data = ctypes.create_string_buffer(size)
    assert code_of(rig.driver.cuMemcpyDtoH(ctypes.addressof(data), address, size)) == 0
    return data.raw


def test_copies_and_fills_move_the_bytes(rig: Rig) -> None:
    driver, a, b = rig.driver, rig.allocate(64), rig.allocate(64)
    source = bytes(range(64))
    stream = value_of(driver.cuStreamCreate(1))
    assert code_of(driver.cuMemcpyHtoDAsync(a, source, 64, stream)) == 0
    assert code_of(driver.cuMemcpyDtoDAsync(b, a + 16, 32, stream)) == 0
    assert _bytes(rig, b, 32) == source[16:48]
    assert code_of(driver.cuMemsetD8(a, 7, 3)) == 0
    assert code_of(driver.cuMemsetD32Async(a + 8, 0x01020304, 2, stream)) == 0
    assert _bytes(rig, a, 16) == b"\7\7\7" + source[3:8] + b"\4\3\2\1" * 2


def _rows(driver: Any, target: int, source: int, **changes: int) -> Any:
    """Return two rows of 8 bytes, 16 apart in the source and 12 in the target."""
    rows = driver.CUDA_MEMCPY2D()
    rows.srcDevice, rows.dstDevice = source, target
    values = {"srcPitch": 16, "dstPitch": 12, "WidthInBytes": 8, "Height": 2, **changes}
    kinds = {"srcMemoryType": 2, "dstMemoryType": 2}
    for name in kinds:
        setattr(rows, name, driver.CUmemorytype(values.pop(name, kinds[name])))
    for name, value in values.items():
        setattr(rows, name, value)
    return rows


def test_rows_are_copied_between_two_pitches(rig: Rig) -> None:
    driver, a, b = rig.driver, rig.allocate(64), rig.allocate(64)
    assert code_of(driver.cuMemcpyHtoD(a, bytes(range(64)), 64)) == 0
    assert code_of(driver.cuMemsetD8(b, 0, 64)) == 0
    assert code_of(driver.cuMemcpy2DAsync(_rows(driver, b, a, srcXInBytes=1, dstY=1), 0)) == 0
    first, second = bytes(range(1, 9)), bytes(range(17, 25))
    assert _bytes(rig, b, 36) == bytes(12) + first + bytes(4) + second + bytes(4)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"dstPitch": 7}, 1), ({"srcXInBytes": 9}, 1), ({"Height": 5}, 1), ({"srcPitch": 2**31}, 1),
        ({"srcMemoryType": 1}, 801),
    ],
)  # fmt: skip
def test_rows_that_do_not_fit_are_refused(rig: Rig, changes: dict[str, int], code: int) -> None:
    a, b = rig.allocate(64), rig.allocate(64)
    rows = _rows(rig.driver, b, a, **changes)
    assert code_of(rig.driver.cuMemcpy2DAsync(rows, 0)) == code


BAD_RANGES: dict[str, Callable[[Any, int, int], Any]] = {
    "to the host's memory": lambda d, a, h: d.cuMemcpyHtoD(h, h, 8),
    "behind the end": lambda d, a, h: d.cuMemcpyHtoD(a + 60, h, 8),
    "from behind the end": lambda d, a, h: d.cuMemcpyDtoH(h, a + 57, 8),
    "from nowhere": lambda d, a, h: d.cuMemcpyHtoD(a, 0, 8),
    "between devices' memory and not": lambda d, a, h: d.cuMemcpyDtoDAsync(a, h, 8, 0),
    "asynchronously": lambda d, a, h: d.cuMemcpyDtoDAsync(a, a + 32, 33, 0),
    "a fill too long": lambda d, a, h: d.cuMemsetD8(a, 0, 65),
    "a fill too long by words": lambda d, a, h: d.cuMemsetD32Async(a, 0, 17, 0),
    "a fill off its words": lambda d, a, h: d.cuMemsetD32(a + 2, 0, 1),
    "a fill of the host's memory": lambda d, a, h: d.cuMemsetD8(h, 0, 1),
}


@pytest.mark.parametrize("call", BAD_RANGES.values(), ids=BAD_RANGES)
def test_a_range_outside_live_memory_is_refused(
    rig: Rig, call: Callable[[Any, int, int], Any]
) -> None:
    host = np.zeros(8, np.uint8)
    assert code_of(call(rig.driver, rig.allocate(64), host.ctypes.data)) == 1
    assert rig.synchronize() == 0


def test_pointers_tell_where_they_lie(rig: Rig) -> None:
    driver, attributes = rig.driver, rig.driver.CUpointer_attribute
    address = rig.allocate(100)
    names = ("MEMORY_TYPE", "DEVICE_ORDINAL", "RANGE_START_ADDR", "RANGE_SIZE", "DEVICE_POINTER")
    asked = [getattr(attributes, f"CU_POINTER_ATTRIBUTE_{name}") for name in names]
    found = [value_of(driver.cuPointerGetAttribute(name, address + 50)) for name in asked]
    assert [int(value) for value in found] == [2, 0, address, 100, address + 50]
    pinned = int(value_of(driver.cuMemHostAlloc(100, 0)))
    assert int(value_of(driver.cuPointerGetAttribute(asked[0], pinned))) == 1
    assert code_of(driver.cuMemFreeHost(pinned)) == 0
    assert code_of(driver.cuMemFreeHost(pinned)) == 1
    host = np.zeros(8)
    assert code_of(driver.cuPointerGetAttribute(asked[0], host.ctypes.data)) == 1


def test_a_sticky_fault_stays(standin: Standin, rig: Rig) -> None:
    standin.fault("cuCtxSynchronize", 719, sticky=True)
    assert [rig.synchronize(), rig.synchronize(), rig.launch("none")] == [719] * 3
    assert value_of(rig.driver.cuDriverGetVersion()) == 13000


def test_an_earlier_failure_appears_at_the_next_wait(standin: Standin, rig: Rig) -> None:
    stream = value_of(rig.driver.cuStreamCreate(0))
    standin.break_context(700)
    assert rig.launch("none", stream=stream) == 0
    assert code_of(rig.driver.cuStreamSynchronize(stream)) == 700
    assert rig.launch("none", stream=stream) == 700


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
