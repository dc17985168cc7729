"""The bound plans of a route, by stream, device and addresses.

A program with more sets of addresses than fit in the table usually cycles through them: layer by
layer, step by step. Evicting the oldest plan would then evict each plan shortly before its next
use. So the plan to evict is chosen at random: with twice as many sets as fit, a fifth of the
lookups still hit, and the cost of a launch grows with the number of sets instead of jumping.
"""

from __future__ import annotations

from contextlib import suppress

from pallasc.runtime.calls.program import BoundPlan
from pallasc.runtime.device import process_state

MOST_PLANS = 1024
"""Maximum number of bound plans in a route."""

PlanKey = tuple[int, ...]
"""Stream, device, then the addresses of inputs, results and, if there is one, the workspace.

A negative device is the complement of its number: its context is made current for the launch.
"""

_FACTOR, _STEP, _RANGE = 1664525, 1013904223, 2**32
"""Pseudorandom numbers: the linear congruential generator of Numerical Recipes."""


class PlanTable:
    """Bound plans; adding one to a full table evicts another.

    Attributes:
        plans: by key. Reading it needs no lock; a plan evicted meanwhile stays valid for the
            reader.
    """

    def __init__(self) -> None:
        self.plans: dict[PlanKey, BoundPlan] = {}
        self._keys: list[PlanKey] = []
        self._random = 0

    def put(self, key: PlanKey, plan: BoundPlan) -> None:
        """Add a plan, replacing any other plan for the key."""
        with process_state.now.lock:
            plans, keys = self.plans, self._keys
            before = len(plans)
            plans[key] = plan
            if len(plans) == before:
                return
            if len(keys) < MOST_PLANS:
                keys.append(key)
                return
            self._random = (self._random * _FACTOR + _STEP) % _RANGE
            place = self._random * len(keys) // _RANGE
            plans.pop(keys[place], None)
            keys[place] = key

    def drop(self, key: PlanKey) -> None:
        """Remove the plan for a key, if there is one."""
        with process_state.now.lock, suppress(ValueError):
            self.plans.pop(key, None)
            self._keys.remove(key)

    def clear(self) -> None:
        """Remove all plans."""
        self.plans.clear()
        self._keys.clear()
