"""Variants that take the same arrays: their programs on each device, and the plans bound so far."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pallasc.errors import ArgumentError, DeviceError, PallascError
from pallasc.runtime.calls.program import (
    BoundPlan,
    Program,
    check_contexts,
    is_loaded,
    lay_out,
    load_program,
)
from pallasc.runtime.device import process_state
from pallasc.runtime.device.devices import (
    Device,
    active,
    current_context,
    current_device,
    get_device,
)
from pallasc.runtime.device.driver import open_driver
from pallasc.runtime.device.memory import temporary
from pallasc.runtime.device.streams import DEFAULT_STREAMS
from pallasc.runtime.device.uses import Uses, note_uses
from pallasc.runtime.matching.candidates import Candidate
from pallasc.runtime.matching.selection import select

MOST_PLANS = 1024
"""Bound plans that a route keeps; one more, and all are dropped."""

_WRONG_CONTEXT = frozenset({201, 400})
"""No context is current, or another than that of the stream or the function."""

PlanKey = tuple[int, ...]
"""Stream, device, then the addresses of inputs, results and, if there is one, the workspace.

A device below zero is the complement of one whose context shall be made current for the launch.
"""


class Route:
    """Variants of one kernel that differ in their target only.

    Args:
        candidates: the variants.

    Attributes:
        signature: what they take and give.
        plans: bound plans by key. Reading it needs no lock.
        workspace_bytes: memory for temporaries that each launch needs.
    """

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self.candidates = tuple(candidates)
        self.name = candidates[0].name
        self.signature = candidates[0].signature
        self.plans: dict[PlanKey, BoundPlan] = {}
        self.workspace_bytes = max(lay_out(variant.artifact.plan)[1] for variant in candidates)
        self._programs: dict[int, Program] = {}
        process_state.now.routes.add(self)

    def program(self, ordinal: int, stream: int | None = None) -> Program:
        """Return the program for a device; the first time it is loaded there.

        Raises:
            SelectionError: no variant can run there.
            DeviceError: it cannot be loaded, or the stream is being captured.
        """
        program = self._programs.get(ordinal)
        if program is None:
            device = get_device(ordinal)
            variant = select(self.candidates, device)
            if stream is not None and not is_loaded(variant, device):
                self._check_capture(device, stream)
            program = self._programs[ordinal] = load_program(variant, device)
        return program

    def bind(self, key: PlanKey) -> BoundPlan:
        """Return a new plan for a key, and keep it.

        Raises:
            ArgumentError, DeviceError: as `Program` and `Program.bind` do.
        """
        stream, place, *pointers = key
        program = self.program(_ordinal(place), stream)
        workspace = pointers.pop() if self.workspace_bytes else 0
        device, context = program.device, current_context()
        if place < 0:
            with active(device):
                plan = program.in_context(program.bind(stream, pointers, workspace))
        elif not context or _is_own(context, device):
            if context:
                check_contexts(self.name, self.signature, pointers, context)
            with active(device):
                plan = program.bind(stream, pointers, workspace)
            plan = program.beside_contexts(plan, stream)
        else:
            plan = program.bind(stream, pointers, workspace)
        if len(self.plans) >= MOST_PLANS:
            self.plans.clear()
        self.plans[key] = plan
        return plan

    def try_bind(self, key: PlanKey) -> BoundPlan | None:
        """Return a new plan for a key, None where an argument is wrong: the slow path reports it.

        Raises:
            DeviceError: as `bind` does.
        """
        try:
            return self.bind(key)
        except ArgumentError:
            return None

    def retry(self, key: PlanKey, plan: BoundPlan, result: tuple[Any, ...], out: Any) -> Any:
        """Go on where only the context was not the right one; return `out`.

        A step that ran is not repeated: the launch goes on with the one that was refused. From then
        on the device's context is made current for each launch with this key.

        Raises:
            DriverError: what the driver answered.
        """
        stream, place = key[:2]
        program = self.program(_ordinal(place))
        first = result[1] if len(result) > 1 else 0
        if int(result[0]) in _WRONG_CONTEXT and place >= 0:
            context = current_context()
            # Behind steps in a default stream of a context that is gone nothing can be ordered.
            is_lost = first and not context and stream <= DEFAULT_STREAMS
            if context != int(program.device.context) and not is_lost:
                plan = program.beside_contexts(plan, stream)
                result = program.run(plan, first)
        if int(result[0]):
            self.plans.pop(key, None)
            raise program.error(result)
        self.plans[key] = plan
        return out

    def explain(self, key: PlanKey, plan: BoundPlan, error: Exception) -> DeviceError:
        """Return the error for what a plan raised instead of returning an answer."""
        return self.program(_ordinal(key[1])).explain(plan, error)

    def launch(self, key: PlanKey) -> None:
        """Launch, whichever context is current.

        Raises:
            ArgumentError, DeviceError: as `bind` and `retry` do.
        """
        stream, ordinal, *addresses = key
        if stream <= DEFAULT_STREAMS and current_device() != ordinal:
            key = (stream, ~ordinal, *addresses)
        self._run(key, self.plans.get(key) or self.bind(key))

    def launch_noted(
        self,
        key: PlanKey,
        plan: BoundPlan,
        number: int,
        uses: Sequence[tuple[Uses, bool]],
        out: Any,
    ) -> Any:
        """Launch a plan with arrays that know their uses, note it with them, and return `out`.

        Args:
            key: where, and with which arrays.
            plan: what is launched.
            number: the stream's, see `number_of`.
            uses: of each array, and whether it is written.
            out: what is returned.

        Raises:
            DriverError: as `retry` does.
        """
        device = get_device(_ordinal(key[1]))
        try:
            self._run(key, plan)
        except PallascError:
            with suppress(PallascError):  # of several steps some may be in the stream
                note_uses(device, key[0], number, uses)
            raise
        note_uses(device, key[0], number, uses)
        return out

    def _run(self, key: PlanKey, plan: BoundPlan) -> None:
        result = self.program(_ordinal(key[1])).run(plan)
        if int(result[0]):
            self.retry(key, plan, result, None)

    def enqueue(
        self, stream: int, ordinal: int, pointers: Sequence[int], workspace: int | None = None
    ) -> None:
        """Launch for arrays at these addresses, with temporaries of our own where none are given.

        Raises:
            ArgumentError, DeviceError: as `bind` and `retry` do.
        """
        key = (stream, ordinal, *pointers)
        size_bytes = self.workspace_bytes
        if size_bytes == 0:
            self.launch(key)
        elif workspace is not None:
            self.launch((*key, workspace))
        else:
            what = f"{self.name} needs {size_bytes} bytes for temporaries"
            with temporary(get_device(ordinal), size_bytes, stream, what) as address:
                self.launch((*key, address))

    def forget(self) -> None:
        """Drop everything that was made in the process that this process was forked from."""
        self.plans.clear()
        self._programs.clear()

    def _check_capture(self, device: Device, stream: int) -> None:
        if is_capturing(device, stream):
            raise DeviceError(
                f"{self.name} is not loaded on {device}, and its stream is being captured.",
                hint=f"Call preload({device.ordinal}) before the capture.",
            )


def _ordinal(place: int) -> int:
    """Return the device of a plan's key."""
    return place if place >= 0 else ~place


def _is_own(context: int, device: Device) -> bool:
    """Tell whether the current context is one that the program has made on the device itself."""
    return context != int(device.context) and current_device() == device.ordinal


def is_capturing(device: Device, stream: int) -> bool:
    """Tell whether a stream is being captured into a graph."""
    with active(device):
        driver = open_driver()
        code, status = driver.bindings.cuStreamIsCapturing(driver.bindings.CUstream(stream))
    return int(code) == 0 and int(status) != 0
