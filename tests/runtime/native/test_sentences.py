"""What C says when something fails is what Python says: same words, same hint, same kind of error.

Where Python chooses between variants it says so first; the reason behind it is the same.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import made
import native_comparison
import pytest
import standin as control
from native_plans import PAIR, matrices

from pallasc.errors import ArgumentError, DeviceError, PallascError
from pallasc.runtime.calls.plain import PlainSteps
from pallasc.runtime.device import devices
from pallasc.runtime.device.devices import get_device
from pallasc.runtime.matching.candidates import Candidate
from pallasc.runtime.matching.selection import arch_refusal
from pallasc.runtime.native.library import Library, NativePlan
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.flat_plan import flat_plan
from pallasc.specs.artifacts.plan import Copy, Fill
from pallasc.specs.gpus import ARCHITECTURES


def _open(native: Library, artifact: Artifact) -> NativePlan:
    return native.open(flat_plan(artifact, name=Candidate("made", {}, artifact).id))


def _by_python(artifact: Artifact, addresses: list[int]) -> None:
    """Prepare and launch through cuda-python."""
    made.forget()
    PlainSteps(Candidate("made", {}, artifact), get_device(0)).launch(addresses)


def _by_c(native: Library, artifact: Artifact, addresses: list[int]) -> None:
    native.functions.pallasc_forget()
    plan = _open(native, artifact)
    plan.prepare(0)
    plan.launch(addresses)


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


def _steps() -> Artifact:
    return made.artifact(Fill(2, 0, 64), made.launch("three", 0, 1, 2), Copy(0, 0, 2, 256, 128))


CLUSTERS = made.launch("one", 0, grid=(16, 1, 1), cluster=(16, 1, 1))
IN_WORDS = (
    (*(code for code, *_ in devices.rows("START")), 1),
    (*devices.rows("STICKY")[0], *(code for code, _ in devices.rows("RESULT")), 4),
)
"""Answers of cuInit, and of a launch, that have their own words; the last has none."""

# Artifact, and options of the driver, or the call that fails: function, answer, which call.
FAILURES: dict[str, tuple[Callable[[], Artifact], Any]] = {
    **{f"cuInit answers {code}": (made.add, {"init_code": code}) for code in IN_WORDS[0]},
    "an old driver": (made.add, {"driver_version": 11080}),
    "GPUs cannot be counted": (made.add, ("cuDeviceGetCount", 999, 1)),
    "a GPU cannot be read": (made.add, ("cuDeviceGetAttribute", 999, 2)),
    "no context": (made.add, ("cuDevicePrimaryCtxRetain", 2, 1)),
    "a context cannot be current": (made.add, ("cuCtxPushCurrent_v2", 201, 1)),
    "captures cannot be left": (made.add, ("cuThreadExchangeStreamCaptureMode", 1, 1)),
    "a cubin cannot be loaded": (made.add, ("cuLibraryLoadData", 200, 1)),
    "a kernel cannot be found": (made.add, ("cuLibraryGetKernel", 500, 1)),
    "parameters cannot be read": (made.add, ("cuKernelGetParamInfo", 700, 2)),
    "a kernel has more parameters": (made.add, ("cuKernelGetParamInfo", 1, 3)),
    "shared memory cannot be raised": (
        lambda: made.artifact(made.launch("one", 0, dynamic_smem_bytes=200_000)),
        ("cuKernelSetAttribute", 1, 1)),
    **{
        what: (lambda: made.artifact(CLUSTERS), (function, code, 1))
        for what, function, code in (
            ("clusters cannot be allowed", "cuKernelGetAttribute", 209),
            ("clusters cannot be counted", "cuOccupancyMaxActiveClusters", 719),
            ("a cluster that does not fit", "cuOccupancyMaxActiveClusters", 912),
        )
    },
    "a function cannot be had": (made.add, ("cuKernelGetFunction", 209, 1)),
    "code cannot be copied": (made.add, ("cuFuncLoad", 2, 1)),
    **{
        what: (
            lambda: made.artifact(made.launch("two", 2, 3), constants=(b"x" * 64,)),
            (function, code, 1))
        for what, function, code in (
            ("constants without room", "cuMemAlloc_v2", 2),
            ("constants cannot be copied", "cuMemcpyHtoDAsync_v2", 719),
            ("constants never arrive", "cuStreamSynchronize", 716),
            ("no stream", "cuStreamCreate", 2),
        )
    },
    "a map is refused": (
        lambda: made.artifact(made.launch("mapped", 1, PAIR), inputs=matrices()),
        ("cuTensorMapEncodeTiled", 1, 2)),
    **{f"a launch answers {code}": (made.add, ("cuLaunchKernelEx", code, 1))
       for code in IN_WORDS[1]},
    "the first step": (_steps, ("cuMemsetD8Async", 1, 1)),
    "the second step": (_steps, ("cuLaunchKernelEx", 701, 1)),
    "the last step": (_steps, ("cuMemcpyDtoDAsync_v2", 2, 1)),
    "the only step": (lambda: made.artifact(Copy(0, 0, 2, 0, 8)), ("cuMemcpyDtoDAsync_v2", 1, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
def test_c_says_what_python_says(name: str, native: Library, runtime: control.Standin) -> None:
    make, failure = FAILURES[name]
    artifact = make()
    count = len(Candidate("made", {}, artifact).signature.passed)
    said = []
    for work in (_by_python, partial(_by_c, native)):
        runtime.reset()
        runtime.configure(check_pointers=0)
        native_comparison.memory().adopt(runtime, 1 << 24)
        if isinstance(failure, dict):
            runtime.configure(**failure)
        else:
            function, code, nth = failure
            runtime.fault(function, code, nth=nth)
        said.append(_said(lambda work=work: work(artifact, _apart(count))))
    assert said[1] == said[0]


_IN_PLACE = {"outputs": ("a",)}


@pytest.mark.parametrize(
    ("changes", "addresses"),
    [
        ({}, [1 << 20, (2 << 20) + 16, 3 << 20]),
        ({}, [1 << 20, 2 << 20, (3 << 20) + 8]),
        ({}, [1 << 20, 2 << 20, (1 << 20) + 512]),
        ({}, [1 << 20, 2 << 20, (1 << 20) - 512]),
        ({}, [1 << 20, 2 << 20, None]),
        (_IN_PLACE, [1 << 20, (1 << 20) + 256]),
        (_IN_PLACE, [(1 << 20) + 256, 1 << 20]),
    ],
)
def test_wrong_addresses_are_refused_in_the_same_words(
    changes: Any, addresses: list[int | None], native: Library, runtime: control.Standin
) -> None:
    artifact = made.artifact(made.launch("two", 0, 1), **changes)
    passed = [0 if offset is None else _at(offset)[0] for offset in addresses]
    python = _said(lambda: _by_python(artifact, passed))
    runtime.reset()
    c = _said(lambda: _by_c(native, artifact, passed))
    assert c == python
    assert c[0] is ArgumentError
    assert runtime.launches == []


@pytest.mark.parametrize("suffix", ["", "a", "f"])
def test_c_runs_code_where_python_does(
    suffix: str, native: Library, runtime: control.Standin
) -> None:
    capabilities = list(ARCHITECTURES)
    for own in capabilities:
        arch = f"sm_{own[0]}{own[1]}{suffix}"
        image = bytearray(made.cubin())
        image[49] = 10 * own[0] + own[1]  # of the flags, which say what it is for
        artifact = made.artifact(made.launch("one", 0), code=bytes(image), arch=arch)
        for here in capabilities:
            runtime.reset()
            native.functions.pallasc_forget()
            runtime.devices(f"{here[0]}.{here[1]}")
            reason, told = arch_refusal(arch, *here), ""
            try:
                _open(native, artifact).prepare(0)
            except DeviceError as error:
                told = error.message
            refusal = "cannot run on" if reason is None else f": {reason}."
            assert (refusal in told) == (reason is not None), (arch, here, told)


def test_a_wrong_use_of_the_library_is_told(native: Library, runtime: control.Standin) -> None:
    plan = _open(native, made.artifact(made.launch("two", 0, 3), temporaries=(100,)))
    for device in (0, -1, 64):
        said = _said(lambda device=device: plan.launch(_apart(3), device=device))
        assert said[:3] == (
            ArgumentError,
            f"made@h100-sxm is not prepared on GPU {device}.",
            "Call pallasc_prepare for this device before.",
        )
    plan.prepare(0)
    with pytest.raises(ArgumentError, match=r"takes 3 buffers, not 2\."):
        plan.launch(_apart(2))
    for workspace in (0, 1 << 20 | 128):
        with pytest.raises(ArgumentError, match="needs 256 bytes of workspace"):
            plan.launch(_apart(3), workspace=workspace)
