"""Attributes that are computed when they are asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pallasc.specs.objects import cached_property


class _Circle:
    def __init__(self, radius: int) -> None:
        self.radius = radius
        self.computed = 0

    @cached_property
    def area(self) -> int:
        """Its area, nearly."""
        self.computed += 1
        if self.radius < 0:
            raise ValueError("negative")
        return 3 * self.radius**2


def test_a_value_is_computed_once_for_each_object() -> None:
    first, other = _Circle(1), _Circle(2)
    assert [first.area, first.area, other.area] == [3, 3, 12]
    assert (first.computed, other.computed) == (1, 1)
    assert _Circle.area.__doc__ == "Its area, nearly."


def test_an_error_is_not_kept() -> None:
    circle = _Circle(-1)
    for _ in range(2):
        with pytest.raises(ValueError, match="negative"):
            _ = circle.area
    assert circle.computed == 2


_FORKS = """
import os, signal, threading
from pallasc.specs.objects import cached_property

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
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", _FORKS],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.stdout == "7 7\n0\n", done.stderr
