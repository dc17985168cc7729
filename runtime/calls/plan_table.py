"""The bound plans of a route, by stream, device and addresses.

A program that goes through more sets of addresses than there is room for does so in rounds: layer
by layer, step by step. Dropping the oldest plan would then drop each one shortly before its next
use. So the plan that leaves is chosen by chance: of twice as many sets as there is room for, a
fifth is still found, and the cost of a launch grows with their number instead of jumping.
"""

from __future__ import annotations

from contextlib import suppress

from pallasc.runtime.calls.program import BoundPlan
from pallasc.runtime.device import process_state

MOST_PLANS = 1024
"""Bound plans that a route keeps."""

PlanKey = tuple[int, ...]
"""Stream, device, then the addresses of inputs, results and, if there is one, the workspace.

A device below zero is the complement of its number: its context is made current for the launch.
"""

_FACTOR, _STEP, _RANGE = 1664525, 1013904223, 2**32
"""Numbers that look random: the linear congruential generator of Numerical Recipes."""


class PlanTable:
    """Bound plans; where there is no room for another, one leaves.

    Attributes:
        plans: by key. Reading it needs no lock, and a plan that leaves meanwhile stays whole for
            whoever has read it.
    """

    def __init__(self) -> None:
        self.plans: dict[PlanKey, BoundPlan] = {}
        self._keys: list[PlanKey] = []
        self._random = 0

    def put(self, key: PlanKey, plan: BoundPlan) -> None:
        """Keep a plan; of two for one key, the later one."""
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
        """Drop the plan for a key, where there is one."""
        with process_state.now.lock, suppress(ValueError):
            self.plans.pop(key, None)
            self._keys.remove(key)

    def clear(self) -> None:
        """Drop all plans."""
        self.plans.clear()
        self._keys.clear()
