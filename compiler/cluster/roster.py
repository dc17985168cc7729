"""The workers of a cluster: how many threads each has, and which compile nothing for this build.

A worker that refuses is passed over. It may be started again with what it lacked, under the same
address, so it is asked again from time to time, with one piece of work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from pallasc.compiler.cluster.pieces import Item
from pallasc.errors import ToolError

_ASK_AGAIN_S = 3.0
"""After how long a worker that has refused is asked again; shorter than `_NONE_LEFT_S`."""
_NONE_LEFT_S = 5.0
"""How long to wait for other workers when all have refused."""
_NOBODY_S = 15.0
"""How long to wait in silence for the first worker."""


class Roster:
    """The workers of a cluster.

    Args:
        address: the scheduler, for messages.
        clock: tells the time in seconds.

    Attributes:
        threads: the threads of each worker, by its address.
        refused: why workers compile nothing for this build.
    """

    def __init__(self, address: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.threads: Mapping[str, int] = {}
        self.refused: dict[str, str] = {}
        self._address, self._clock = address, clock
        self._ask_s: dict[str, float] = {}
        self._changed_s = self._clock()
        self._told = False

    def count(self, threads: Mapping[str, int]) -> bool:
        """Note which workers there are; return whether others have come or gone."""
        changed = threads.keys() != self.threads.keys()
        self.threads = threads
        for worker in [each for each in self.refused if each not in threads]:
            self.accept(worker)  # if it comes back, it is asked anew
        if changed:
            self.touch()
        return changed

    def touch(self) -> None:
        """Begin to wait anew: something has changed."""
        self._changed_s = self._clock()

    def refuse(self, worker: str, why: str) -> None:
        """Note that a worker compiles nothing for this build."""
        if worker not in self.refused:
            self.touch()
        self.refused[worker] = why
        self._ask_s[worker] = self._clock() + _ASK_AGAIN_S

    def accept(self, worker: str) -> bool:
        """Note that a worker compiles; return whether it had refused."""
        self._ask_s.pop(worker, None)
        return self.refused.pop(worker, None) is not None

    def to_ask(self) -> str:
        """Return a worker that should be asked again, once for each refusal; "" for none."""
        now_s = self._clock()
        for worker, at_s in self._ask_s.items():
            if now_s >= at_s:
                del self._ask_s[worker]
                return worker
        return ""

    def allowed(self, items: Iterable[Item]) -> list[str] | None:
        """Return the workers that may do work, None for all."""
        refused = {*self.refused, *(worker for item in items for worker in item.refused)}
        if not refused:
            return None
        return [worker for worker in self.threads if worker not in refused]

    def is_given_up(self) -> bool:
        """Tell whether no other worker is waited for, and none is still to be asked again."""
        now_s = self._clock()
        if any(now_s >= at_s for at_s in self._ask_s.values()):
            return False
        return bool(self.threads) and now_s - self._changed_s >= _NONE_LEFT_S

    def told_nobody(self) -> str:
        """Return what to say, once, where there have been no workers for a while; else ""."""
        waited_s = self._clock() - self._changed_s
        if self.threads or self._told or waited_s <= _NOBODY_S:
            return ""
        self._told = True
        return f"{self._address} has no workers yet: waiting for the first one"

    def refusal(self, item: Item) -> ToolError:
        """Return the error of an item that all workers have refused."""
        by_reason: dict[str, list[str]] = {}
        for worker, reason in {**self.refused, **item.refused}.items():
            by_reason.setdefault(reason, []).append(worker)
        why = "; ".join(
            f"{_some(workers)}: {reason.rstrip('.')}" for reason, workers in by_reason.items()
        )
        return ToolError(
            f"no worker of {self._address} compiles it as it would be here: {why}.",
            hint="Remove what keeps the workers from it (they need what is installed here, and "
            "room for the files of a build), or compile here, without --executor.",
        )


def _some(workers: Sequence[str]) -> str:
    return workers[0] + (f" and {len(workers) - 1} more" if len(workers) > 1 else "")
