"""The way of a launch: a route has programs on devices, and plans bound to addresses.

The stream is the one that is given; else that of the first array whose framework has a current
stream or which names its own, results among them; else the default one. Where others of the arrays
are of another stream, the launch and that stream wait for each other (`uses.Order`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pallasc.errors import ArgumentError, DeviceError, PallascError
from pallasc.runtime.calls.padding import Prepared
from pallasc.runtime.calls.plan_table import PlanKey, PlanTable
from pallasc.runtime.calls.program import BoundPlan, Program, lay_out, load_program
from pallasc.runtime.device import process_state
from pallasc.runtime.device.devices import (
    Device,
    active,
    context_of,
    current_context,
    current_device,
    get_device,
)
from pallasc.runtime.device.memory import temporary
from pallasc.runtime.device.process_state import Forgetful
from pallasc.runtime.device.streams import (
    DEFAULT_STREAMS,
    PRIMARY_CONTEXT,
    beside_contexts,
    in_context,
    stream_handle,
)
from pallasc.runtime.device.uses import Order
from pallasc.runtime.matching.arrays import Passed, find_adapter
from pallasc.runtime.matching.candidates import Candidate
from pallasc.runtime.matching.selection import select
from pallasc.runtime.matching.tuned import Selector
from pallasc.specs.artifacts.signature import MISSING, Signature
from pallasc.specs.artifacts.trees import unflatten

_WRONG_CONTEXT = frozenset({201, 400})
"""No context is current, or another than that of the stream or the function."""


class Route:
    """Variants of one kernel that differ in their target only.

    Args:
        candidates: the variants.
        is_only: no other variant of the kernel takes arrays of their types on any GPU here: types
            decide, and addresses do not matter.
        selector: chooses among the variants of a tuned kernel, None for another.

    Attributes:
        is_only: as given.
        signature: what they take and give.
        plans: bound plans by key. Reading it needs no lock.
        workspace_bytes: memory for temporaries that each launch needs.
        fronts: what holds handles of the programs, too.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        *,
        is_only: bool = True,
        selector: Selector | None = None,
    ) -> None:
        self.candidates = tuple(candidates)
        self._selector = selector
        self.is_only = is_only
        self.name = candidates[0].name
        self.signature = candidates[0].signature
        self._table = PlanTable()
        self.plans = self._table.plans
        self.workspace_bytes = max(lay_out(variant.artifact.plan)[1] for variant in candidates)
        self._chosen: dict[int, tuple[Candidate, Device]] = {}
        self._programs: dict[int, Program] = {}
        self.fronts: list[Forgetful] = []
        process_state.now.routes.add(self)

    def choose(self, candidate: Candidate, device: Device) -> None:
        """Note which variant is chosen for a device, for its program."""
        self._chosen[device.ordinal] = candidate, device

    def program(self, ordinal: int, stream: int | None = None) -> Program:
        """Return the program for a device; the first time it is loaded there.

        Raises:
            SelectionError: no variant can run there.
            DeviceError: it cannot be loaded, or the stream is being captured.
        """
        program = self._programs.get(ordinal)
        if program is None:
            if ordinal not in self._chosen:
                device = get_device(ordinal)
                if self._selector is None:
                    chosen = select(self.candidates, device)
                else:
                    chosen = self._selector.select(device)
                self.choose(chosen, device)
            program = self._programs[ordinal] = load_program(*self._chosen[ordinal], stream)
        return program

    def loaded(self, ordinal: int) -> Program | None:
        """Return the program for a device, None where nothing was launched there."""
        return self._programs.get(ordinal)

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
                plan = in_context(device, program.bind(stream, pointers, workspace))
        elif not context or _is_own(context, device):
            if context:
                self._check_contexts(pointers, context)
            with active(device):
                plan = program.bind(stream, pointers, workspace)
            plan = beside_contexts(device, stream, plan)
        else:
            plan = program.bind(stream, pointers, workspace)
        self._table.put(key, plan)
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
        """Go on where only the current context was wrong; return `out`.

        A step that ran is not repeated: the launch goes on with the step that was refused. From
        then on the device's context is made current for each launch with this key.

        Raises:
            DriverError: what the driver answered.
        """
        stream, place = key[:2]
        program = self.program(_ordinal(place))
        first = result[1] if len(result) > 1 else 0
        if int(result[0]) in _WRONG_CONTEXT and place >= 0:
            context = current_context()
            # Nothing can be ordered after steps in a default stream of a context that is gone.
            is_lost = first and not context and stream <= DEFAULT_STREAMS
            if context != int(program.device.context) and not is_lost:
                plan = beside_contexts(program.device, stream, plan)
                result = program.answer(plan, first)
        if int(result[0]):
            self._table.drop(key)
            raise program.error(result)
        if self.plans.get(key) is not plan:
            self._table.put(key, plan)
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
        self.launch_plan(key, self.plans.get(key) or self.bind(key))

    def launch_plan(self, key: PlanKey, plan: BoundPlan) -> None:
        """Run a plan that is bound for a key.

        Raises:
            DriverError: as `retry` does.
        """
        result = self.program(_ordinal(key[1])).answer(plan)
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

    def forget_plans(self) -> None:
        """Drop the bound plans: the next launch binds anew."""
        self._table.clear()

    def forget(self) -> None:
        """Drop everything that was made in the process that this process was forked from."""
        self.forget_plans()
        self._chosen.clear()
        self._programs.clear()
        for front in self.fronts:
            front.forget()

    def _check_contexts(self, pointers: Sequence[int], context: int) -> None:
        """Check that no array lies in a context that the program has made: kernels cannot reach it.

        Raises:
            ArgumentError: one does.
        """
        for binding, pointer in zip(self.signature.passed, pointers, strict=True):
            if pointer and context_of(pointer) == context:
                raise ArgumentError(
                    f"{self.name}: {binding.path} belongs to a context of the program's own.",
                    hint=PRIMARY_CONTEXT,
                )


