"""Calls through the extension `_native`, if it is available.

A front is a C function that does the work of a generated function: it inspects the arrays of a call
through DLPack's C exchange API, and enqueues the steps of the matching route in a stream. It keeps
no bound plans, since it sets the parameters again at each launch. Anything it does not handle,
including wrong arrays, goes to its fallback, the path that calls take without the extension.
`runtime/native/python.c` reads the data packed here: words of eight bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any

from pallasc.errors import PallascError
from pallasc.runtime.calls.fast_path_table import differ_in_layout, questions
from pallasc.runtime.calls.generated import Function, parameter_names, skip_frames
from pallasc.runtime.calls.launch import Route
from pallasc.runtime.calls.program import Parts
from pallasc.runtime.device.devices import get_device, open_driver
from pallasc.runtime.device.parameters import function_address, value_bytes
from pallasc.runtime.device.streams import check_stream, stream_handle
from pallasc.runtime.matching.arrays import Exchange
from pallasc.runtime.matching.candidates import Candidate
from pallasc.runtime.matching.dlpack_types import dlpack_code
from pallasc.runtime.native.extension import extension
from pallasc.specs.arrays import parse_dtype, strides_of
from pallasc.specs.artifacts.plan import Bytes, Copy, Launch, Parameter, Pointer, Step
from pallasc.specs.artifacts.signature import MISSING, Signature, children_of, input_names, is_flat

_CALL, _INTO, _OPERATOR = 0, 1, 2
_ASK_DTYPE, _ASK_SHAPE, _ASK_STRIDES, _ASK_PLAIN = 1, 2, 4, 8
_LEAF, _TUPLE, _LIST, _NONE = 0, 1, 2, 3
_AT_ARRAY, _AT_WORKSPACE, _AT_ADDRESS = 0, 1, 2
_LAUNCH, _FILL, _COPY = 0, 1, 2
_FUNCTIONS = (
    *("cuLaunchKernelEx", "cuMemcpyDtoDAsync", "cuMemsetD8Async", "cuMemsetD32Async"),
    *("cuTensorMapReplaceAddress", "cuCtxGetCurrent"),
)

Slots = tuple[int, ...]
"""The input number for each parameter of a front, -1 if it must be None."""


class NativePaths:
    """The fronts of one kernel, all for the first framework whose arrays they support.

    Args:
        variants: all variants of the kernel.
        checks: the kernel's `checks`; if False, only properties that differ between variants are
            checked.
    """

    def __init__(self, variants: Sequence[Candidate], *, checks: bool) -> None:
        self._questions = set(questions(variants))
        self._checks = checks
        self._is_possible = checks or not differ_in_layout(variants)
        self._exchange: Exchange | None = None
        self._routes: list[Route] = []
        self._fronts: dict[str, Any] = {}
        self._operators: list[tuple[Any, Slots]] = []

    def add(
        self, route: Route, exchange: Exchange | None, fallbacks: Mapping[str, Function]
    ) -> Mapping[str, Function]:
        """Return the functions "call" and "into" to call from now on.

        Args:
            route: a route that they should also launch.
            exchange: the framework of its arrays, None if the extension does not support it.
            fallbacks: the functions for calls that they do not handle; returned as they are if
                fronts are not possible.
        """
        if exchange is not None and self._can_take(route, exchange):
            if self._exchange is None:
                self._start(exchange, _names(route.signature), fallbacks)
            if self._exchange is not None and self._exchange.kinds == exchange.kinds:
                self._take(route)
        for what, front in self._fronts.items():
            front.__self__.fall_back(fallbacks[what])
        return {**fallbacks, **self._fronts}

    def _start(
        self, exchange: Exchange, names: Sequence[str | None], fallbacks: Mapping[str, Function]
    ) -> None:
        """Create the fronts, if the framework's exchange API is as expected."""
        fronts = {
            what: make_front(kind, names, exchange, fallbacks[what])
            for what, kind in _KINDS.items()
        }
        if None in fronts.values():
            self._is_possible = False
        else:
            self._fronts, self._exchange = fronts, exchange

    def _take(self, route: Route) -> None:
        if route not in self._routes:
            self._routes.append(route)
            for what, front in self._fronts.items():
                self._add_route(front, _KINDS[what], route, _slots(route.signature))
            for front, slots in self._operators:
                self._add_route(front, _OPERATOR, route, slots)

    def serve(self, front: Any, slots: Slots) -> None:
        """Make an operator's front launch the routes of this kernel, present and future.

        Args:
            front: the result of `make_front`.
            slots: the input of each of the operator's parameters.
        """
        self._operators.append((front, slots))
        for route in self._routes:
            self._add_route(front, _OPERATOR, route, slots)

    def _can_take(self, route: Route, exchange: Exchange) -> bool:
        """Return True if the extension supports such arrays and such a structure."""
        native = extension()
        if native is None or not self._is_possible:
            return False
        signature = route.signature
        trees = [tree for _, tree in input_names(signature)]
        are_flat = all(tree is None or type(tree) is int for tree in trees)
        return (
            route.is_only  # otherwise addresses decide between routes
            and bool(signature.inputs)
            and are_flat
            and is_flat(signature.output_tree)
            and len(trees) <= native.MOST_ARRAYS
            and len(signature.passed) + 1 < native.MOST_ARRAYS
            and len(signature.outputs) < native.MOST_ARRAYS
            and all(_is_known(array.dtype, exchange) for array in signature.passed)
        )

    def _add_route(self, front: Any, kind: int, route: Route, slots: Slots) -> None:
        exchange, signature = self._exchange, route.signature
        if exchange is None:  # then there are no routes
            return
        returns, leaves = _outputs(signature, kind)
        workspace = _allocation((route.workspace_bytes,), "u8", exchange)
        front.__self__.add(
            len(signature.inputs),
            b"".join(self._array_words(signature)),
            slots,
            tuple(signature.updated),
            returns,
            leaves,
            tuple(_allocation(array.shape, array.dtype, exchange) for array in signature.results),
            workspace if route.workspace_bytes else None,
            partial(_make_program, route),
            _admit,
            partial(_refuse, route),
        )
        route.fronts.append(front.__self__)

    def _array_words(self, signature: Signature) -> Iterator[bytes]:
        """Yield the checks for each array, packed."""
        alignments, sizes = signature.alignments, signature.sizes_bytes
        for number, array in enumerate(signature.passed):
            asks = _ASK_DTYPE | _ASK_SHAPE | _ASK_STRIDES
            if not self._checks:
                asks = _ASK_DTYPE * ((number, "dtype") in self._questions)
                asks |= _ASK_SHAPE * ((number, "shape") in self._questions)
            elif array.dtype[0] == "c" or (array.dtype[0] == "f" and math.prod(array.shape) == 1):
                asks |= _ASK_PLAIN * bool(self._exchange and self._exchange.is_plain)
            yield struct.pack(
                f"=6q{2 * len(array.shape)}q",
                dlpack_code(array.dtype),
                parse_dtype(array.dtype).bits,
                asks,
                alignments[number],
                sizes[number],
                len(array.shape),
                *array.shape,
                *array.strides,
            )


