"""What C says when something fails is what Python says: same words, same hint, same kind of error.

Where Python chooses between variants it says so first; the reason behind it is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import made
import native_comparison
import pytest
import standin as control
from native_calls import NO_STEP, launch_from
from native_plans import PAIR, matrices

from pallasc.errors import ArgumentError, DeviceError, DriverError, OutOfMemoryError, PallascError
from pallasc.runtime.calls.plain import PlainSteps
from pallasc.runtime.device import devices
from pallasc.runtime.device.devices import get_device
from pallasc.runtime.matching.candidates import Candidate
from pallasc.runtime.matching.selection import arch_refusal, device_refusal
from pallasc.runtime.native.library import Library, NativePlan
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.flat_plan import flat_plan
from pallasc.specs.artifacts.plan import Copy, Fill
from pallasc.specs.gpus import ARCHITECTURES

Setup = Callable[[control.Standin], None]


def _open(native: Library, artifact: Artifact) -> NativePlan:
    return native.open(flat_plan(artifact, name=Candidate("made", {}, artifact).id))


def _by_python(artifact: Artifact, addresses: Callable[[int], list[int]]) -> None:
    """Prepare and launch through cuda-python."""
    made.forget()
    candidate = Candidate("made", {}, artifact)
    device = get_device(0)
    steps = PlainSteps(candidate, device)
    steps.launch(addresses(len(candidate.signature.passed)))


def _by_c(native: Library, artifact: Artifact, addresses: Callable[[int], list[int]]) -> None:
    native.forget()
    plan = _open(native, artifact)
    plan.prepare(0)
    plan.launch(addresses(len(Candidate("made", {}, artifact).signature.passed)))


def _at(*offsets: int) -> list[int]:
    """Return addresses in memory of the device."""
    return [native_comparison.memory().start + offset for offset in offsets]


def _apart(count: int) -> list[int]:
    return _at(*(n << 20 for n in range(count)))


def _said(work: Callable[[], None]) -> tuple[type[PallascError], str, str | None, int | None]:
    with pytest.raises(PallascError) as caught:
        work()
    error = caught.value
    return type(error), error.message, error.hint, getattr(error, "code", None)


def _add() -> Artifact:
    return made.add()


def _steps() -> Artifact:
    return made.artifact(Fill(2, 0, 64), made.launch("three", 0, 1, 2), Copy(0, 0, 2, 256, 128))


def _clusters() -> Artifact:
    return made.artifact(made.launch("one", 0, grid=(16, 1, 1), cluster=(16, 1, 1)))


def _shared() -> Artifact:
    return made.artifact(made.launch("one", 0, dynamic_smem_bytes=200_000))


def _mapped() -> Artifact:
    return made.artifact(made.launch("mapped", 1, PAIR), inputs=matrices())


def _constants() -> Artifact:
    return made.artifact(made.launch("two", 2, 3), constants=(b"x" * 64,))


def _in_place() -> Artifact:
    return made.artifact(made.launch("two", 0, 1), outputs=("a",))


def _fault(function: str, code: int, nth: int = 1) -> Setup:
    return lambda driver: driver.fault(function, code, nth=nth)


def _configure(**options: int) -> Setup:
    return lambda driver: driver.configure(**options)


FAILURES: dict[str, tuple[Callable[[], Artifact], Setup]] = {
    **{
        f"cuInit answers {code}": (_add, _configure(init_code=code))
        for code in (*sorted(devices.INIT_REASONS), 1)
    },
    "an old driver": (_add, _configure(driver_version=11080)),
    "a driver older than the cubin": (
        lambda: made.add(minimum_driver={"cuda": "12.0", "linux": "525.60.13"}),
        _configure(driver_version=12080)),
    "no GPU": (_add, lambda driver: driver.devices()),
    "GPUs cannot be counted": (_add, _fault("cuDeviceGetCount", 999)),
    "a GPU cannot be read": (_add, _fault("cuDeviceGetAttribute", 999, nth=2)),
    "no context": (_add, _fault("cuDevicePrimaryCtxRetain", 2)),
    "a context cannot be current": (_add, _fault("cuCtxPushCurrent_v2", 201)),
    "captures cannot be left": (_add, _fault("cuThreadExchangeStreamCaptureMode", 1)),
    "a cubin cannot be loaded": (_add, _fault("cuLibraryLoadData", 200)),
    "a kernel cannot be found": (_add, _fault("cuLibraryGetKernel", 500)),
    "parameters cannot be read": (_add, _fault("cuKernelGetParamInfo", 700, nth=2)),
    "a kernel has more parameters": (_add, _fault("cuKernelGetParamInfo", 1, nth=3)),
    "shared memory cannot be raised": (_shared, _fault("cuKernelSetAttribute", 1)),
    "clusters cannot be allowed": (_clusters, _fault("cuKernelGetAttribute", 209)),
    "clusters cannot be counted": (_clusters, _fault("cuOccupancyMaxActiveClusters", 719)),
    "a cluster that does not fit": (_clusters, _fault("cuOccupancyMaxActiveClusters", 912)),
    "a function cannot be had": (_add, _fault("cuKernelGetFunction", 209)),
    "code cannot be copied": (_add, _fault("cuFuncLoad", 2)),
    "constants without room": (_constants, _fault("cuMemAlloc_v2", 2)),
    "constants cannot be copied": (_constants, _fault("cuMemcpyHtoDAsync_v2", 719)),
    "constants never arrive": (_constants, _fault("cuStreamSynchronize", 716)),
    "no stream": (_constants, _fault("cuStreamCreate", 2)),
    "a map is refused": (_mapped, _fault("cuTensorMapEncodeTiled", 1, nth=2)),
    **{
        f"a launch answers {code}": (_add, _fault("cuLaunchKernelEx", code))
        for code in (*sorted(devices.HINTS), 4)
    },
    "the first step": (_steps, _fault("cuMemsetD8Async", 1)),
    "the second step": (_steps, _fault("cuLaunchKernelEx", 701)),
    "the last step": (_steps, _fault("cuMemcpyDtoDAsync_v2", 2)),
    "the only step": (lambda: made.artifact(Copy(0, 0, 2, 0, 8)),
                      _fault("cuMemcpyDtoDAsync_v2", 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
def test_c_says_what_python_says(name: str, native: Library, runtime: control.Standin) -> None:
    make, prepare = FAILURES[name]
    artifact = make()
    said = []
    for work in (_by_python, lambda *of: _by_c(native, *of)):
        runtime.reset()
        runtime.configure(check_pointers=0)
        native_comparison.memory().adopt(runtime, 1 << 24)
        prepare(runtime)
        said.append(_said(lambda work=work: work(artifact, _apart)))
    assert said[1] == said[0]


@pytest.mark.parametrize(
    ("make", "addresses"),
    [
        (_add, [1 << 20, (2 << 20) + 16, 3 << 20]),
        (_add, [1 << 20, 2 << 20, (3 << 20) + 8]),
        (_add, [1 << 20, 2 << 20, (1 << 20) + 512]),
        (_add, [1 << 20, 2 << 20, (1 << 20) - 512]),
        (_add, [1 << 20, 2 << 20, 2 << 20]),
        (_in_place, [1 << 20, (1 << 20) + 256]),
        (_in_place, [(1 << 20) + 256, 1 << 20]),
    ],
)
def test_wrong_addresses_are_refused_in_the_same_words(
    make: Callable[[], Artifact], addresses: list[int], native: Library, runtime: control.Standin
) -> None:
    artifact = make()
    python = _said(lambda: _by_python(artifact, lambda _: _at(*addresses)))
    runtime.reset()
    c = _said(lambda: _by_c(native, artifact, lambda _: _at(*addresses)))
    assert c == python
    assert c[0] is ArgumentError
    assert runtime.launches == []


def test_an_address_of_zero_is_refused_in_the_same_words(
    native: Library, runtime: control.Standin
) -> None:
    addresses = _at(1 << 20, 2 << 20)
    python = _said(lambda: _by_python(_add(), lambda _: [*addresses, 0]))
    runtime.reset()
    c = _said(lambda: _by_c(native, _add(), lambda _: [*addresses, 0]))
    assert c == python
    assert c[:2] == (ArgumentError, "made@h100-sxm: out has 1024 bytes, and its address is 0.")
    assert runtime.launches == []


@pytest.mark.parametrize("suffix", ["", "a", "f"])
def test_c_runs_code_where_python_does(
    suffix: str, native: Library, runtime: control.Standin
) -> None:
    capabilities = [row.capability for row in ARCHITECTURES.values()]
    differing = []
    for own in capabilities:
        arch = f"sm_{own[0]}{own[1]}{suffix}"
        image = _cubin_for(own)
        artifact = made.artifact(made.launch("one", 0), code=image, arch=arch)
        for here in capabilities:
            runtime.reset()
            native.forget()
            runtime.devices(f"{here[0]}.{here[1]}")
            plan = _open(native, artifact)
            reason = arch_refusal(arch, *here)
            try:
                plan.prepare(0)
                told = None
            except DeviceError as error:
                told = error.message
            if reason is not None and (told is None or f": {reason}." not in told):
                differing.append((arch, here, reason, told))
            if reason is None and told is not None and "cannot run on" in told:
                differing.append((arch, here, reason, told))
    assert differing == []


def _cubin_for(capability: tuple[int, int]) -> bytes:
    """Return a cubin whose flags say that it is for an architecture."""
    data = bytearray(made.cubin())
    data[49] = 10 * capability[0] + capability[1]
    return bytes(data)


@pytest.mark.parametrize(
    ("change", "grid", "device"),
    [
        ({"minimum_driver": {"cuda": "13.3", "linux": "610.43.02"}}, 1, {}),
        ({}, 132, {"sms": 100}),
        ({}, 2000, {"sms": 100}),
    ],
)
def test_what_selection_refuses_is_refused_with_its_reason(
    change: dict[str, Any], grid: int, device: dict[str, int], native: Library,
    runtime: control.Standin,
) -> None:  # fmt: skip
    launch = made.launch("one", 0, grid=(grid, 1, 1), dynamic_smem_bytes=200_000)
    artifact = made.artifact(launch, **change)
    runtime.devices(control.Device("9.0", **device))
    reason = device_refusal(Candidate("made", {}, artifact), get_device(0))
    made.forget()
    plan = _open(native, artifact)
    if reason is None:
        plan.prepare(0)
        return
    kind, message, _, _ = _said(lambda: plan.prepare(0))
    assert kind is DeviceError
    assert message == (f"made@h100-sxm cannot run on GPU 0 (Stand-in H100, sm_90): {reason}.")


def test_a_launch_before_it_is_prepared_is_told(native: Library, runtime: control.Standin) -> None:
    plan = _open(native, made.add())
    for device in (0, -1, 64):
        said = _said(lambda device=device: plan.launch(_apart(3), device=device))
        assert said[:3] == (
            ArgumentError,
            f"made@h100-sxm is not prepared on GPU {device}.",
            "Call pallasc_prepare for this device before.",
        )


def test_counts_workspace_and_first_step_are_checked(
    native: Library, runtime: control.Standin
) -> None:
    artifact = made.artifact(made.launch("two", 0, 3), temporaries=(100,))
    plan = _open(native, artifact)
    plan.prepare(0)
    with pytest.raises(ArgumentError, match=r"takes 3 buffers, not 2\."):
        plan.launch(_apart(2))
    for workspace in (0, 1 << 20 | 128):
        with pytest.raises(ArgumentError, match="needs 256 bytes of workspace"):
            plan.launch(_apart(3), workspace=workspace)
    plan = _open(native, _add())
    plan.prepare(0)
    with pytest.raises(ArgumentError, match="has 1 steps, and there is no step 1"):
        launch_from(native, plan, _apart(3), 1)


def test_a_launch_goes_on_at_the_step_that_failed(
    native: Library, runtime: control.Standin
) -> None:
    native_comparison.memory().adopt(runtime, 1 << 24)
    plan = _open(native, _steps())
    plan.prepare(0)
    runtime.configure(check_pointers=0)
    with pytest.raises(ArgumentError) as before:
        launch_from(native, plan, _at(8, 16, 24), 0)
    assert before.value.__notes__ == [str(NO_STEP)]
    runtime.fault("cuLaunchKernelEx", 2)
    with pytest.raises(OutOfMemoryError) as caught:
        launch_from(native, plan, _apart(3), 0)
    assert caught.value.__notes__ == ["1"]
    runtime.fault("cuMemcpyDtoDAsync_v2", 1)
    with pytest.raises(DriverError):
        launch_from(native, plan, _apart(3), 1)
    runtime.clear_faults()
    runtime.clear_log()
    assert launch_from(native, plan, _apart(3), 2) == NO_STEP
    names = [call.name for call in runtime.calls() if "Ctx" not in call.name]
    assert names == ["cuMemcpyDtoDAsync_v2"]