def _ordinal(place: int) -> int:
    """Return the device of a plan's key."""
    return place if place >= 0 else ~place


def _is_own(context: int, device: Device) -> bool:
    """Tell whether the current context is one that the program has made on the device itself."""
    return context != int(device.context) and current_device() == device.ordinal


# ---- one launch


# Not frozen: making a frozen object takes three times as long, at each slow call.
@dataclass(slots=True)
class Match:
    """What is launched: a route, and arrays that it takes.

    Attributes:
        route: the variants for these arrays.
        inputs: the arrays, in order.
        results: arrays for the results; None where they are to be allocated.
        ordinal: the GPU that all arrays lie on; None where they are on the host.
        out: what the caller gave for the results, MISSING where nothing.
        stream: as the caller gave it.
        padding: how shorter arrays are padded, None where they have the variant's shapes.
    """

    route: Route
    inputs: Sequence[Passed]
    results: Sequence[Passed] | None
    ordinal: int | None
    out: Any
    stream: Any
    padding: Prepared | None = None

    @property
    def signature(self) -> Signature:
        """What the caller gives and gets."""
        return self.route.signature if self.padding is None else self.padding.signature

    def allocate(self, ordinal: int, stream: int | None) -> list[Passed]:
        """Return new memory for each result, from the framework of the first array.

        Raises:
            ArgumentError: there are no arrays.
        """
        results = self.signature.results
        if not self.inputs and results:
            raise ArgumentError(
                f"{self.route.name} takes no arrays, so nothing says which framework its results "
                "are for.",
                hint="Call into(out=...) with arrays of that framework.",
            )
        own = None if self.stream is None else stream
        arrays = [
            self.inputs[0].adapter.empty(result.shape, result.dtype, ordinal, own)
            for result in results
        ]
        adapters = [find_adapter(array, "a result") for array in arrays]
        return [
            Passed(array, adapter, adapter.view(array))
            for array, adapter in zip(arrays, adapters, strict=True)
        ]

    def returned(self, results: Sequence[Passed]) -> Any:
        """Return what the call returns: `out`, or arrays in the structure that was compiled."""
        if self.out is not MISSING:
            return self.out
        signature = self.route.signature
        leaves = [
            (self.inputs if source == "input" else results)[number].array
            for source, number in signature.sources
        ]
        tree = signature.output_tree
        return leaves[tree] if type(tree) is int else unflatten(tree, leaves)


