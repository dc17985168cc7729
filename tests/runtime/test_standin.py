"""The stand-in driver does what a real one does, where the tests of the runtime depend on it."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import standin as control
from rig import Rig, attribute, code_of, cubin, pointer, ptxas, value_of
from standin import Standin

from pallasc.specs.artifacts.cubin import parse_cubin

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


# architecture of a cubin, compute capabilities of devices that run it, and of others
ARCHITECTURES = {
    "sm_80": (["8.0", "8.6"], ["9.0"]),
    "sm_89": (["8.9"], ["8.0"]),
    "sm_90": (["9.0"], ["8.9"]),
    "sm_90a": (["9.0"], ["10.0"]),
    "sm_100a": (["10.0"], ["10.3"]),
    "sm_100f": (["10.0", "10.3"], ["12.0"]),
    "sm_103a": (["10.3"], ["10.0"]),
    "sm_120a": (["12.0"], ["12.1"]),
}


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_cubin_runs_where_its_architecture_says_and_is_read_as_specs_reads_it(
    standin: Standin, arch: str
) -> None:
    there, elsewhere = ARCHITECTURES[arch]
    for capability in (*there, *elsewhere):
        standin.reset()
        standin.devices(capability)
        rig = Rig(standin, cubin(arch)).start()
        code = 0 if capability in there else 209
        assert code_of(rig.driver.cuKernelGetFunction(rig.kernel("none"))) == code
        assert rig.launch("none") == code
        if code == 0:
            _compare_kernels(rig, arch)


def _compare_kernels(rig: Rig, arch: str) -> None:
    driver = rig.driver
    for name, expected in parse_cubin(cubin(arch)).kernels.items():
        kernel = rig.kernel(name)
        numbers = [
            value_of(driver.cuKernelGetAttribute(driver.CUfunction_attribute(number), kernel, 0))
            for number in (4, 3, 1)
        ]
        assert numbers == [expected.registers, expected.stack_bytes, expected.static_smem_bytes]
        for index, parameter in enumerate(expected.parameters):
            found = value_of(driver.cuKernelGetParamInfo(kernel, index))
            assert tuple(map(int, found)) == (parameter.offset, parameter.size)
        assert code_of(driver.cuKernelGetParamInfo(kernel, len(expected.parameters))) == 1


def _cluster(grid: tuple[int, int, int], *cluster: int) -> dict[str, Any]:
    return {"grid": grid, "attributes": [(4, *cluster)]}


# kernel, what to change in the launch, result code
REFUSALS: dict[str, tuple[str, dict[str, Any], int]] = {
    "no blocks": ("none", {"grid": (0, 1, 1)}, 1),
    "a grid too deep": ("none", {"grid": (1, 1, 65536)}, 1),
    "a block too wide": ("none", {"block": (1025, 1, 1)}, 1),
    "too many threads": ("none", {"block": (512, 2, 2)}, 1),
    "more threads than .maxntid": ("bounded", {"block": (512, 1, 1)}, 701),
    "other threads than .reqntid": ("exact", {"block": (32, 1, 1)}, 1),
    "48 kB of shared memory": ("none", {"smem_bytes": 49152}, 0),
    "more shared memory than was allowed": ("none", {"smem_bytes": 49153}, 1),
    "a cluster": ("none", _cluster((8, 1, 1), 8, 1, 1), 0),
    "a grid of part clusters": ("none", _cluster((9, 1, 1), 2, 1, 1), 1),
    "a cluster that is not portable": ("none", _cluster((16, 1, 1), 16, 1, 1), 912),
    "no cluster where one is needed": ("ranked", {}, 912),
    "above .maxclusterrank": ("ranked", _cluster((8, 1, 1), 8, 1, 1), 912),
    "another cluster than the kernel's": ("clustered", _cluster((8, 8, 1), 2, 1, 1), 912),
    "the kernel's cluster": ("clustered", _cluster((8, 8, 1), 4, 2, 1), 0),
    "an unknown stream": ("none", {"stream": 0x1234}, 400),
}


@pytest.mark.parametrize(("kernel", "changes", "code"), REFUSALS.values(), ids=REFUSALS)
def test_a_launch_is_checked(rig: Rig, kernel: str, changes: dict[str, Any], code: int) -> None:
    made = {**changes, "attributes": [attribute(*row) for row in changes.get("attributes", ())]}
    assert rig.launch(kernel, **made) == code
    assert rig.synchronize() == 0


def _freed(rig: Rig) -> int:
    address = rig.allocate()
    assert code_of(rig.driver.cuMemFree(address)) == 0
    return address


def _elsewhere(rig: Rig) -> int:
    rig.use(1)
    address = rig.allocate()
    rig.use(0)
    return address


BAD_ADDRESSES: dict[str, Callable[[Rig], int]] = {
    "null": lambda rig: 0,
    "host memory": lambda rig: int(np.zeros(64).ctypes.data),
    "behind the end": lambda rig: rig.allocate(4096) + 4096,
    "before the start": lambda rig: rig.allocate(4096) - 1,
    "freed": _freed,
    "of another device": _elsewhere,
}


@pytest.mark.parametrize("address", BAD_ADDRESSES.values(), ids=BAD_ADDRESSES)
def test_a_pointer_outside_live_memory_breaks_the_context(
    standin: Standin, address: Callable[[Rig], int]
) -> None:
    standin.devices("9.0", "9.0")
    rig = Rig(standin, cubin("sm_90a")).start()
    good, bad = rig.allocate(), address(rig)
    ran = []
    standin.kernel()(ran.append)
    assert rig.launch("four", [pointer(p) for p in (good, good, good, bad)]) == 0
    assert rig.synchronize() == 700
    assert code_of(rig.driver.cuStreamSynchronize(0)) == 700
    assert rig.launch("none") == 700
    assert not ran


def _status(rig: Rig, stream: Any) -> int:
    return int(value_of(rig.driver.cuStreamIsCapturing(stream)))


def _capture(rig: Rig) -> Any:
    """Return a new stream that captures."""
    stream = value_of(rig.driver.cuStreamCreate(1))
    mode = rig.driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    assert code_of(rig.driver.cuStreamBeginCapture(stream, mode)) == 0
    return stream


# What must not happen while a stream captures; each ends the capture.
FORBIDDEN: dict[str, Callable[[Any, Any, int], Any]] = {
    "allocate": lambda d, s, a: d.cuMemAlloc(16),
    "free": lambda d, s, a: d.cuMemFree(a),
    "copy and wait": lambda d, s, a: d.cuMemcpyHtoD(a, bytes(8), 8),
    "fill and wait": lambda d, s, a: d.cuMemsetD8(a, 0, 8),
    "wait for the context": lambda d, s, a: d.cuCtxSynchronize(),
    "wait for the stream": lambda d, s, a: d.cuStreamSynchronize(s),
    "ask the stream": lambda d, s, a: d.cuStreamQuery(s),
}


@pytest.mark.parametrize("call", FORBIDDEN.values(), ids=FORBIDDEN)
def test_an_unsafe_call_ends_a_capture(rig: Rig, call: Callable[[Any, Any, int], Any]) -> None:
    address, stream = rig.allocate(64), _capture(rig)
    assert code_of(call(rig.driver, stream, address)) == 900
    assert _status(rig, stream) == 2
    assert rig.launch("none", stream=stream) == 901
    assert code_of(rig.driver.cuStreamEndCapture(stream)) == 901
    assert _status(rig, stream) == 0
    assert code_of(call(rig.driver, stream, address)) == 0


TILED: dict[str, Any] = {
    "type": 6,
    "address": 0,
    "dims": (256, 128, 64),
    "strides": (512, 65536),
    "box": (64, 8, 2),
    "element_strides": (1, 1, 1),
    "interleave": 0,
    "swizzle": 3,
}

# What to change in a good map of f16, and whether the driver takes it.
MAPS: dict[str, tuple[dict[str, Any], bool]] = {
    "as it is": ({}, True),
    "address not 16-byte aligned": ({"address": 8}, False),
    "dimension 0": ({"dims": (256, 0, 64)}, False),
    "dimension of 2^32": ({"dims": (256, 128, 1 << 32)}, True),
    "stride not a multiple of 16": ({"strides": (520, 65536)}, False),
    "stride of 2^40": ({"strides": (512, 1 << 40)}, False),
    "box of 256": ({"box": (64, 256, 1)}, True),
    "box above 256": ({"box": (64, 257, 2)}, False),
    "inner box not a multiple of 16 bytes": ({"box": (60, 8, 2)}, False),
    "inner box above a swizzle of 128": ({"box": (72, 8, 2)}, False),
    "inner box above a swizzle of 64": ({"swizzle": 2}, False),
    "no swizzle": ({"swizzle": 0, "box": (256, 8, 2)}, True),
    "element stride 9": ({"element_strides": (1, 9, 1)}, False),
    "interleave 32 with another swizzle": ({"interleave": 2, "swizzle": 3}, False),
    "packed, odd dimension": ({"type": 13, "dims": (255, 128, 64), "box": (128, 8, 2)}, False),
    "padded, other box": ({"type": 14, "box": (64, 8, 2)}, False),
    "padded": ({"type": 15, "box": (128, 8, 2)}, True),
}


def _encode(rig: Rig, base: int, changes: dict[str, Any]) -> int:
    """Return the driver's answer; the map must be aligned, and bindings do not see to it."""
    made = {**TILED, **changes}
    rank = len(made["dims"])
    _, function, _ = rig.driver.cuGetProcAddress(b"cuTensorMapEncodeTiled", 12000, 0)
    block = ctypes.create_string_buffer(256)
    place = -(-ctypes.addressof(block) // 128) * 128
    wide, narrow = ctypes.c_uint64 * rank, ctypes.c_uint32 * rank
    return ctypes.CFUNCTYPE(ctypes.c_int)(function)(
        *(ctypes.c_void_p(place), made["type"], rank, ctypes.c_uint64(base + made["address"])),
        *(wide(*made["dims"]), wide(*made["strides"]), narrow(*made["box"])),
        *(narrow(*made["element_strides"]), made["interleave"], made["swizzle"], 2, 0),
    )


def test_the_rules_of_tensor_maps_are_checked(rig: Rig) -> None:
    base = rig.allocate(1 << 23)
    taken = {name: _encode(rig, base, changes) for name, (changes, _) in MAPS.items()}
    assert taken == {name: int(not good) for name, (_, good) in MAPS.items()}
