"""Launches on the stand-in: exact parameter bytes, the driver's refusals, kernels in Python."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rig import Rig, attribute, code_of, config_of, cubin, pointer, value_of
from standin import Launch, Standin

CLUSTER, PDL = 4, 6


def _plain(rig: Rig) -> tuple[bytes, bytes, bytes]:
    return pointer(rig.allocate()), bytes(range(128)), struct.pack("<I", 0xDEADBEEF)


def test_every_parameter_byte_is_recorded(standin: Standin, rig: Rig) -> None:
    parameters = _plain(rig)
    stream = value_of(rig.driver.cuStreamCreate(1))
    attributes = [attribute(CLUSTER, 2, 1, 1), attribute(PDL, 1)]
    shape = {"grid": (4, 3, 2), "block": (64, 2, 1), "smem_bytes": 1000, "stream": stream}
    assert rig.launch("plain", parameters, attributes=attributes, **shape) == 0
    [launch] = standin.launches
    assert launch.kernel == "plain"
    assert launch.parameters == parameters
    assert launch.offsets == (0, 48, 176)
    assert (launch.grid, launch.block, launch.cluster) == ((4, 3, 2), (64, 2, 1), (2, 1, 1))
    assert (launch.smem_bytes, launch.stream, launch.device) == (1000, int(stream), 0)
    assert [id_ for id_, _ in launch.attributes] == [CLUSTER, PDL]
    assert launch.pdl


def test_a_missing_parameter_array_is_refused(rig: Rig) -> None:
    function = rig.driver.CUfunction(int(rig.kernel("four")))
    assert code_of(rig.driver.cuLaunchKernelEx(config_of(), function, 0, 0)) == 1
    holes = (ctypes.c_void_p * 4)()
    place = ctypes.addressof(holes)
    assert code_of(rig.driver.cuLaunchKernelEx(config_of(), function, place, 0)) == 1
    nothing = rig.driver.CUfunction(int(rig.kernel("none")))
    assert code_of(rig.driver.cuLaunchKernelEx(config_of(), nothing, 0, 0)) == 0


def _cluster(grid: tuple[int, int, int], *cluster: int) -> dict[str, Any]:
    return {"grid": grid, "attributes": [(CLUSTER, *cluster)]}


# kernel, what to change in the launch, result code
REFUSALS: dict[str, tuple[str, dict[str, Any], int]] = {
    "no blocks": ("none", {"grid": (0, 1, 1)}, 1),
    "a grid too deep": ("none", {"grid": (1, 1, 65536)}, 1),
    "a grid too wide": ("none", {"grid": (1 << 31, 1, 1)}, 1),
    "no threads": ("none", {"block": (1, 0, 1)}, 1),
    "a block too wide": ("none", {"block": (1025, 1, 1)}, 1),
    "a block too deep": ("none", {"block": (1, 1, 65)}, 1),
    "too many threads": ("none", {"block": (512, 2, 2)}, 1),
    "more threads than .maxntid": ("bounded", {"block": (512, 1, 1)}, 701),
    "as many threads as .maxntid": ("bounded", {"block": (256, 1, 1)}, 0),
    "other threads than .reqntid": ("exact", {"block": (32, 1, 1)}, 1),
    "the threads of .reqntid": ("exact", {"block": (64, 1, 1)}, 0),
    "48 kB of shared memory": ("none", {"smem_bytes": 49152}, 0),
    "more shared memory than was allowed": ("none", {"smem_bytes": 49153}, 1),
    "a cluster": ("none", _cluster((8, 1, 1), 8, 1, 1), 0),
    "a cluster of nothing": ("none", _cluster((1, 1, 1), 0, 1, 1), 1),
    "a grid of part clusters": ("none", _cluster((9, 1, 1), 2, 1, 1), 1),
    "a cluster that is not portable": ("none", _cluster((16, 1, 1), 16, 1, 1), 912),
    "no cluster where one is needed": ("ranked", {}, 912),
    "above .maxclusterrank": ("ranked", _cluster((8, 1, 1), 8, 1, 1), 912),
    "up to .maxclusterrank": ("ranked", _cluster((4, 1, 1), 4, 1, 1), 0),
    "another cluster than the kernel's": ("clustered", _cluster((8, 8, 1), 2, 1, 1), 912),
    "the kernel's cluster": ("clustered", _cluster((8, 8, 1), 4, 2, 1), 0),
    "the kernel's cluster, unsaid": ("clustered", {"grid": (8, 8, 1)}, 0),
    "part of the kernel's cluster": ("clustered", {"grid": (8, 1, 1)}, 1),
    "an unknown stream": ("none", {"stream": 0x1234}, 400),
}


@pytest.mark.parametrize(("kernel", "changes", "code"), REFUSALS.values(), ids=REFUSALS)
def test_a_launch_is_checked(rig: Rig, kernel: str, changes: dict[str, Any], code: int) -> None:
    made = {**changes, "attributes": [attribute(*row) for row in changes.get("attributes", ())]}
    assert rig.launch(kernel, **made) == code
    assert rig.synchronize() == 0


def test_many_registers_leave_room_for_few_threads(rig: Rig) -> None:
    most = value_of(
        rig.driver.cuKernelGetAttribute(_function_attribute(rig, 0), rig.kernel("hungry"), 0)
    )
    assert most < 512
    parameters = [pointer(rig.allocate())]
    assert rig.launch("hungry", parameters, block=(most, 1, 1)) == 0
    assert rig.launch("hungry", parameters, block=(most + 32, 1, 1)) == 701


def _function_attribute(rig: Rig, number: int) -> Any:
    return rig.driver.CUfunction_attribute(number)


@pytest.mark.parametrize("attributes", [[(CLUSTER, 2, 1, 1)], [(PDL, 1)]])
def test_attributes_of_hopper_are_refused_before_it(standin: Standin, attributes: Any) -> None:
    standin.devices("8.0")
    rig = Rig(standin, cubin("sm_80")).start()
    made = [attribute(*row) for row in attributes]
    assert rig.launch("none", grid=(2, 1, 1), attributes=made) == 801


def test_a_large_cluster_is_allowed_where_the_kernel_says_so(rig: Rig) -> None:
    kernel = rig.kernel("none")
    cluster = [attribute(CLUSTER, 16, 1, 1)]
    allow = rig.driver.cuKernelSetAttribute
    assert code_of(allow(_function_attribute(rig, 14), 1, kernel, 0)) == 0
    assert rig.launch("none", grid=(16, 1, 1), attributes=cluster) == 0
    cluster = [attribute(CLUSTER, 32, 1, 1)]
    assert rig.launch("none", grid=(32, 1, 1), attributes=cluster) == 912


def test_shared_memory_is_allowed_up_to_the_opt_in_limit(rig: Rig) -> None:
    kernel, driver = rig.kernel("plain"), rig.driver
    dynamic, static = _function_attribute(rig, 8), _function_attribute(rig, 1)
    assert value_of(driver.cuKernelGetAttribute(static, kernel, 0)) == 512
    assert value_of(driver.cuKernelGetAttribute(dynamic, kernel, 0)) == 49152 - 512
    most = 232448 - 512
    assert code_of(driver.cuKernelSetAttribute(dynamic, most + 1, kernel, 0)) == 1
    assert code_of(driver.cuKernelSetAttribute(dynamic, -1, kernel, 0)) == 1
    assert code_of(driver.cuKernelSetAttribute(dynamic, most, kernel, 0)) == 0
    assert rig.launch("plain", _plain(rig), smem_bytes=most) == 0


@pytest.mark.parametrize(
    ("attribute_number", "value", "kernel", "code"),
    [
        (4, 32, "none", 1),
        (0, 32, "none", 1),
        (16, 1, "none", 1),
        (9, 101, "none", 1),
        (9, 100, "none", 0),
        (14, 2, "none", 1),
        (11, 4, "clustered", 800),
        (11, -1, "none", 1),
        (15, 3, "none", 1),
    ],
)
def test_attributes_of_a_kernel_are_checked(
    rig: Rig, attribute_number: int, value: int, kernel: str, code: int
) -> None:
    set_ = rig.driver.cuKernelSetAttribute
    assert (
        code_of(set_(_function_attribute(rig, attribute_number), value, rig.kernel(kernel), 0))
        == code
    )
    assert code_of(set_(_function_attribute(rig, 9), 50, rig.kernel(kernel), 7)) == 101


def test_attributes_of_a_kernel_belong_to_one_device(standin: Standin) -> None:
    standin.devices("9.0", "9.0")
    rig = Rig(standin, cubin("sm_90a")).start()
    kernel, dynamic = rig.kernel("none"), _function_attribute(rig, 8)
    assert code_of(rig.driver.cuKernelSetAttribute(dynamic, 100_000, kernel, 0)) == 0
    assert rig.launch("none", smem_bytes=100_000) == 0
    rig.use(1)
    assert rig.launch("none", smem_bytes=100_000) == 1


def test_a_kernel_runs_in_the_context_of_the_stream_and_a_function_only_in_its_own(
    standin: Standin,
) -> None:
    standin.devices("9.0", "9.0")
    rig = Rig(standin, cubin("sm_90a")).start()
    function = value_of(rig.driver.cuKernelGetFunction(rig.kernel("none")))
    rig.use(1)
    stream = value_of(rig.driver.cuStreamCreate(0))
    assert rig.launch(function) == 400
    rig.use(0)
    assert rig.launch("none", stream=stream) == 0
    assert rig.launch(function, stream=stream) == 400
    assert [launch.device for launch in standin.launches] == [1]


def test_a_thread_without_a_context_can_launch_on_a_stream_unless_told_otherwise(
    standin: Standin, rig: Rig
) -> None:
    stream = value_of(rig.driver.cuStreamCreate(1))
    function = value_of(rig.driver.cuKernelGetFunction(rig.kernel("none")))
    assert code_of(rig.driver.cuCtxSetCurrent(0)) == 0
    for target in ("none", function):
        assert rig.launch(target, stream=stream) == 0
        assert rig.launch(target) == 201
    standin.configure(strict_context=1)
    assert rig.launch("none", stream=stream) == 201


def test_occupancy_follows_the_limits(rig: Rig) -> None:
    driver = rig.driver
    function = value_of(driver.cuKernelGetFunction(rig.kernel("none")))
    config = config_of(grid=(8, 1, 1), block=(1024, 1, 1), attributes=[attribute(CLUSTER, 8, 1, 1)])
    assert value_of(driver.cuOccupancyMaxActiveClusters(function, config)) == 2 * 132 // 8
    assert value_of(driver.cuOccupancyMaxPotentialClusterSize(function, config_of())) == 8
    assert value_of(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, 1024, 0)) == 2
    config = config_of(attributes=[attribute(CLUSTER, 2, 1, 1)])
    assert code_of(driver.cuOccupancyMaxActiveClusters(function, config)) == 1
    assert value_of(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, 32, 0)) == 32


SHAPE = [3, 2, 1, 32, 1, 1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("changed", [None, "data", "last byte", "grid", "attributes", "device"])
def test_every_launch_is_compared_with_what_is_expected(
    standin: Standin, rig: Rig, changed: str | None
) -> None:
    first, others = rig.allocate(), rig.allocate()
    parameters = list(map(pointer, (first, others, others, others)))
    data, shape = bytearray(b"".join(parameters)), list(SHAPE)
    if changed in ("data", "last byte"):
        data[8 if changed == "data" else -1] ^= 1
    if changed in ("grid", "attributes"):
        shape[1 if changed == "grid" else -1] += 1
    standin.expect(bytes(data), shape, device=int(changed == "device"))
    for _ in range(2):
        assert rig.launch("four", parameters, grid=(3, 2, 1)) == 0
    assert standin.unexpected == 2 * (changed is not None)
    assert standin.seen(first) == 2 * (changed is None)
    assert rig.launch("four", list(map(pointer, (others, first, others, others)))) == 0
    assert standin.unexpected == 2 * (changed is not None) + 1


def test_a_python_function_is_the_kernel(standin: Standin, rig: Rig) -> None:
    @standin.kernel("four")
    def add(launch: Launch) -> None:
        a, b, total = (launch.array(i, "float32", (1000,)) for i in range(3))
        np.add(a, b, out=total)

    first, second = np.arange(1000, dtype=np.float32), np.full(1000, 2, np.float32)
    places = [rig.allocate() for _ in range(4)]
    for place, array in zip(places, (first, second), strict=False):
        assert code_of(rig.driver.cuMemcpyHtoD(place, array.ctypes.data, array.nbytes)) == 0
    assert rig.launch("four", list(map(pointer, places))) == 0
    result = np.empty_like(first)
    assert code_of(rig.driver.cuMemcpyDtoH(result.ctypes.data, places[2], result.nbytes)) == 0
    np.testing.assert_array_equal(result, first + second)


def test_an_exception_in_the_kernel_is_a_launch_failure(standin: Standin, rig: Rig) -> None:
    @standin.kernel()
    def fail(launch: Launch) -> None:
        raise ZeroDivisionError("in the kernel")

    assert rig.launch("none") == 0
    assert rig.synchronize() == 719
    with pytest.raises(ZeroDivisionError, match="in the kernel"):
        standin.check()


def test_a_kernel_can_fail_with_any_code_and_breaks_the_context(standin: Standin, rig: Rig) -> None:
    standin.kernel("none")(lambda launch: 710)
    assert rig.launch("none") == 0
    assert rig.launch("none") == 0, "nothing has waited for the device yet"
    assert rig.synchronize() == 710
    assert rig.launch("none") == 710
    assert code_of(rig.driver.cuMemAlloc(16)) == 710
    assert [launch.code for launch in standin.launches] == [710, 710]


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