_KINDS = {"into": _INTO, "call": _CALL}


def make_operator(exchange: Exchange, count: int, fallback: Function) -> Function | None:
    """Return a function for an operator with `count` parameters, None if it is not possible.

    Args:
        exchange: the framework's exchange API.
        count: number of parameters, all positional.
        fallback: called until routes are added, and for calls that no route matches.
    """
    if extension() is None:
        return None
    return make_front(_OPERATOR, [None] * count, exchange, fallback)


def make_front(
    kind: int, names: Sequence[str | None], exchange: Exchange, fallback: Function
) -> Function | None:
    """Return a C function without routes, whose `__self__` is the front.

    None if the framework's exchange API has another version, or there are too many parameters.
    """
    native: Any = extension()
    asked = (_make_program, _admit, _refuse, stream_handle, exchange.is_plain)
    skip_frames(function for function in asked if isinstance(function, FunctionType))
    try:
        made: Function = native.front(
            kind,
            tuple(names),
            MISSING,
            fallback,
            exchange.kinds,
            exchange.capsule,
            exchange.mark_written,
            exchange.new_here,
            exchange.new_in,
            stream_handle,
            exchange.is_plain,
            exchange.stream_address,
        )
    except ValueError:
        return None
    return made


def _is_known(dtype: str, exchange: Exchange) -> bool:
    has_code = dlpack_code(dtype) is not None
    return dtype in exchange.dtypes and has_code and parse_dtype(dtype).bits >= 8


def _names(signature: Signature) -> tuple[str | None, ...]:
    """Return the names that parameters can be passed by."""
    named = [name for name, _ in input_names(signature)]
    generated = parameter_names(named)
    return tuple(name if name == own else None for name, own in zip(named, generated, strict=True))


def _slots(signature: Signature) -> Slots:
    return tuple(-1 if tree is None else tree for _, tree in input_names(signature))


