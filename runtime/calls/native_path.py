"""Calls through the extension `_native`, if it is available.

A front is a C function that inspects the arrays of a call, finds the route with the same dtypes,
shapes and layouts, and launches its plan through the C library. A front passes calls that it does
not handle, such as calls with wrong arrays, to its fallback: the front of another framework that
the kernel was called with earlier. The last fallback is the Python code that handles every call.
`runtime/native/python.c` reads the data packed here: words of eight bytes.

`torch.compile` traces every function that it meets, and every frame that runs between its graphs. A
function marked by `untraced` ends the graph, with `TRACED` as the reason. A function given to
`skip_frames` runs unchanged, including everything it calls.
"""

from __future__ import annotations

import ctypes
import math
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from pallasc.errors import DeviceError
from pallasc.runtime.calls.launch import Route
from pallasc.runtime.calls.plain import function_address
from pallasc.runtime.device.devices import open_driver, state
from pallasc.runtime.device.streams import default_tail, stream_handle
from pallasc.runtime.matching.arrays import (
    Access,
    Adapter,
    dlpack_code,
    is_row_major,
)
from pallasc.runtime.matching.candidates import Candidate
from pallasc.runtime.native.library import extension, open_library
from pallasc.specs.arrays import parse_dtype, strides_of
from pallasc.specs.artifacts.plan import LaunchPlan, tree_leaves
from pallasc.specs.artifacts.signature import MISSING, input_names, is_flat

# ---- keeping calls out of torch.compile

Function = Callable[..., Any]

TRACED = "Register the kernel with torch_operator() to use it under torch.compile."

_F = TypeVar("_F", bound=Callable[..., Any])


def untraced(function: _F) -> _F:
    """Mark a function like `torch.compiler.disable` does, but without a wrapper."""
    vars(function).update(_torchdynamo_disable=True, _torchdynamo_disable_msg=TRACED)
    return function


