"""Generate the function that handles the common case of a call.

For each kernel and framework, the generated function does its checks in one `and` chain and finds
the plan with one lookup. A call that fails a check goes to the slow path, which finds the variant
or writes the error message. Only identifiers are inserted into the source text; everything else is
passed as values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from pallasc.errors import PallascError
from pallasc.runtime.calls.generated import BUILTINS, Function, compile_function, parameter_names
from pallasc.runtime.calls.launch import Route
from pallasc.runtime.calls.plan_table import PlanKey
from pallasc.runtime.calls.program import BoundPlan
from pallasc.runtime.device.answers import ODD_ANSWERS
from pallasc.runtime.device.devices import device_count, get_device
from pallasc.runtime.device.streams import DEFAULT_STREAMS, stream_handle
from pallasc.runtime.device.uses import Uses, note_uses, number_of
from pallasc.runtime.matching.arrays import Dialect, NewArray
from pallasc.specs.arrays import strides_of
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.artifacts.signature import children_of, input_names, is_flat


@dataclass(frozen=True, slots=True)
class FastPaths:
    """The generated functions.

    Attributes:
        into: writes into `out`.
        call: allocates the results.
    """

    into: Function
    call: Function


def make_fast_paths(
    route: Route,
    dialect: Dialect,
    slow: Mapping[str, Function],
    success: Any,
    *,
    checks: bool,
) -> FastPaths | None:
    """Return the functions for a route, None if its signature is too complex for them.

    Args:
        route: the route whose arrays are checked and whose plans are launched.
        dialect: the framework of the arrays.
        slow: for "into" and "call", the function called as
            `slow(arrays, more, out, stream, params)` for anything unusual.
        success: the driver's success code.
        checks: check dtype, shape, contiguity and device at each launch.
    """
    writer = _Writer(route, dialect, slow, success, checks)
    if not writer.is_possible():
        return None
    return FastPaths(writer.function("into"), writer.function("call"))


def _bind_nothing(_: Any) -> None:
    """Stand in for plan binding if the slow path must choose among several routes."""


class _Writer:
    """Writer of both functions of one route."""

    def __init__(
        self,
        route: Route,
        dialect: Dialect,
        slow: Mapping[str, Function],
        success: Any,
        checks: bool,
    ) -> None:
        self.route = route
        self.slow = slow
        self.signature = route.signature
        self.dialect = dialect
        self.checks = checks
        trees = input_names(self.signature)
        self.trees = [tree for _, tree in trees]
        self.parameters = parameter_names([name for name, _ in trees])
        self.results = [f"_result{n}" for n in range(len(self.signature.results))]
        self.values: dict[str, object] = {
            **dialect.values,
            "_Kind": dialect.kind,
            "_kinds": dialect.other_kinds,
            **BUILTINS,
            "_plans": route.plans,
            # If other routes take these arrays, the slow path handles new addresses.
            "_bind": route.try_bind if route.is_only else _bind_nothing,
            "_retry": route.retry,
            "_explain": route.explain,
            "_odd_answers": ODD_ANSWERS,
            "_success": success,
            "_stream_handle": stream_handle,
            "_device": get_device,
            "_number_of": number_of,
            "_launch_noted": partial(launch_noted, route),
        }

    def is_possible(self) -> bool:
        """Return True if no arrays are nested, and the framework knows their dtypes."""
        flat = all(tree is None or type(tree) is int for tree in self.trees) and is_flat(
            self.signature.output_tree
        )
        has_dtypes = all(array.dtype in self.dialect.dtypes for array in self.signature.passed)
        has_layouts = any(array.layout is not None for array in self.signature.inputs)
        if has_layouts and not self.dialect.strided:
            return False
        if self.dialect.uses and self.route.workspace_bytes:
            return False  # temporaries come from the driver, in stream order
        return flat and has_dtypes and bool(self.signature.inputs)

    def function(self, kind: str) -> Function:
        """Return `into` or `call`, compiled."""
        source = self._lines(kind)
        return compile_function(source, {**self.values, "_slow": self.slow[kind]}, kind)

    def _lines(self, kind: str) -> list[str]:
        is_into = kind == "into"
        arrays = "".join(f"{name}=_MISSING, " for name in self.parameters)
        out = "out=_MISSING, " if is_into else ""
        slow_out = "out" if is_into else "_MISSING"
        names = "".join(f"{name}, " for name in self.parameters)
        body = self._body(is_into)
        return [
            f"def _front({arrays}*_more, {out}stream=None, **_params):",
            *(f"    {line}" for line in body),
            f"    return _slow(({names}), _more, {slow_out}, stream, _params)",
        ]

    def _body(self, is_into: bool) -> list[str]:
        """Return the lines for the common case; anything unusual falls through them."""
        inputs = [self._input(number) for number in range(len(self.signature.inputs))]
        lines, tests = [], ["not _more", "not _params"]
        tests += [
            f"({name} is None or {name} is _MISSING)"
            for name, tree in zip(self.parameters, self.trees, strict=True)
            if tree is None
        ]
        passed = [*inputs]
        if is_into:
            opening, own_tests, results = self._given_results(inputs)
            lines += opening
            tests += own_tests
            passed += results
        if self.dialect.new_in is None and (not is_into or self.route.workspace_bytes):
            # Allocations belong to the framework's current stream.
            tests.append("stream is None")
        for name, binding in zip(passed, self.signature.passed, strict=False):
            tests += self._tests(name, binding)
        places = [f"_place{n}" for n in range(len(passed))]
        conditions = ["_d >= 0"]
        if self.checks:
            conditions += [f"{self.dialect.device.format(x=name)} == _d" for name in passed[1:]]
        return [
            *lines,
            "_is_usual = False",
            "try:",
            f"    if {' and '.join(tests)}:",
            f"        _d = {self.dialect.device.format(x=inputs[0])}",
            f"        _is_usual = {' and '.join(conditions)}",
            *(
                f"        {place} = {self.dialect.pointer.format(x=name)}"
                for place, name in zip(places, passed, strict=True)
            ),
            "except _Unusual:",
            "    _is_usual = False",
            "if _is_usual:",
            *(f"    {line}" for line in self._launch(inputs, places, is_into)),
        ]

    def _input(self, number: int) -> str:
        return self.parameters[self.trees.index(number)]

    def _given_results(self, inputs: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
        """Return how to unpack `out`: lines before the tests, tests, names of the results."""
        tree = self.signature.output_tree
        if type(tree) is int:
            source, number = self.signature.sources[tree]
            if source == "input":
                return [], [f"(out is {inputs[number]} or out is _MISSING)"], []
            return [], [], ["out"]
        leaves = children_of(tree)
        names = [f"_out{n}" for n in range(len(leaves))]
        lines = [
            f"if _type(out) in _sequences and _len(out) == {len(leaves)}:",
            f"    {', '.join(names)}, = out",
            "else:",
            f"    {' = '.join(names)} = _MISSING",
        ]
        results: dict[int, str] = {}
        tests = []
        for name, leaf in zip(names, leaves, strict=True):
            source, number = self.signature.sources[leaf]
            if source == "input":
                tests.append(f"{name} is {inputs[number]}")
            elif results.setdefault(number, name) != name:
                tests.append(f"{name} is {results[number]}")
        return lines, tests, [results[n] for n in sorted(results)]

    def _tests(self, name: str, binding: Binding) -> list[str]:
        tests = [f"(_type({name}) is _Kind or _type({name}) in _kinds)"]
        if self.checks:
            number = len(self.values)
            dtype, shape, strides = (
                f"_dtype_{binding.dtype}",
                f"_shape{number}",
                f"_strides{number}",
            )
            self.values[dtype] = self.dialect.dtypes[binding.dtype]
            self.values[shape] = binding.shape
            self.values[strides] = binding.strides
            layout = self.dialect.layout if binding.layout is None else self.dialect.strided
            tests += [
                f"{self.dialect.dtype.format(x=name)} is {dtype}",
                layout.format(x=name, shape=shape, strides=strides),
            ]
            is_complex = binding.dtype[0] == "c"
            is_imaginary = binding.dtype[0] == "f" and math.prod(binding.shape) == 1
            if self.dialect.plain and (is_complex or is_imaginary):
                tests.append(self.dialect.plain.format(x=name))
        return tests

    def _launch(self, inputs: Sequence[str], places: Sequence[str], is_into: bool) -> list[str]:
        """Return the lines that run if the arrays pass the checks."""
        ask = self.dialect
        new = self._new(is_into)
        stream, allocations = self._stream_and_memory(inputs[0], new)
        key = ["_s", "_d", *places, *(ask.pointer.format(x=name) for name in new)]
        out = self._returned(inputs, is_into)
        lines = [
            *allocations,
            *(self._own_context() if device_count() > 1 else []),
            f"_key = ({', '.join(key)})",
            "_plan = _plans.get(_key) or _bind(_key)",
            "if _plan is not None:",
        ]
        if ask.uses:
            return [*stream, *self._in_order(inputs, lines, out, is_into)]
        return [
            *stream,
            *lines,
            *self._marks(inputs, is_into),
            "    try:",
            "        _answer = _plan()",
            "    except _odd_answers as _error:",
            "        raise _explain(_key, _plan, _error) from _error",
            "    if _answer[0] is _success:",
            f"        return {out}",
            f"    return _retry(_key, _plan, _answer, {out})",
        ]

    def _in_order(
        self, inputs: Sequence[str], lines: Sequence[str], out: str, is_into: bool
    ) -> list[str]:
        """Return the launch for arrays that track their uses, if no other stream uses them."""
        written = [number in self.signature.updated for number in range(len(inputs))]
        given = [*inputs, *(self._given_results(inputs)[2] if is_into else [])]
        uses = [self.dialect.uses.format(x=name) for name in given]
        writes = [*written, *[True] * (len(given) - len(inputs))]
        waits = [
            f"{memory}.before(_n, writes={written})"
            for memory, written in zip(uses, writes, strict=True)
        ]
        if not is_into:
            uses += [self.dialect.uses.format(x=name) for name in self.results]
            writes += [True] * len(self.results)
        noted = "".join(
            f"({memory}, {written}), " for memory, written in zip(uses, writes, strict=True)
        )
        return [
            "_n = _number_of(_device(_d), _s)",
            f"if not ({' or '.join(waits)}):",
            *(f"    {line}" for line in lines),
            f"        return _launch_noted(_key, _plan, _n, ({noted}), {out})",
        ]

    def _marks(self, inputs: Sequence[str], is_into: bool) -> list[str]:
        """Return the line that marks the caller's written arrays in the framework."""
        written = [inputs[number] for number in self.signature.updated]
        if is_into:
            written += self._given_results(inputs)[2]
        if not written or not self.dialect.mark_written:
            return []
        listed = "".join(f"{name}, " for name in written)
        return [f"    {self.dialect.mark_written.format(xs=f'({listed})')}"]

    def _new(self, is_into: bool) -> dict[str, NewArray]:
        """Return the arrays to allocate, by their variable names."""
        dtypes = self.dialect.dtypes
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {}
        if not is_into:
            rows = zip(self.results, self.signature.results, strict=True)
            shapes = {name: (result.shape, dtypes[result.dtype]) for name, result in rows}
        if self.route.workspace_bytes:
            shapes["_workspace"] = ((self.route.workspace_bytes,), dtypes["u8"])
        return {
            name: (shape, strides_of([max(1, size) for size in shape]), dtype)
            for name, (shape, dtype) in shapes.items()
        }

    def _stream_and_memory(
        self, first: str, new: Mapping[str, NewArray]
    ) -> tuple[list[str], list[str]]:
        """Return the lines that set the stream `_s`, and the lines that allocate for work in it."""
        current = self.dialect.stream.format(d="_d")
        if not new:
            return [f"_s = {current} if stream is None else _stream_handle(stream)"], []
        lines = []
        for name, (shape, strides, dtype) in new.items():
            known = {"shape": shape, "strides": strides, "dtype": dtype}
            self.values |= {f"_{what}{name}": value for what, value in known.items()}
            words = {what: f"_{what}{name}" for what in known}
            lines.append(f"{name} = {self.dialect.new.format(x=first, d='_d', **words)}")
        if self.dialect.new_in is None:
            return [f"_s = {current}"], lines
        self.values["_new_in"] = self.dialect.new_in
        self.values["_all_new"] = tuple(new.values())
        listed = "".join(f"{name}, " for name in new)
        given = ["if stream is not None:", "    _own, _s = _s, _stream_handle(stream)"]
        return [f"_s = {current}", *given], [
            "if stream is None or _s == _own:",
            *(f"    {line}" for line in lines),
            "else:",
            f"    {listed}= _new_in(_s, _d, _all_new)",
        ]

    def _own_context(self) -> list[str]:
        """Return the lines for a default stream, which belongs to the current device."""
        is_other = f"_s <= {DEFAULT_STREAMS} and {self.dialect.current_device} != _d"
        return [f"if {is_other}:", "    _d = ~_d"]

    def _returned(self, inputs: Sequence[str], is_into: bool) -> str:
        tree = self.signature.output_tree
        names = [
            inputs[number] if source == "input" else self._result(number, is_into)
            for source, number in self.signature.sources
        ]
        if type(tree) is int:
            return names[tree]
        if is_into:
            return "out"
        listed = "".join(f"{names[leaf]}, " for leaf in children_of(tree))
        return f"[{listed}]" if isinstance(tree, list) else f"({listed})"

    def _result(self, number: int, is_into: bool) -> str:
        return "out" if is_into else self.results[number]


def launch_noted(
    route: Route,
    key: PlanKey,
    plan: BoundPlan,
    number: int,
    uses: Sequence[tuple[Uses, bool]],
    out: Any,
) -> Any:
    """Launch a plan for arrays that track their uses, record it in those uses, and return `out`.

    Args:
        route: the route of the plan.
        key: stream, device and addresses.
        plan: the plan to launch.
        number: the stream's ID, see `number_of`.
        uses: for each array, its uses and whether it is written.
        out: the value to return.

    Raises:
        DriverError: as for `Route.retry`.
    """
    device = get_device(key[1] if key[1] >= 0 else ~key[1])
    try:
        route.launch_plan(key, plan)
    except PallascError:
        with suppress(PallascError):  # some of several steps may be enqueued
            note_uses(device, key[0], number, uses)
        raise
    note_uses(device, key[0], number, uses)
    return out
