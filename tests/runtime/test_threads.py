"""Many threads, two devices, forks in between: no wrong byte."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

_THREADS = 8
_LAUNCHES = 10_000

_PROGRAM = """
import os, sys, threading
import made, standin

threads, launches, checks = (int(word) for word in sys.argv[1:])
driver = standin.load()
driver.reset()
driver.devices("9.0", "9.0")
framework = made.install()
maps = made.maps(*[made.tensor_map(1)] * 4)
step = made.launch("mapped", 0, maps)
artifact = made.artifact(step, outputs=["f16[32, 64]"], inputs={"a": "f16[32, 64]"})
kernel = made.kernel(artifact, checks=bool(checks))
kernel.preload("cuda:0")
kernel.preload("cuda:1")
driver.configure(log=0)

PAIRS = 40
pairs = [
    [[framework.tensor("f16[32, 64]", device=number % 2) for _ in range(2)] for _ in range(PAIRS)]
    for number in range(threads)
]
for number, own in enumerate(pairs):
    for a, out in own:
        driver.expect(a.pointer, out.pointer, number % 2)
gate = threading.Barrier(threads + 1)
failed = []

def work(number):
    try:
        gate.wait()
        for turn in range(launches):
            a, out = pairs[number][(turn * 7 + number) % PAIRS]
            kernel.into(a, out=out)
    except BaseException as error:
        failed.append(repr(error))

running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
for one in running:
    one.start()
gate.wait()
children = []
for _ in range(5):
    child = os.fork()
    if child == 0:
        try:
            kernel.into(pairs[0][0][0], out=pairs[0][0][1])
            code = 1
        except Exception as error:
            code = 42 if "was forked from one that uses the GPU" in str(error) else 2
        os._exit(code)
    children.append(child)
for one in running:
    one.join()
codes = {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children}
seen = [sum(driver.seen(a.pointer) for a, _ in own) for own in pairs]
print(failed, codes, driver.unexpected, seen == [launches] * threads)
"""


@pytest.mark.parametrize("checks", [True, False])
def test_threads_launch_on_two_devices_while_the_process_forks(
    checks: bool, fresh_process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every launch is compared by the stand-in: its device, its pointer, its four tensor maps."""
    here = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))
    words = (str(_THREADS), str(_LAUNCHES), str(int(checks)))
    done = fresh_process(_PROGRAM, *words, timeout_s=300)
    assert done.stdout == "[] {42} 0 True\n", done.stderr