def skip_frames(functions: Iterable[Callable[..., Any] | None]) -> None:
    """Make torch, if loaded, run these functions and everything they call unchanged.

    C functions have no frames to skip. If the torch version lacks the internals used here,
    torch.compile only loses time on the functions.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    with suppress(AttributeError, TypeError):
        frames = torch._C._dynamo.eval_frame
        skip = frames._FrameAction.SKIP
        for function in functions:
            code = getattr(getattr(function, "func", function), "__code__", None)  # of a `partial`
            if code is not None:
                frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))


# ---- fronts


_CALL, _INTO, _OPERATOR = 0, 1, 2
_KINDS = {"into": _INTO, "call": _CALL}
_ASK_DTYPE, _ASK_SHAPE, _ASK_STRIDES, _ASK_PLAIN, _IS_ROW_MAJOR, _IS_WRITTEN = 1, 2, 4, 8, 16, 32
_LEAF, _TUPLE, _LIST, _NONE = 0, 1, 2, 3
_NO_CODE = -1
_MOST_FRAMEWORKS = 8
"""Maximum number of fronts of a kernel; a call may go through all of them."""

Slots = tuple[int, ...]
"""The number of the input for each parameter of a front; -1 if the parameter must be None."""


class NativePaths:
    """The fronts of one kernel: for calls and for `into`, for each framework it was called with.

    Args:
        variants: all variants of the kernel.
        checks: the kernel's `checks`; if False, only properties that differ between variants are
            checked.
        slow: for "call" and "into", the function that handles every call.
    """

    def __init__(
        self, variants: Sequence[Candidate], *, checks: bool, slow: Mapping[str, Function]
    ) -> None:
        self._variants = variants
        self._questions = _questions(variants)
        self._checks = checks
        self._is_possible = extension() is not None and (checks or not _differ_in_layout(variants))
        self._current = dict(slow)
        self._frameworks: dict[tuple[type, ...], _Framework] = {}
        self._operators: list[tuple[Any, Access, Slots]] = []

    def add(self, route: Route, adapter: Adapter, kind: type) -> Mapping[str, Function] | None:
        """Return the functions "call" and "into" to call from now on, None if nothing changes.

        Args:
            route: a route that they should also launch.
            adapter: the framework of its arrays.
            kind: the type of its first array.
        """
        if not self._is_possible or not self._can_take(route):
            return None
        access = adapter.access(kind)
        if not _can_hold(route, adapter, access):
            return None
        framework = self._frameworks.get(access.kinds)
        if framework is None and len(self._frameworks) >= _MOST_FRAMEWORKS:
            return None
        if framework is None:
            names = _names(route.signature)
            fronts = {
                what: make_front(number, names, access, self._current[what])
                for what, number in _KINDS.items()
            }
            framework = self._frameworks[access.kinds] = _Framework(fronts, [])
            self._current = fronts
        if route not in framework.routes:
            for what, front in framework.fronts.items():
                self._add_route(front, access, _KINDS[what], route, _slots(route.signature))
            for front, own, slots in self._operators:
                if own.kinds == access.kinds:
                    self._add_route(front, own, _OPERATOR, route, slots)
            framework.routes.append(route)
        return self._current

    def serve(self, front: Any, access: Access, slots: Slots) -> None:
        """Make an operator's front launch the routes of this kernel, present and future.

        Args:
            front: the result of `make_front`.
            access: the framework of its arrays.
            slots: the input of each of the operator's parameters.
        """
        with state.lock:
            self._operators.append((front, access, slots))
            framework = self._frameworks.get(access.kinds)
            for route in framework.routes if framework is not None else ():
                self._add_route(front, access, _OPERATOR, route, slots)

    def _can_take(self, route: Route) -> bool:
        """Return True if the extension supports the structure of the arguments and results."""
        most = extension().MOST_ARRAYS  # type: ignore[union-attr]
        signature = route.signature
        trees = [tree for _, tree in input_names(signature)]
        return (
            route.is_only  # otherwise the GPU decides between routes
            # Arguments are bound to the parameters of the first variant.
            and _names(signature) == _names(self._variants[0].signature)
            and bool(signature.inputs)
            and all(tree is None or type(tree) is int for tree in trees)
            and is_flat(signature.output_tree)
            and len(trees) <= most
            and len(signature.passed) + 1 < most
            and len(signature.outputs) < most
        )

    def _add_route(self, front: Any, access: Access, kind: int, route: Route, slots: Slots) -> None:
        signature = route.signature
        inputs, results = len(signature.inputs), len(signature.results)
        returns, leaves = _outputs(signature, kind)
        head = (inputs, results, bool(route.workspace_bytes), returns, len(leaves))
        new = [] if kind == _INTO else [(own.shape, own.dtype) for own in signature.results]
        if route.workspace_bytes:
            new.append(((route.workspace_bytes,), "u8"))
        arrays = self._array_words(signature, access, kind)
        front.__self__.add(
            b"".join([_packed(*head, *slots, *leaves), *arrays]),
            tuple((array.dtype, array.shape, array.strides) for array in signature.passed),
            tuple(_allocation(shape, dtype, access) for shape, dtype in new),
            (partial(_make_program, route), _refuse),
        )
        route.fronts.append(front.__self__)

    def _array_words(self, signature: LaunchPlan, access: Access, kind: int) -> Iterator[bytes]:
        """Yield the checks for each array, packed."""
        given = {*signature.updated}
        if kind == _INTO:
            given.update(range(len(signature.inputs), len(signature.passed)))
        for number, array in enumerate(signature.passed):
            asks = _ASK_DTYPE | _ASK_SHAPE | _ASK_STRIDES
            if not self._checks:
                asks = _ASK_DTYPE * ((number, "dtype") in self._questions)
                asks |= _ASK_SHAPE * ((number, "shape") in self._questions)
            elif array.dtype[0] == "c" or (array.dtype[0] == "f" and math.prod(array.shape) == 1):
                asks |= _ASK_PLAIN * bool(access.capsule and access.is_plain)
            asks |= _IS_ROW_MAJOR * is_row_major(array.shape, array.strides, 1)
            asks |= _IS_WRITTEN * (number in given)
            code = dlpack_code(array.dtype)
            yield _packed(
                _NO_CODE if code is None else code,
                parse_dtype(array.dtype).bits,
                asks,
                len(array.shape),
                *array.shape,
                *array.strides,
            )


def _packed(*words: int) -> bytes:
    return struct.pack(f"={len(words)}q", *words)


class _Framework(NamedTuple):
    """The fronts for arrays of one framework, and the routes that they launch."""

    fronts: dict[str, Function]
    routes: list[Route]


def make_operator(access: Access, count: int, fallback: Function) -> Function | None:
    """Return a function for an operator with `count` parameters, None without the extension.

    Args:
        access: the framework of its arrays.
        count: number of parameters, all positional.
        fallback: called until routes are added, and for calls that no route matches.
    """
    native = extension()
    if native is None or count > native.MOST_ARRAYS:
        return None
    return make_front(_OPERATOR, [None] * count, access, fallback)


def make_front(
    kind: int, names: Sequence[str | None], access: Access, fallback: Function
) -> Function:
    """Return a front without routes; they are added to the C function's `__self__`."""
    native: Any = extension()
    calls = (
        fallback,
        access.describe,
        access.describe_in_order,
        access.mark_written,
        access.new_here,
        access.new_in,
        stream_handle,
        access.is_plain,
        access.stream,
    )
    skip_frames((*calls, *_CALLBACKS))
    made: Function = native.front(
        kind, tuple(names), MISSING, access.kinds, access.capsule, calls, access.stream_address
    )
    return made


