"""Launches, with the extension and without: refused steps, contexts, and what counts as written."""

from typing import Any

import foreign
import made
import pytest
from rig import NO_PARAMETERS, in_thread

from pallasc.errors import ArgumentError, DriverError
from pallasc.runtime.device.devices import active, current_context, get_device
from pallasc.runtime.opening import Kernels

TEXT = "f32[4, 64]"


@pytest.mark.parametrize("code", [201, 400, 1, 701])
def test_a_refused_step_is_not_tried_again(code: int, runtime: Any, framework: Any) -> None:
    ran = {"two": 0}

    @runtime.kernel("two")
    def double(launch: Any) -> None:
        ran["two"] += 1

    steps = (made.launch("two", 0, 1), made.launch("one", 0))
    kernel = made.kernel(made.artifact(*steps, outputs=["b"]))
    a, b = (framework.tensor(TEXT, values=1) for _ in range(2))
    with active(get_device(0)):
        for _ in range(2):
            ran["two"] = 0
            framework.written.clear()
            runtime.fault("cuLaunchKernelEx", code, nth=2)
            with pytest.raises(DriverError, match=r"step 1 of .*, but the steps before it were"):
                kernel(a, b)
            assert (ran["two"], framework.written) == (1, [b]), "what was written counts"


# ---- a context that the program created


def _own() -> int:
    """Make a context that the program created current."""
    with active(get_device(0)) as driver:
        own = driver.call("cuCtxCreate", *NO_PARAMETERS, 0, 0, what="a context")
        driver.bindings.cuCtxPopCurrent()
    driver.call("cuCtxPushCurrent", own, what="a context")
    return int(own)


@pytest.fixture
def leave() -> Any:
    """Leave the thread without a context, as it was."""
    yield
    from cuda.bindings import driver

    while current_context():
        driver.cuCtxPopCurrent()


@pytest.mark.usefixtures("leave")
def test_a_context_of_the_programs_own_is_refused(runtime: Any, framework: Any) -> None:
    kernel = made.kernel(made.add())
    a, b, out = (framework.tensor(TEXT) for _ in range(3))
    for _ in range(2):
        kernel.into(a, b, out=out)
    count = len(runtime.launches)
    _own()
    for _ in range(2):
        with pytest.raises(ArgumentError, match="context is not the primary context of GPU 0"):
            kernel.into(a, b, out=out)
    assert len(runtime.launches) == count


@pytest.mark.parametrize("checks", [True, False])
@pytest.mark.parametrize("current", [None, 0, 1])
def test_contexts_are_kept(current: int | None, checks: bool, runtime: Any, framework: Any) -> None:
    runtime.devices("9.0", "9.0")
    kernel = made.kernel(made.add(), checks=checks)
    a, b, out = (framework.tensor(TEXT, device=1) for _ in range(3))

    def calls() -> None:
        before = current_context()
        for _ in range(3):
            kernel.into(a, b, out=out)
            kernel(a, b)
            assert current_context() == before

    def work() -> None:
        if current is None:
            return calls()
        with active(get_device(current)):
            calls()

    in_thread(work)
    assert [launch.device for launch in runtime.launches] == [1] * 6


@pytest.mark.parametrize("checks", [True, False])
def test_writes_are_counted(checks: bool, runtime: Any, framework: Any) -> None:
    kernel = made.kernel(made.add(), checks=checks)
    updates = made.kernel(made.artifact(made.launch("two", 0, 1), outputs=["b"]), checks=checks)
    a, b, out = (framework.tensor(TEXT) for _ in range(3))
    other = foreign.CudaArray(framework.tensor(TEXT))
    calls: list[tuple[Any, list[Any]]] = [
        (lambda: kernel.into(a, b, out=out), [out]),
        (lambda: updates(a, b), [b]),
        (lambda: updates.into(a, b), [b]),
        (lambda: kernel.into(a, other, out=out), [out]),
        (lambda: kernel.into(a, b, out=other), []),
    ]
    for call, expected in calls:
        for _ in range(3):
            framework.written.clear()
            call()
            assert framework.written == expected
    for _ in range(2):
        framework.written.clear()
        kernel(a, b)
        assert all(array not in (a, b) for array in framework.written)


def test_variants_with_other_results_are_kept_apart(runtime: Any, framework: Any) -> None:
    runtime.devices("9.0", "10.0")
    entries = [
        ("sum", {}, made.add(target=target, outputs=[text]))
        for target, text in (("h100-sxm", TEXT), ("b200", "f32[8, 32]"))
    ]
    kernel = Kernels(entries)["sum"]
    for _ in range(3):
        for device, shape in enumerate([(4, 64), (8, 32)]):
            a, b = (framework.tensor(TEXT, device=device) for _ in range(2))
            assert kernel(a, b).shape == shape
            out = framework.tensor(f"f32[{shape[0]}, {shape[1]}]", device=device)
            kernel.into(a, b, out=out)
            assert runtime.launches[-1].device == device
