"""A thread of an interpreted kernel that gets no processor for a while makes no deadlock."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src.pallas.mosaic.interpret import thread_map
from jax._src.pallas.mosaic_gpu.interpret import shared_memory
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallasc.checks import waiting
from pallasc.checks.interpreter import Heard, interpreting

LOOKS = 8
"""More than two times as many as tell a deadlock."""
_PATIENCE_S = 300.0


def met(x: jax.Array) -> jax.Array:
    """Return an array that was copied when two warpgroups had met at a barrier."""

    def body(x: Any, o: Any, bar: Any) -> None:
        plgpu.barrier_arrive(bar)
        plgpu.barrier_wait(bar)

        @pl.when(lax.axis_index("wg") == 0)
        def _() -> None:
            o[...] = x[...]

    kernel = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_types=[plgpu.Barrier(num_arrivals=2)],
        num_threads=2,
        thread_name="wg",
    )
    copied: jax.Array = kernel(x)
    return copied


def until(condition: Callable[[], bool], thread: threading.Thread | None = None) -> None:
    """Wait for a condition, as long as a thread lives."""
    end_s = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s
        assert thread is None or thread.is_alive()
        time.sleep(0.01)


def one_waits() -> bool:
    """Tell whether a thread waits at a barrier."""
    stacks = [list(waiting._stack(frame)) for frame in waiting._others()]
    return any(waiting._wait_in(stack) is not None for stack in stacks)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Return what lets a thread go on that is held up."""
    released = threading.Event()
    yield released
    released.set()


def looked_at(is_held: Callable[[], bool], release: threading.Event) -> list[Any]:
    """Interpret the kernel; return what looks at it tell while one of its threads is held up."""
    x = np.arange(128, dtype=np.float32)
    results: list[Any] = []

    def call() -> None:
        with interpreting(Heard()):
            results.append(np.asarray(met(jnp.asarray(x))))

    thread, watch = threading.Thread(target=call, daemon=True), waiting.Watch()
    thread.start()
    until(is_held, thread)
    seen = [watch.look() for _ in range(LOOKS)]
    release.set()
    thread.join(_PATIENCE_S)
    np.testing.assert_array_equal(results, [x])
    return seen


def second_begins(after: Callable[[], object], patch: pytest.MonkeyPatch) -> None:
    """Have the second thread of the kernel begin when a function has returned."""
    plain, begun = thread_map._run_jaxpr, []

    def begin(*arguments: Any) -> None:
        begun.append(arguments)
        if len(begun) == 2:
            after()
        plain(*arguments)

    patch.setattr(thread_map, "_run_jaxpr", begin)


def one_has_ended() -> bool:
    """Tell whether one of the two threads of the kernel has ended."""
    return waiting._unfinished([waiting._stack(frame) for frame in waiting._others()]) == 1


def test_a_thread_that_has_not_begun_may_still_arrive(
    release: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    second_begins(lambda: release.wait(_PATIENCE_S), monkeypatch)
    assert looked_at(one_waits, release) == [[]] * LOOKS


def test_a_thread_that_was_woken_waits_no_more(
    release: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, woken = shared_memory.Barrier.__init__, threading.Event()

    def make(self: Any, *arguments: Any, **options: Any) -> None:
        plain(self, *arguments, **options)
        restore = self.cv._acquire_restore

        def hold(state: object) -> None:
            woken.set()
            release.wait(_PATIENCE_S)
            restore(state)

        self.cv._acquire_restore = hold

    monkeypatch.setattr(shared_memory.Barrier, "__init__", make)
    second_begins(lambda: until(one_waits), monkeypatch)
    assert looked_at(lambda: woken.is_set() and one_has_ended(), release) == [[]] * LOOKS
