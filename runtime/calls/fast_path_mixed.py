"""The way of later calls whose arrays have no generated function: any frameworks, side by side.

One look-up finds the route for dtypes and shapes, another the plan for stream and addresses.
Whatever is unusual goes to the slow path, which makes streams wait, or writes the message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any

from pallasc.errors import ArgumentError, PallascError
from pallasc.runtime.calls.order import note_uses, tracked_uses
from pallasc.runtime.calls.program import BoundPlan
from pallasc.runtime.calls.routes import PlanKey, Route
from pallasc.runtime.device.devices import current_device, device_count, get_device
from pallasc.runtime.device.driver import ODD_ANSWERS
from pallasc.runtime.device.streams import DEFAULT_STREAMS, stream_handle
from pallasc.runtime.device.uses import Uses, number_of
from pallasc.runtime.matching.arguments import MISSING
from pallasc.runtime.matching.arrays import (
    FOREIGN_ERRORS,
    Adapter,
    ArrayView,
    find_adapter,
    known_adapter,
)
from pallasc.runtime.matching.signature import Signature, input_names
from pallasc.runtime.matching.trees import is_flat, leaves_of, unflatten
from pallasc.specs.artifacts.plan import Binding

_UNUSUAL = (ArgumentError, *FOREIGN_ERRORS)

_Slow = Callable[..., Any]
_Types = tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]


class MixedFront:
    """Launches for arrays of any frameworks, once the slow path has found a route for their types.

    Args:
        slow: for "into" and "call", what is called where anything is unusual.
        success: the driver's code for it.
    """

    def __init__(self, slow: Mapping[str, _Slow], success: Any) -> None:
        self._slow = slow
        self._success = success
        self._has_several = device_count() > 1
        self._routes: dict[tuple[Any, ...], tuple[Route, _Types, bool]] = {}
        self._shape: _Shape | None = None

    def add(self, route: Route, *, binds: bool) -> None:
        """Take a route, where its arrays lie flat, and as those of the others.

        Args:
            route: the one for its types.
            binds: no other route is for the same types, so new addresses are for this one too.
        """
        shape = _Shape.of(route.signature)
        if shape is None or (self._shape is not None and shape.key != self._shape.key):
            return
        self._shape = shape
        results = _types(route.signature.results)
        inputs = route.signature.inputs
        layouts = tuple(one.layout for one in inputs)
        key = (*_types(inputs), layouts if any(layouts) else ())
        self._routes[key] = (route, results, binds)

    def call(
        self, arrays: Sequence[Any], more: Any, out: Any, stream: Any, named: Mapping[str, Any]
    ) -> Any:
        """Launch with new results, or go the slow way."""
        shape = self._shape
        if shape is not None and not more and not named:
            try:
                ready = self._ready(shape, shape.inputs(arrays), stream, allocates=True)
            except _UNUSUAL:
                ready = None
            if ready is not None:
                passed = self._launch(shape, *ready)
                return unflatten(shape.tree, [passed[place] for place in shape.places])
        return self._slow["call"](arrays, more, out, stream, named)

    def into(
        self, arrays: Sequence[Any], more: Any, out: Any, stream: Any, named: Mapping[str, Any]
    ) -> Any:
        """Launch with results in `out`, or go the slow way."""
        shape = self._shape
        if shape is not None and not more and not named and out is not MISSING:
            try:
                inputs = shape.inputs(arrays)
                passed = [*inputs, *shape.results(out, inputs)]
                ready = self._ready(shape, passed, stream, allocates=False)
            except _UNUSUAL:
                ready = None
            if ready is not None:
                self._launch(shape, *ready)
                return out
        return self._slow["into"](arrays, more, out, stream, named)

    def _ready(
        self, shape: _Shape, passed: Sequence[Any], stream: Any, *, allocates: bool
    ) -> (
        tuple[Route, PlanKey, BoundPlan, Sequence[Any], int | None, list[tuple[Uses, bool]]] | None
    ):
        """Return route, key, plan, arrays, temporaries last, number of the stream, and uses.

        It is None where anything is unusual; the number where nothing asked for it.

        Raises:
            ArgumentError, KeyError, ValueError: something is unusual.
        """
        adapters = list(map(known_adapter, passed))
        if stream is None:
            views = [one.view_in_order(array) for one, array in zip(adapters, passed, strict=True)]
        else:
            views = [one.view(array) for one, array in zip(adapters, passed, strict=True)]
        pointers, dtypes, shapes, dense, devices, writable, streams, _, known = zip(
            *views, strict=True
        )
        count = shape.input_count
        layouts = () if all(dense) else _layouts(views, count)
        route, results, binds = self._routes[dtypes[:count], shapes[:count], layouts]
        device = devices[0]
        if device is None or devices.count(device) != len(devices):
            return None
        if not all(writable) and not all(shape.written(writable)):
            return None
        if not allocates and (dtypes[count:], shapes[count:]) != results:
            return None
        handle = _common_stream(adapters, streams, device, stream)
        if handle is None:
            return None
        uses = tracked_uses(known, shape.is_written)
        number = number_of(get_device(device), handle) if uses else None
        for one, writes in uses:
            if one.before(number, writes=writes):
                return None
        made: list[Any] = []
        if allocates:
            own = None if stream is None else handle
            made = [
                adapters[0].empty(one.shape, one.dtype, device, own)
                for one in route.signature.results
            ]
        if route.workspace_bytes:
            made.append(_workspace(adapters[0], route.workspace_bytes, device, handle))
        more = [find_adapter(one, "a result").view(one) for one in made]
        if allocates:
            uses += [(view.uses, True) for view in more if view.uses is not None]
        if self._has_several and handle <= DEFAULT_STREAMS and current_device() != device:
            device = ~device
        key = (handle, device, *pointers, *[view.pointer for view in more])
        plan = route.plans.get(key) or (route.try_bind(key) if binds else None)
        if plan is None:
            return None
        return route, key, plan, [*passed, *made], number, uses

    def _launch(
        self,
        shape: _Shape,
        route: Route,
        key: PlanKey,
        plan: BoundPlan,
        passed: Sequence[Any],
        number: int | None,
        uses: Sequence[tuple[Uses, bool]],
    ) -> Sequence[Any]:
        try:
            self._run(route, key, plan)
        except PallascError:
            with suppress(PallascError):  # of several steps some may be in the stream
                _note(key, number, uses)
            _mark_written(shape.written(passed))
            raise
        _note(key, number, uses)
        _mark_written(shape.written(passed))
        return passed

    def _run(self, route: Route, key: PlanKey, plan: BoundPlan) -> None:
        try:
            answer = plan()
        except ODD_ANSWERS as error:
            raise route.explain(key, plan, error) from error
        if answer[0] is not self._success:
            route.retry(key, plan, answer, None)


class _Shape:
    """How the arrays of a signature lie in arguments, `out` and what a call returns.

    Attributes:
        key: what signatures of one shape have in common.
        input_count: how many inputs there are.
        places: of each output, its number among inputs and results.
        tree: of the outputs.
        written: picks what is written from a sequence over inputs and results.
        is_written: of each input and result.
    """

    def __init__(self, signature: Signature, trees: Sequence[Any]) -> None:
        self.input_count = len(signature.inputs)
        self.tree = signature.output_tree
        self.places = [
            number if kind == "input" else self.input_count + number
            for kind, number in signature.sources
        ]
        self._is_one_result = type(self.tree) is int and self.places == [self.input_count]
        self.key = (list(trees), self.tree, self.places)
        self._empty = [n for n, tree in enumerate(trees) if tree is None]
        self._order = [trees.index(number) for number in range(self.input_count)]
        numbers = [*signature.updated, *range(self.input_count, len(signature.passed))]
        self.written = _picker(numbers)
        self.is_written = [n in numbers for n in range(len(signature.passed))]

    @classmethod
    def of(cls, signature: Signature) -> _Shape | None:
        """Return the shape of a signature, None where arrays lie in structures."""
        trees = [tree for _, tree in input_names(signature)]
        flat = all(tree is None or type(tree) is int for tree in trees)
        if not flat or not signature.inputs or not is_flat(signature.output_tree):
            return None
        return cls(signature, trees)

    def inputs(self, arguments: Sequence[Any]) -> list[Any]:
        """Return the inputs in their order.

        Raises:
            ValueError: something is given where nothing was compiled.
        """
        for place in self._empty:
            if arguments[place] is not None and arguments[place] is not MISSING:
                raise ValueError("something is given where nothing was compiled")
        return [arguments[place] for place in self._order]

    def results(self, out: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return the arrays of `out` that results are written into.

        Raises:
            ValueError: it has not the structure of the outputs, or another array somewhere.
        """
        if self._is_one_result:
            return [out]
        found = dict(enumerate(inputs))
        for place, leaf in zip(self.places, leaves_of(self.tree, out), strict=True):
            if found.setdefault(place, leaf) is not leaf:
                raise ValueError("out has another array than it must have")
        return [found[place] for place in range(self.input_count, len(found))]