def launch(match: Match, ordinal: int) -> Any:
    """Launch on arrays of a GPU; return the results in the structure of the compiled function.

    Raises:
        ArgumentError, DeviceError: as a call of the kernel does.
    """
    route, inputs, results = match.route, match.inputs, match.results
    stream = _stream(match, [*inputs, *(results or [])], ordinal)
    route.program(ordinal, stream)  # what cannot run is refused before anything is allocated
    if results is None:
        results = match.allocate(ordinal, stream)
    passed = [*inputs, *results]
    written = {*route.signature.updated, *range(len(inputs), len(passed))}
    order = _order(match, passed, written, ordinal, stream)
    if order is not None:
        order.before()
    workspace = _workspace(inputs, route.workspace_bytes, ordinal, stream)
    address = None if workspace is None else workspace.view.pointer
    try:
        pointers = [array.view.pointer for array in passed]
        if match.padding is None:
            route.enqueue(stream, ordinal, pointers, address)
        else:
            match.padding.enqueue(
                get_device(ordinal),
                stream,
                pointers,
                lambda places: route.enqueue(stream, ordinal, places, address),
            )
    except PallascError:
        if order is not None:
            with suppress(PallascError):  # of several steps some may be in the stream
                order.after()
        _mark_written(passed, written)
        raise
    if order is not None:
        order.after()
    _mark_written(passed, written)
    return match.returned(results)


def _stream(match: Match, passed: Sequence[Passed], ordinal: int) -> int:
    if match.stream is not None:
        return stream_handle(match.stream)
    for array in passed:
        if (array.view.stream or 0) >= DEFAULT_STREAMS:
            return array.view.stream or 0
        if array.adapter.has_pool:
            return array.adapter.stream(ordinal)
    return 0


def _order(
    match: Match, passed: Sequence[Passed], written: set[int], ordinal: int, stream: int
) -> Order | None:
    """Return what the launch waits for and what waits for it, None where there is nothing.

    Frameworks have a current stream, which a caller who names a stream orders; arrays with
    `__cuda_array_interface__` name one; device arrays of our own know all their uses.
    """
    is_given = match.stream is not None
    adapters = {} if is_given else {array.adapter: None for array in passed}
    streams = [adapter.stream(ordinal) for adapter in adapters if adapter.has_pool]
    streams += [array.view.stream for array in passed if array.view.stream is not None]
    # Handles 0 and 1 both mean the default stream.
    others = [other for other in dict.fromkeys(streams) if (other or 1) != (stream or 1)]
    uses = [
        (array.view.uses, number in written)
        for number, array in enumerate(passed)
        if array.view.uses is not None
    ]
    if not others and not uses:
        return None
    return Order(match.route.name, get_device(ordinal), stream, others, uses, is_given=is_given)


def _workspace(
    inputs: Sequence[Passed], size_bytes: int, ordinal: int, stream: int
) -> Passed | None:
    """Return memory for temporaries from the framework at hand, None where it has no pool."""
    if size_bytes and inputs and inputs[0].adapter.has_pool:
        adapter = inputs[0].adapter
        array = adapter.empty((size_bytes,), "u8", ordinal, stream)
        return Passed(array, adapter, adapter.view(array))
    return None


def _mark_written(passed: Sequence[Passed], written: set[int]) -> None:
    """Tell frameworks that count the writes to an array of those of a launch."""
    for number in sorted(written):
        passed[number].adapter.mark_written((passed[number].array,))
