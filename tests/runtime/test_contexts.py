"""The context of the calling thread: whatever it is, a call works and leaves it as it was."""

from __future__ import annotations

from typing import Any

import made
import pytest
from rig import in_thread

from pallasc.runtime.device.devices import active, current_context, get_device


def _arrays(framework: Any, device: int = 0) -> list[Any]:
    return [framework.tensor("f32[4, 64]", device=device) for _ in range(3)]


@pytest.mark.parametrize("checks", [True, False])
@pytest.mark.parametrize("current", [None, 0, 1])
def test_contexts_are_kept(current: int | None, checks: bool, runtime: Any, framework: Any) -> None:
    runtime.devices("9.0", "9.0")
    kernel = made.kernel(made.add(), checks=checks)
    a, b, out = _arrays(framework, 1)

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