def _questions(variants: Sequence[Candidate]) -> set[tuple[int, str]]:
    """Return the array number and `shape` or `dtype` for each property in which variants differ."""
    found = set()
    for leaf, types in enumerate(zip(*(variant.arrays for variant in variants), strict=False)):
        dtypes, shapes = ({array[part] for array in types} for part in (0, 1))
        found |= {(leaf, "shape")} if len(shapes) > 1 else set()
        found |= {(leaf, "dtype")} if len(dtypes) > 1 else set()
    return found


def _differ_in_layout(variants: Sequence[Candidate]) -> bool:
    layouts = {tuple(array.layout for array in variant.facts.inputs) for variant in variants}
    return len(layouts) > 1


def _can_hold(route: Route, adapter: Adapter, access: Access) -> bool:
    """Return True if the framework has all dtypes of a route, and memory for its temporaries."""
    if route.workspace_bytes and not adapter.has_pool:
        return False  # temporaries come from the driver, in stream order
    for array in route.signature.passed:
        if array.dtype not in access.dtypes:
            return False
        if access.capsule and (
            dlpack_code(array.dtype) is None or parse_dtype(array.dtype).bits < 8
        ):
            return False
    return True


def _names(signature: LaunchPlan) -> tuple[str | None, ...]:
    """Return the names that parameters can be passed by."""
    names = (None if name in ("out", "stream") else name for name, _ in input_names(signature))
    return tuple(name and sys.intern(name) for name in names)


def _slots(signature: LaunchPlan) -> Slots:
    return tuple(-1 if tree is None else tree for _, tree in input_names(signature))


def _outputs(signature: LaunchPlan, kind: int) -> tuple[int, list[int]]:
    """Return the kind of return value, and the number of each part among the arrays passed."""
    inputs = len(signature.inputs)
    if kind == _OPERATOR:
        fresh = list(range(inputs, len(signature.passed)))
        return (_NONE if not fresh else _LEAF if len(fresh) == 1 else _TUPLE), fresh
    tree = signature.output_tree
    sources = [signature.sources[n] for n in tree_leaves(tree)]
    places = [number if source == "input" else inputs + number for source, number in sources]
    return (_LEAF if type(tree) is int else _LIST if isinstance(tree, list) else _TUPLE), places


def _allocation(shape: tuple[int, ...], dtype: str, access: Access) -> tuple[Any, ...]:
    """Return the arguments of `Access.new_here` for a row-major array."""
    return shape, strides_of([max(1, size) for size in shape], None), access.dtypes.get(dtype)


# ---- callbacks from fronts


def _make_program(route: Route, ordinal: int) -> Any:
    """Return a route's program as the extension takes it; None before the first launch in Python.

    Also None for a program that the C library does not launch.
    """
    native: Any = extension()
    program = route.loaded(ordinal)
    if program is None or program.native is None:
        return None
    driver = open_driver()
    launch = ctypes.cast(open_library().functions.pallasc_launch_recorded, ctypes.c_void_p)
    names = ("cuCtxGetCurrent", "cuCtxGetDevice", "cuStreamGetCtx")
    what = f"{route.name} cannot be launched"
    return native.program(
        program.native,
        launch.value,
        program.native.handle.value,
        ordinal,
        int(program.device.context),
        *(function_address(driver, name, what) for name in names),
        int(default_tail(program.device).event),
    )


def _refuse(status: int) -> None:
    """Raise this thread's last error of the C library."""
    try:
        open_library().check(status)
    except DeviceError as error:
        error.names_variant = True
        raise


_CALLBACKS = (_make_program, _refuse)
"""Functions of this module that fronts call."""
