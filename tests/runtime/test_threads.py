"""Many threads, two devices: no wrong byte."""

from __future__ import annotations

import os
import threading
from pathlib import Path
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


_FORK = """
import os, sys, threading
import made, standin
driver = standin.load()
driver.reset()
framework = made.install()
kernel = made.kernel(made.add())
wrong, counted = [], []

@driver.kernel("three")
def look(launch):
    a, b, out = (launch.pointer(n) for n in range(3))
    counted.append(1)
    if pairs.get(a) != (b, out):
        wrong.append((a, b, out))

rows = [[framework.tensor("f32[4, 64]") for _ in range(3)] for _ in range(8)]
pairs = {a.pointer: (b.pointer, out.pointer) for a, b, out in rows}

def work():
    for turn in range(2000):
        a, b, out = rows[turn % 8]
        kernel.into(a, b, out=out)

kernel.into(*rows[0][:2], out=rows[0][2])
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
children = []
for _ in range(5):
    child = os.fork()
    if child == 0:
        try:
            kernel.into(*rows[0][:2], out=rows[0][2])
            code = 1
        except Exception as error:
            code = 42 if "was forked from one that uses the GPU" in str(error) else 2
        os._exit(code)
    children.append(child)
for thread in threads: thread.join()
codes = {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children}
print(len(counted), wrong, codes)
"""


def test_a_fork_in_the_middle_refuses_in_the_child_and_harms_no_launch(
    fresh_process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))
    done = fresh_process(_FORK)
    assert done.stdout == f"{4 * 2000 + 1} [] {{42}}\n", done.stderr
