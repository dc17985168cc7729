"""The context of the calling thread: whatever it is, a call works and leaves it as it was."""

from __future__ import annotations

from typing import Any

import made
import pytest
from rig import NO_PARAMETERS, in_thread

from pallasc.runtime.device.devices import active, current_context, get_device


def _arrays(framework: Any, device: int = 0) -> list[Any]:
    return [framework.tensor("f32[4, 64]", device=device) for _ in range(3)]


@pytest.mark.parametrize(
    ("device", "checks", "warm"), [(0, True, True), (1, False, True), (1, True, False)]
)
def test_a_thread_without_a_context_has_none_after_calls(
    checks: bool, device: int, warm: bool, runtime: Any, framework: Any
) -> None:
    runtime.devices("9.0", "9.0")
    kernel = made.kernel(made.add(), checks=checks)
    a, b, out = _arrays(framework, device)
    if warm:
        with active(get_device(device)):
            for _ in range(2):
                kernel.into(a, b, out=out)
    runtime.clear_log()

    def work() -> list[int]:
        found = []
        for _ in range(4):
            kernel.into(a, b, out=out)
            found.append(current_context())
            kernel(a, b)
            found.append(current_context())
        return found

    assert set(in_thread(work)) == {0}
    assert [launch.device for launch in runtime.launches] == [device] * 8


@pytest.mark.parametrize("checks", [True, False])
def test_another_device_stays_current(checks: bool, runtime: Any, framework: Any) -> None:
    runtime.devices("9.0", "9.0")
    kernel = made.kernel(made.add(), checks=checks)
    a, b, out = _arrays(framework, 0)
    with active(get_device(1)):
        before = current_context()
        for _ in range(3):
            kernel.into(a, b, out=out)
            kernel(a, b)
            assert current_context() == before
    assert {launch.device for launch in runtime.launches} == {0}


def test_a_context_of_the_programs_own_is_no_obstacle(runtime: Any, framework: Any) -> None:
    kernel = made.kernel(made.add())
    a, b, out = _arrays(framework)
    with active(get_device(0)) as driver:
        kernel.into(a, b, out=out)
        own = driver.call("cuCtxCreate", *NO_PARAMETERS, 0, 0, what="a context")
        for _ in range(3):
            kernel.into(a, b, out=out)
        assert current_context() == int(own)
        driver.bindings.cuCtxPopCurrent()
    assert len(runtime.launches) == 4


def test_the_stream_of_a_device_that_is_not_current(runtime: Any, framework: Any) -> None:
    runtime.devices("9.0", "9.0")
    kernel = made.kernel(made.add())
    a, b, out = _arrays(framework, 1)
    with active(get_device(1)) as driver:
        stream = int(driver.call("cuStreamCreate", 1, what="a stream"))
    runtime.configure(strict_context=1)
    with active(get_device(0)):
        before = current_context()
        for _ in range(3):
            kernel.into(a, b, out=out, stream=stream)
        assert current_context() == before
    for _ in range(3):
        kernel.into(a, b, out=out, stream=stream)
    assert current_context() == 0
    assert [launch.stream for launch in runtime.launches] == [stream] * 6
