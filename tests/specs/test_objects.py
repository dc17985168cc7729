"""Attributes that are computed when they are asked for, and the garbage collector."""

import subprocess
import sys

import pytest

from pallasc.specs.artifacts import cached_property


def run(program: str) -> str:
    command = [sys.executable, "-P", "-W", "ignore", "-c", program]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


_FORKS = """
import os, signal, threading
from pallasc.specs.artifacts import cached_property

inside, go = threading.Event(), threading.Event()

class Slow:
    @cached_property
    def value(self):
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            go.wait()
        return 7

slow = Slow()
thread = threading.Thread(target=lambda: slow.value)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    signal.alarm(300)
    print(slow.value, Slow().value, flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1])
go.set()
thread.join()
"""


def test_a_fork_while_another_thread_computes_does_not_stop_the_child() -> None:
    assert run(_FORKS) == "7 7\n0\n"


_COLLECTOR = """
import gc
from pallasc.compiler.inputs.process_snapshot import collector_past

with collector_past():
    assert not gc.isenabled()
    kept = [[number] for number in range(1000)]
assert gc.isenabled()
assert gc.get_freeze_count() > 1000
known = {id(item) for item in gc.get_objects()}
assert not any(id(item) in known for item in kept)
cycle = []
cycle.append(cycle)
del cycle
assert gc.collect() > 0
"""


def test_what_lasts_is_not_walked_and_what_comes_later_is_collected() -> None:
    assert run(_COLLECTOR) == ""


def test_a_value_is_computed_once_for_each_object_and_an_error_is_not_kept() -> None:
    class Circle:
        def __init__(self, radius: int) -> None:
            self.radius, self.computed = radius, 0

        @cached_property
        def area(self) -> int:
            """Its area, nearly."""
            self.computed += 1
            if self.radius < 0:
                raise ValueError("negative")
            return 3 * self.radius**2

    first, other, wrong = Circle(1), Circle(2), Circle(-1)
    assert [first.area, first.area, other.area] == [3, 3, 12]
    for _ in range(2):
        with pytest.raises(ValueError, match="negative"):
            _ = wrong.area
    assert [circle.computed for circle in (first, other, wrong)] == [1, 1, 2]
    assert Circle.area.__doc__ == "Its area, nearly."