def _outputs(signature: Signature, kind: int) -> tuple[int, tuple[tuple[bool, int], ...]]:
    """Return the kind of return value, and for each part whether it is a result, and its number."""
    if kind == _OPERATOR:
        fresh = tuple((True, number) for number in range(len(signature.results)))
        return (_NONE if not fresh else _LEAF if len(fresh) == 1 else _TUPLE), fresh
    tree = signature.output_tree
    leaves = [tree] if type(tree) is int else children_of(tree)
    sources = (signature.sources[leaf] for leaf in leaves)
    places = tuple((source == "result", number) for source, number in sources)
    if type(tree) is int:
        return _LEAF, places
    return (_LIST if isinstance(tree, list) else _TUPLE), places


def _allocation(shape: tuple[int, ...], dtype: str, exchange: Exchange) -> tuple[Any, ...]:
    """Return the arguments of `Exchange.new_here` for a row-major array."""
    return shape, strides_of(shape, None), exchange.dtypes[dtype]


# ---- callbacks from fronts


def _make_program(route: Route, ordinal: int) -> Any:
    """Return a route's steps on a device; None if Python must launch first, False if impossible."""
    native: Any = extension()
    program = route.loaded(ordinal)
    parts = None if program is None else program.parts()
    if program is None or parts is None:
        return None
    driver = open_driver()
    try:
        functions = [
            function_address(driver, name, f"{route.name} cannot be launched")
            for name in _FUNCTIONS
        ]
        places = _places(route.signature, parts)
        return native.program(
            struct.pack(f"={len(functions)}Q", *functions),
            int(program.device.context),
            struct.pack(f"={len(places)}Q", *places),
            tuple(_steps(parts)),
        )
    except (PallascError, ValueError, TypeError):
        return False


def _places(signature: Signature, parts: Parts) -> list[int]:
    """Return the location of each buffer, two words each."""
    found = [(_AT_ADDRESS, address) for address in parts.fixed]
    for number, buffer in enumerate(signature.buffers):
        found[buffer] = _AT_ARRAY, number
    for buffer, offset in parts.temporaries:
        found[buffer] = _AT_WORKSPACE, offset
    return [word for place in found for word in place]


def _steps(parts: Parts) -> Iterator[tuple[bytes, bytes]]:
    """Yield the words of each step, and the bytes that it passes by value."""
    functions = iter(parts.functions)
    start = 0
    for step in parts.steps:
        if not isinstance(step, Launch):
            words = _memory_words(step)
            yield struct.pack(f"={len(words)}Q", *words), b""
            continue
        size = sum(value_bytes(value) for value in step.parameters if isinstance(value, Bytes))
        words = _launch_words(step, int(next(functions)))
        yield struct.pack(f"={len(words)}Q", *words), parts.values[start : start + size]
        start += size


def _memory_words(step: Step) -> list[int]:
    if isinstance(step, Copy):
        return [
            *(_COPY, step.target, step.target_offset),
            *(step.source, step.source_offset, step.size),
        ]
    if isinstance(step, Launch):
        raise TypeError("a launch is no step on memory")
    count = step.size // step.width
    return [_FILL, step.buffer, step.offset, count, step.value, step.width]


def _launch_words(step: Launch, function: int) -> list[int]:
    parameters: list[int] = []
    maps: list[int] = []
    at = 0
    for parameter in step.parameters:
        if isinstance(parameter, Pointer):
            parameters += 0, parameter.buffer, parameter.offset
            continue
        value = _by_value(parameter)
        parameters += 1, 0, at
        for offset, tensor_map in value.tensor_maps:
            maps += at + offset, tensor_map.buffer, tensor_map.offset
        at += value_bytes(value)
    has_cluster = step.cluster is not None
    return [
        *(_LAUNCH, function, *step.grid, *step.block, step.dynamic_smem_bytes),
        *(int(has_cluster), *(step.cluster or (0, 0, 0)), int(step.pdl)),
        *(len(step.parameters), len(maps) // 3, *parameters, *maps),
    ]


def _by_value(parameter: Parameter) -> Bytes:
    if not isinstance(parameter, Bytes):
        raise TypeError("a parameter for several devices")
    return parameter


def _admit(ordinal: int, stream: int) -> None:
    """Check a stream before the first launch in it."""
    check_stream(stream, get_device(ordinal))


def _refuse(route: Route, ordinal: int, code: int, step: int) -> None:
    """Raise the error for the driver's code."""
    raise route.program(ordinal).refusal(code, step)
