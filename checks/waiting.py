"""Detects deadlocks of interpreted kernels, and the barriers that their threads wait on.

JAX's interpreter runs each warpgroup in a Python thread. To wait on a barrier, a thread calls
`Condition.wait` without a timeout. The stack frames of the threads show these waits: the
`shared_memory.Barrier` with its phase and arrivals, the line in the user's kernel from
`source_info`, and the number of threads that have not ended. A thread that was woken, or has not
started, is not deadlocked: it may only not have been scheduled yet.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from pallasc.errors import Location

_BARRIERS = ("mosaic_gpu", "interpret", "shared_memory.py")
_THREADS = ("mosaic", "interpret", "thread_map.py")
_JOINS_THREADS = "_thread_map_callback"
_MOST_FRAMES = 12
"""Maximum number of frames from a wait to the callback that has the user's line."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A thread that waits on a barrier.

    Attributes:
        thread: name of the thread, such as "warpgroup 1 of block (0, 0)".
        phase: the phase that the thread waits for, counted from 0.
        arrivals: the number of arrivals in this phase so far.
        expected: the number of arrivals that complete the phase.
        location: the user's source line, None if unknown.
    """

    thread: str
    phase: int
    arrivals: int
    expected: int
    location: Location | None

    def sentence(self) -> str:
        """Describe the wait in a clause."""
        return (
            f"{self.thread} waits for phase {self.phase} of a barrier, which has "
            f"{self.arrivals} of {self.expected} arrivals"
        )


_SAMPLES = 3


class Watch:
    """Samples the threads of this process.

    It reports a deadlock when three consecutive samples show all threads of a kernel in the same
    waits, none of them woken. A wait that makes progress differs between samples.
    """

    def __init__(self) -> None:
        self._seen: object = None
        self._times = 0

    def look(self) -> list[Waiting]:
        """Return all waiting threads in a deadlock, else an empty list."""
        frames = [list(_stack(frame)) for frame in _others()]
        waits = [found for stack in frames if (found := _wait_in(stack)) is not None]
        if not waits or len(waits) < _unfinished(frames):
            self._seen, self._times = None, 0
            return []
        state = [(id(wait), id(barrier), _state(barrier)) for wait, barrier in waits]
        self._times = self._times + 1 if state == self._seen else 1
        self._seen = state
        return [_waiting(*wait) for wait in waits] if self._times >= _SAMPLES else []


def failures() -> list[BaseException]:
    """Return the exceptions of kernel threads that have ended and have not been joined yet."""
    raised = []
    for frame in _joining(map(_stack, _others())):
        for future in frame.f_locals.get("threads", ()):
            error = future.exception(0) if future.done() else None
            raised += [error] if error is not None else []
    return raised


def _others() -> list[FrameType]:
    own = threading.get_ident()
    return [frame for ident, frame in sys._current_frames().items() if ident != own]


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is(frame: FrameType, file: tuple[str, ...], function: str) -> bool:
    code = frame.f_code
    if code.co_name != function:
        return False
    return tuple(code.co_filename.replace("\\", "/").split("/")[-len(file) :]) == file


def _joining(stacks: Iterable[Iterable[FrameType]]) -> Iterator[FrameType]:
    """Yield the frames that started threads of a kernel and wait for them to end."""
    return (frame for stack in stacks for frame in stack if _is(frame, _THREADS, _JOINS_THREADS))


def _unfinished(stacks: Iterable[Iterable[FrameType]]) -> int:
    """Return the number of kernel threads that have not ended, including those not yet started.

    A warpgroup that waits for its warps is not counted in addition to them.
    """
    from jax._src.pallas.mosaic.interpret import thread_map

    count = 0
    for names in (frame.f_locals for frame in _joining(stacks)):
        ended = sum(future.done() for future in names.get("threads", ()))
        left = int(names["num_threads"]) - ended
        is_inner = int(names["token"]) == thread_map.NESTED_TOKEN_VALUE
        count += left - (is_inner and left > 0)
    return count


def _wait_in(stack: list[FrameType]) -> tuple[FrameType, Any] | None:
    """Return the waiting frame of a stack and its barrier; None if the thread has been woken."""
    for inner, frame in itertools.pairwise(stack):
        if inner.f_code.co_name != "wait" or not inner.f_code.co_filename.endswith("threading.py"):
            continue
        if any(_is(frame, _BARRIERS, name) for name in ("_wait", "wait")):
            barrier = frame.f_locals.get("self")
            return (frame, barrier) if barrier is not None and not _is_woken(inner) else None
    return None


def _is_woken(frame: FrameType) -> bool:
    """Return True if `Condition.wait` will continue as soon as its thread is scheduled."""
    names = frame.f_locals
    return names.get("waiter") not in getattr(names.get("self"), "_waiters", ())


def _state(barrier: Any) -> tuple[int, int]:
    return int(barrier.phase), int(barrier.arrivals_count)


def _waiting(frame: FrameType, barrier: Any) -> Waiting:
    phase, arrivals = _state(barrier)
    return Waiting(
        _thread_name(frame),
        phase,
        arrivals,
        int(barrier.num_arrivals),
        _user_line(frame),
    )


def _thread_name(frame: FrameType) -> str:
    thread = frame.f_locals.get("thread")
    for outer in list(_stack(frame))[:_MOST_FRAMES]:
        thread = thread if thread is not None else outer.f_locals.get("thread")
        where = outer.f_locals.get("mesh_location")
        if where is not None and thread is not None:
            return f"{_unit(thread)} of {_block(where)}"
    number = frame.f_locals.get("local_thread_id")
    return f"warpgroup {number}" if number is not None else _unit(thread)


def _unit(thread: Any) -> str:
    warp = getattr(thread, "warp_id", None)
    group = getattr(thread, "warpgroup_id", None)
    if group is None:
        return "a thread"
    return f"warpgroup {group}" if warp is None else f"warp {warp} of warpgroup {group}"


def _block(where: Any) -> str:
    """Name a block by its index in the grid, and in its cluster: `block (1, 0)`."""
    grid = ", ".join(str(int(number)) for number in where.cluster_coords)
    inside = ", ".join(str(int(number)) for number in where.block_coords)
    if not inside:
        return f"block ({grid})" if grid else "the only block"
    return f"block ({inside}) of cluster ({grid})" if grid else f"block ({inside}) of the cluster"


def _user_line(frame: FrameType) -> Location | None:
    """Return the user's line that led to a callback of the interpreter."""
    for outer in list(_stack(frame))[:_MOST_FRAMES]:
        place = user_place(outer.f_locals)
        if place is not None:
            return place
    return None


def user_place(names: Any) -> Location | None:
    """Return the user's line from the local variables of an interpreter frame."""
    from jax._src import source_info_util

    frames: Any = source_info_util
    for name in ("source_info", "logging_info"):
        info = names.get(name)
        info = getattr(info, "source_info", info)
        trace = getattr(info, "traceback", None)
        frame = frames.user_frame(trace) if trace is not None else None
        if frame is not None:
            return Location(frame.file_name, frame.start_line, frame.start_column + 1)
    return None