def _picker(numbers: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a function that picks these of a sequence, and leaves out those beyond its end."""
    inner = itemgetter(*numbers) if len(numbers) > 1 else None

    def pick(values: Sequence[Any]) -> Sequence[Any]:
        if inner is not None and numbers[-1] < len(values):
            picked: tuple[Any, ...] = inner(values)
            return picked
        return [values[number] for number in numbers if number < len(values)]

    return pick


def _layouts(views: Sequence[ArrayView], count: int) -> tuple[Any, ...]:
    """Return the layout of each input.

    Raises:
        ValueError: an array has gaps, or a result is not row-major.
    """
    layouts = tuple(view.layout for view in views[:count])
    for number, view in enumerate(views):
        if not view.is_contiguous and (number >= count or layouts[number] is None):
            raise ValueError("an array has gaps")
    return layouts


def _types(bindings: Sequence[Binding]) -> _Types:
    return tuple(one.dtype for one in bindings), tuple(one.shape for one in bindings)


def _note(key: PlanKey, number: int | None, uses: Sequence[tuple[Uses, bool]]) -> None:
    """Note a launch with the arrays that know their uses."""
    if uses:
        note_uses(get_device(key[1] if key[1] >= 0 else ~key[1]), key[0], number, uses)


def _mark_written(arrays: Sequence[Any]) -> None:
    """Tell frameworks that count the writes to an array of those of a launch."""
    for array in arrays:
        known_adapter(array).mark_written((array,))


def _workspace(adapter: Adapter, size_bytes: int, device: int, stream: int) -> Any:
    """Return memory for temporaries from a framework.

    Raises:
        ValueError: it has no pool.
    """
    if not adapter.has_pool:
        raise ValueError("temporaries come from elsewhere")
    return adapter.empty((size_bytes,), "u8", device, stream)


def _common_stream(
    adapters: Sequence[Adapter], told: Sequence[int | None], device: int, stream: Any
) -> int | None:
    """Return the stream that all arrays and the call name, None where they name several."""
    found = {*told}
    found.discard(None)
    if stream is not None:
        found.add(stream_handle(stream))
    else:
        for adapter in set(adapters):
            if adapter.has_pool:
                found.add(adapter.stream(device))
    if 1 in found:  # another name of the default stream
        found.remove(1)
        found.add(0)
    if len(found) > 1:
        return None
    return found.pop() if found else 0
