"""Many threads, two devices: no wrong byte."""

from __future__ import annotations

import threading
from typing import Any

import made
import pytest

_THREADS = 8
_LAUNCHES = 10_000


@pytest.mark.parametrize("checks", [True, False])
def test_eight_threads_launch_on_two_devices_with_their_own_addresses(
    checks: bool, runtime: Any, framework: Any
) -> None:
    runtime.devices("9.0", "9.0")
    kernel = made.kernel(made.artifact(made.launch("mapped", 0, _maps()), outputs=["f16[32, 64]"],
                                       inputs={"a": "f16[32, 64]"}), checks=checks)  # fmt: skip
    started = threading.Barrier(_THREADS)
    wrong: list[str] = []

    def work(number: int) -> None:
        try:
            started.wait()
            _launch_many(kernel, framework, number)
        except BaseException as error:
            wrong.append(repr(error))

    runtime.configure(log=0)
    problems = _watch(runtime)
    threads = [threading.Thread(target=work, args=(n,)) for n in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert problems == []
    assert runtime.count("cuLaunchKernelEx") == _THREADS * _LAUNCHES


def _maps() -> Any:
    return made.maps(*[made.tensor_map(1)] * 4)


def _launch_many(kernel: Any, framework: Any, number: int) -> None:
    device = number % 2
    pairs = [
        tuple(framework.tensor("f16[32, 64]", device=device) for _ in range(2)) for _ in range(40)
    ]
    for turn in range(_LAUNCHES):
        a, out = pairs[(turn * 7 + number) % len(pairs)]
        _PAIRS[a.pointer] = (out.pointer, device)
        kernel.into(a, out=out)


_PAIRS: dict[int, tuple[int, int]] = {}


def _watch(runtime: Any) -> list[str]:
    """Compare every launch with what its thread passed: pointer, tensor maps, device."""
    problems: list[str] = []
    seen = 0

    @runtime.kernel("mapped")
    def look(launch: Any) -> None:
        nonlocal seen
        seen += 1
        expected = _PAIRS.get(launch.pointer(0))
        if expected is None or expected[1] != launch.device:
            problems.append(f"{launch.pointer(0):#x} on device {launch.device}")
        elif seen % 50 == 0:
            addresses = {found.address for _, found in launch.maps(1)}
            if addresses != {expected[0]}:
                problems.append(f"maps of {addresses}")

    return problems
