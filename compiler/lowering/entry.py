"""Import what a spec names: the entry point, and the targets of `$call` and `$ref`.

Runs the user's code, so only compiling processes may call it.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pallasc.compiler.lowering.trees import BuiltNode
from pallasc.errors import Location, SpecError, summary_of
from pallasc.specs.arrays import ArraySpec
from pallasc.specs.entries import parse_entry
from pallasc.specs.loading.modules import load_module
from pallasc.specs.spec import Args
from pallasc.specs.spelling import an, suggestion


def import_entry(entry: str, base_dir: str, *, called: str = "entry") -> Any:
    """Return the object that `package.module:name` or `file.py:name` names.

    Args:
        entry: the entry point.
        base_dir: the spec's folder, which can be imported from too.
        called: what the spec calls it: "entry", "$ref" or "$call".

    Raises:
        SpecError: the module cannot be imported, or has no such name.
    """
    parts = parse_entry(entry)
    if parts.is_file:
        module: Any = load_module(Path(base_dir) / parts.source)
    else:
        module = _import_module(parts.source, base_dir, f"{called} {entry!r}")
    return _attribute(module, parts.attribute, f"{called} {entry!r}")


def _import_module(name: str, base_dir: str, shown: str) -> Any:
    if base_dir not in sys.path:
        sys.path.insert(0, base_dir)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise SpecError(
            f"{shown} cannot be imported: {summary_of(error)}",
            location=_last_place(error),
            hint=_import_hint(error),
        ) from error


def _last_place(error: BaseException) -> Location | None:
    trace = error.__traceback__
    place = None
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith("<") and Path(file).parent.name not in ("compiler", "importlib"):
            place = Location(file, trace.tb_lineno)
        trace = trace.tb_next
    return place


def _import_hint(error: BaseException) -> str | None:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"Install the package that contains {error.name}, or correct the entry."
    return None


def _attribute(module: Any, dotted: str, shown: str) -> Any:
    value = module
    for name in dotted.split("."):
        try:
            value = getattr(value, name)
        except AttributeError as error:
            public = [name for name in dir(value) if not name.startswith("_")]
            raise SpecError(
                f"{shown}: {getattr(value, '__name__', value)!s} has no {name!r}.",
                hint=suggestion(name, public),
            ) from error
    return value


def import_function(entry: str, base_dir: str, *, called: str = "entry") -> Callable[..., Any]:
    """Return the function that `entry` names.

    Raises:
        SpecError: it cannot be imported, or cannot be called.
    """
    value = import_entry(entry, base_dir, called=called)
    if not callable(value):
        raise SpecError(f"{called} {entry!r} is {an(type(value).__name__)} and cannot be called.")
    function: Callable[..., Any] = value
    return function


def static_arguments(static: Mapping[str, object], base_dir: str) -> dict[str, Any]:
    """Return the static arguments of a kernel.

    Raises:
        SpecError: as `static_value`; it names the field.
    """
    with _inside("static"):
        return _static_values(static, base_dir)


def _static_values(values: Mapping[str, object], base_dir: str) -> dict[str, Any]:
    made = {}
    for key, item in values.items():
        with _inside(key):
            made[key] = static_value(item, base_dir)
    return made


@contextmanager
def _inside(key: str | int) -> Iterator[None]:
    """Put a key in front of the field that an error names."""
    try:
        yield
    except SpecError as error:
        error.field = f"{key}.{error.field}" if error.field else str(key)
        raise


def _check_keywords(called: str, function: Callable[..., Any], keys: Iterable[str]) -> None:
    """Refuse an argument of a `$call` that its function does not take, at its own place."""
    if isinstance(function, type) and type(function).__call__ is not type.__call__:
        return  # an enumeration: its signature is that of its members; calling it tells
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin without a signature: calling it tells
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for key in keys:
        if key not in parameters:
            with _inside(key):
                raise SpecError(
                    f"$call {called!r} has no parameter {key!r}.", hint=suggestion(key, parameters)
                )


def static_value(value: Any, base_dir: str) -> Any:
    """Return a static argument with its `$call` and `$ref` nodes resolved.

    Lists become tuples: static arguments of functions that JAX compiles must be hashable.

    Raises:
        SpecError: what a node names cannot be imported, or the call fails.
    """
    if isinstance(value, list):
        numbered = {str(index): item for index, item in enumerate(value)}
        return tuple(_static_values(numbered, base_dir).values())
    if not isinstance(value, Mapping):
        return value
    if "$ref" in value:
        return import_entry(value["$ref"], base_dir, called="$ref")
    arguments = _static_values({k: v for k, v in value.items() if k != "$call"}, base_dir)
    if "$call" not in value:
        return arguments
    function = import_function(value["$call"], base_dir, called="$call")
    _check_keywords(value["$call"], function, arguments)
    try:
        return function(**arguments)
    except Exception as error:
        raise SpecError(f"$call {value['$call']!r} failed: {summary_of(error)}") from error


def array_arguments(args: Args, base_dir: str) -> Any:
    """Return the arrays of a variant with the functions of their `$call` nodes imported.

    Raises:
        SpecError: a function cannot be imported.
    """
    items = enumerate(args) if isinstance(args, list) else args.items()
    made: dict[str | int, Any] = {}
    for key, item in items:
        with _inside("args"), _inside(key):
            made[key] = _array_argument(item, base_dir)
    return [*made.values()] if isinstance(args, list) else made


def _array_argument(tree: Any, base_dir: str, *, in_call: bool = False) -> Any:
    if in_call and not _holds_arrays(tree):
        return static_value(tree, base_dir)
    if isinstance(tree, list):
        return [_array_argument(item, base_dir, in_call=in_call) for item in tree]
    if not isinstance(tree, Mapping):
        return tree
    if "$tuple" in tree:
        return tuple(_array_argument(tree["$tuple"], base_dir, in_call=in_call))
    if "$call" not in tree:
        items = tree.items()
        return {key: _array_argument(item, base_dir, in_call=in_call) for key, item in items}
    arguments = {
        key: _array_argument(item, base_dir, in_call=True)
        for key, item in tree.items()
        if key != "$call"
    }
    function = import_function(tree["$call"], base_dir, called="$call")
    _check_keywords(tree["$call"], function, arguments)
    return BuiltNode(f"$call {tree['$call']!r}", function, arguments)


def _holds_arrays(tree: Any) -> bool:
    if isinstance(tree, Mapping):
        return any(map(_holds_arrays, tree.values()))
    return any(map(_holds_arrays, tree)) if isinstance(tree, list) else isinstance(tree, ArraySpec)
