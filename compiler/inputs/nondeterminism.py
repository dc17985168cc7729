"""Questions whose answers are never the same: what time it is, and what chance gives.

Clocks that only measure (`time.monotonic`, `time.perf_counter`) decide nothing and are left alone.
The generators that everybody shares count unless they were given a seed while the variant at hand
was compiled: from one that was seeded before, others may have drawn since.
"""

from __future__ import annotations

import ctypes
import datetime
import dis
import functools
import gc
import os
import random
import sys
import time
import uuid
from collections.abc import Mapping
from types import FrameType
from typing import Any

from pallasc.compiler.inputs.attribution import is_importing, record, say, watch

_TIME, _NUMBERS = "asked what time it is", "drew random numbers without a seed"
_WITHOUT = {"time": 0, "time_ns": 0, "asctime": 0, "ctime": 0, "gmtime": 0, "localtime": 0,
            "strftime": 1}  # fmt: skip
"""Functions of `time`, and how many arguments they have where they look at the clock."""
_MEASURING = frozenset({
    time.CLOCK_BOOTTIME, time.CLOCK_MONOTONIC, time.CLOCK_MONOTONIC_RAW,
    time.CLOCK_PROCESS_CPUTIME_ID, time.CLOCK_THREAD_CPUTIME_ID,
})  # fmt: skip
_SEEDING = frozenset({"seed", "set_state"})
_ASKING_NOTHING = frozenset({"get_state"})

_seeded: set[str] = set()
"""Which of the shared generators have a seed: `random`, `numpy.random`."""
_watched: set[str] = set()


def watch_chance() -> None:
    """Record from now on who asks for the time or for random numbers."""
    for name, count in _WITHOUT.items():
        watch(time, name, functools.partial(_without, count=count))
    for name in ("clock_gettime", "clock_gettime_ns"):
        watch(time, name, _one_clock)
    watch(uuid, "uuid1", _without)
    for name in ("now", "utcnow"):
        _watch_datetime(name)
    for place, name in ((os, "urandom"), (os, "getrandom"), (random, "_urandom")):
        watch(place, name, _numbers)
    _watch_random()


def forget_seeds() -> None:
    """Count the shared generators as without a seed, until they are given one."""
    _seeded.clear()


def _without(
    module: str, frame: FrameType, arguments: tuple[Any, ...], options: Mapping[str, Any],
    *, count: int = sys.maxsize, said: str = _TIME,
) -> None:  # fmt: skip
    given = [*arguments, *options.values()]
    if len(given) <= count or given[count] is None:
        _say(module, frame, said)


def _one_clock(
    module: str, frame: FrameType, arguments: tuple[Any, ...], options: Mapping[str, Any]
) -> None:
    if not arguments or arguments[0] not in _MEASURING:
        _say(module, frame, _TIME)


def _numbers(
    module: str, frame: FrameType, arguments: tuple[Any, ...], options: Mapping[str, Any]
) -> None:
    _say(module, frame, _NUMBERS)


def _say(module: str, frame: FrameType, what: str) -> None:
    if not is_importing(frame):
        say(module, what)


def _watch_datetime(name: str) -> None:
    """Replace a class method of `datetime.datetime`, whose type takes no assignments.

    A subclass in its place would no longer be the type of what other modules make.
    """
    kind = datetime.datetime
    plain = kind.__dict__[name]

    def asked(cls: type, *arguments: Any, **options: Any) -> Any:
        record(_without, sys._getframe(1), arguments, options)
        return plain.__get__(None, cls)(*arguments, **options)

    gc.get_referents(kind.__dict__)[0][name] = classmethod(functools.update_wrapper(asked, plain))
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


class _Shared(random.Random):
    """The generator behind the functions of `random`."""

    def random(self) -> float:
        _draw("random", sys._getframe(1))
        return super().random()

    def getrandbits(self, k: int, /) -> int:
        _draw("random", sys._getframe(1))
        return super().getrandbits(k)

    def setstate(self, state: Any) -> None:
        super().setstate(state)
        _seeded.add("random")


def _draw(generator: str, frame: FrameType) -> None:
    if generator not in _seeded:
        record(_numbers, frame, (), {})


def _watch_random() -> None:
    shared: Any = getattr(random, "_inst")  # noqa: B009 - mypy does not know it
    plain_seed = random.Random.seed

    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        if self is shared:
            (_seeded.discard if a is None else _seeded.add)("random")
        elif a is None:
            record(_numbers, sys._getframe(1), (), {})
        plain_seed(self, a, version)

    random.Random.seed = functools.update_wrapper(seed, plain_seed)  # type: ignore[method-assign]
    shared.__class__ = _Shared
    for name, value in vars(random).copy().items():
        if getattr(value, "__self__", None) is shared:
            setattr(random, name, getattr(shared, name))


def watch_numpy() -> None:
    """Record from now on who draws from numpy's shared generator, once there is one."""
    module: Any = sys.modules.get("numpy.random")
    functions = vars(module) if module is not None else {}
    if _watched or "rand" not in functions:
        return
    _watched.add("numpy.random")
    shared = getattr(functions["rand"], "__self__", None)
    of_it = (n for n, value in functions.items() if getattr(value, "__self__", None) is shared)
    for name in {*of_it, "ranf", "sample", "seed"} - _ASKING_NOTHING:
        watch(module, name, functools.partial(_of_numpy, name=name))
    watch(module, "default_rng", functools.partial(_without, count=0, said=_NUMBERS))
    _watch_entropy(module.bit_generator)


def _watch_entropy(module: Any) -> None:
    """Record who makes a generator of numpy's without a seed.

    `RandomState` draws one in any case, so what counts is whether it was called with something.
    """
    plain = module.randbits

    def randbits(count: int) -> Any:
        frame = sys._getframe(1)
        call, arguments = frame.f_code.co_code[frame.f_lasti : frame.f_lasti + 2]
        if not (dis.opname[call] in ("CALL", "CALL_KW") and arguments):
            record(_numbers, frame, (), {})
        return plain(count)

    module.randbits = randbits


def _of_numpy(
    module: str, frame: FrameType, arguments: tuple[Any, ...], options: Mapping[str, Any],
    *, name: str,
) -> None:  # fmt: skip
    given = [*arguments, *options.values()]
    if name in _SEEDING:
        with_one = bool(given) and given[0] is not None
        (_seeded.add if with_one else _seeded.discard)("numpy.random")
    elif "numpy.random" not in _seeded:
        _say(module, frame, _NUMBERS)
