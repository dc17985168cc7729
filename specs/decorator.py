"""Specs in Python: the decorator `@kernel`, with the fields that YAML has.

The decorator returns the function as it is. Only while `collect_python` executes the file does
it declare anything; an ordinary import of the same file does nothing more than define functions.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from pallasc.errors import Location, SpecError
from pallasc.specs.declare import Surroundings, declare, named
from pallasc.specs.fields import PathParts, Place
from pallasc.specs.modules import load_module, module_name
from pallasc.specs.spec import Spec
from pallasc.specs.spelling import suggestion

Function = TypeVar("Function", bound=Callable[..., Any])


class Call:
    """A static argument made by calling something: `$call` of YAML.

    Args:
        target: an entry point, or a function or class that has one.
        arguments: keyword arguments of the call, as static arguments are.
    """

    __slots__ = ("arguments", "target")

    def __init__(self, target: str | Callable[..., Any], /, **arguments: Any) -> None:
        self.target = target
        self.arguments = arguments

    def __repr__(self) -> str:
        return f"Call({self.target!r}, {self.arguments!r})"


class Ref:
    """A static argument that is an attribute of a module: `$ref` of YAML.

    Args:
        target: an entry point, or a function or class that has one.
    """

    __slots__ = ("target",)

    def __init__(self, target: str | Callable[..., Any], /) -> None:
        self.target = target

    def __repr__(self) -> str:
        return f"Ref({self.target!r})"


@dataclass(slots=True)
class _Collection:
    """The specs of the file that is being executed."""

    shown: str
    file: Path
    specs: list[Spec] = field(default_factory=list)


_collections: list[_Collection] = []

_UNKNOWN_FIELD = re.compile(r"kernel\(\) got an unexpected keyword argument '(?P<field>\w+)'")


def kernel(
    *,
    args: Mapping[str, Any] | Sequence[Any],
    name: str | None = None,
    static: Mapping[str, Any] | None = None,
    matrix: Mapping[str, Sequence[Any]] | None = None,
    include: Sequence[Mapping[str, Any]] | None = None,
    exclude: Sequence[Mapping[str, Any]] | None = None,
    targets: Sequence[str] | None = None,
    reference: str | Callable[..., Any] | None = None,
    tolerance: Mapping[str, float | str] | None = None,
    budget: Mapping[str, int | str] | None = None,
    files: Sequence[str] | None = None,
    mesh: Mapping[str, int | str] | None = None,
) -> Callable[[Function], Function]:
    """Declare the decorated function as a kernel; the fields are those of YAML.

    Args:
        args: arrays in their notation, by name or by position: `{"a": "bf16[{m}, 4096]"}`.
        name: the kernel's name, that of the function when left out.
        static: static keyword arguments: plain data, `Call` and `Ref`.
        matrix: values of each parameter.
        include: further points, each with every parameter.
        exclude: partial points whose matches are dropped.
        targets: models or architectures.
        reference: the function that gives the right result.
        tolerance: `rtol` and `atol`.
        budget: the most that a variant may use.
        files: data files that the kernel reads while it is traced.
        mesh: axes and sizes of the devices that run it together: `{"x": 4}`.

    Raises:
        SpecError: when the function is decorated while its file is being collected, and a field
            is wrong.
    """
    given = {
        "name": name,
        "args": args,
        "static": static,
        "matrix": matrix,
        "include": include,
        "exclude": exclude,
        "targets": targets,
        "reference": reference,
        "tolerance": tolerance,
        "budget": budget,
        "files": files,
        "mesh": mesh,
    }
    given = {key: value for key, value in given.items() if value is not None}
    frame = sys._getframe(1)
    file, line = frame.f_code.co_filename, frame.f_lineno

    def register(function: Function) -> Function:
        collection = _collections[-1] if _collections else None
        if collection is not None and Path(file).resolve() == collection.file:
            place = Location(collection.shown, line)
            collection.specs.append(_declare(function, given, place, collection.file))
        return function

    return register


def collect_python(path: str | Path) -> list[Spec]:
    """Execute a Python spec file and return what it declares, in the order of declaration.

    Runs the user's code in this process: for workers only.

    Raises:
        SpecError: the file is missing, raises, declares nothing, or a declaration is wrong.
    """
    collection = _Collection(str(path), Path(path).resolve())
    try:
        with _collecting(collection):
            load_module(path, fresh=True)
    except SpecError as error:
        error.hint = error.hint or _how_to_call(error.__cause__)
        raise
    if not collection.specs:
        raise SpecError(
            "no kernel is declared in this file.",
            location=Location(collection.shown),
            hint="Decorate a function with @pallasc.kernel(args=…).",
        )
    return collection.specs


def _how_to_call(cause: BaseException | None) -> str | None:
    """Return a hint where the decorator's own call does not fit."""
    if not isinstance(cause, TypeError) or not str(cause).startswith(f"{kernel.__name__}() "):
        return None
    if unknown := _UNKNOWN_FIELD.match(str(cause)):
        return suggestion(unknown["field"], inspect.signature(kernel).parameters)
    return 'Write @pallasc.kernel(args={"x": "f32[1024]"}), with keyword arguments alone.'


@contextmanager
def _collecting(collection: _Collection) -> Iterator[None]:
    _collections.append(collection)
    try:
        yield
    finally:
        _collections.remove(collection)


@dataclass(frozen=True, slots=True)
class _CallSite:
    """Everything in a declaration stands where the decorator is called."""

    location: Location

    def value(self, path: PathParts) -> Location:
        return self.location

    def key(self, path: PathParts) -> Location:
        return self.location


def _declare(
    function: Callable[..., Any], given: dict[str, Any], location: Location, file: Path
) -> Spec:
    at = Place(_CallSite(location))
    entry = _entry_of(function, file, at)
    name = given.get("name", getattr(function, "__name__", entry))
    at = named(at, name, entry)
    plain = {key: _plain(value, at.child(key), file) for key, value in given.items()}
    return declare({**plain, "name": name, "entry": entry}, at, Surroundings(str(file.parent)))


def spec_of(
    function: Callable[..., Any],
    *,
    args: Sequence[Any],
    static: Mapping[str, Any],
    target: str,
    mesh: Mapping[str, int] | None = None,
) -> Spec:
    """Return the spec of an importable function that no spec file declares.

    Raises:
        SpecError: the function cannot be found by name, or an argument is not plain data.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        raise SpecError(
            f"{type(function).__name__} cannot be found by name.",
            hint="Define a function at the top level of a module.",
        )
    file = Path(code.co_filename).resolve()
    given: dict[str, Any] = {"args": list(args), "static": dict(static), "targets": [target]}
    if mesh:
        given["mesh"] = dict(mesh)
    spec = _declare(function, given, Location(str(file), code.co_firstlineno), file)
    module = spec.entry.partition(":")[0]
    levels = 0 if module.endswith(".py") else module.count(".") + (file.name == "__init__.py")
    return replace(spec, base_dir=str(file.parents[levels]))


def _plain(value: Any, at: Place, file: Path) -> Any:
    """Return a field as YAML would have given it."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Ref):
        return {"$ref": _target_of(value.target, at, file)}
    if isinstance(value, Call):
        call = {"$call": _target_of(value.target, at, file)}
        return {**call, **_plain(value.arguments, at, file)}
    if isinstance(value, Mapping):
        return {_text_key(k, at): _plain(item, at.child(k), file) for k, item in value.items()}
    if isinstance(value, list | tuple | range):
        return [_plain(item, at.child(i), file) for i, item in enumerate(value)]
    if callable(value) and at.path == ("reference",):
        return _entry_of(value, file, at)
    raise at.error(
        f"{type(value).__name__} is not plain data.",
        'Write Call("package.module:function", …) or Ref("package.module:attribute").',
    )


def _text_key(key: object, at: Place) -> str:
    if type(key) is not str:
        raise at.error(f"a key must be text, got {key!r}.")
    return key


def _target_of(target: str | Callable[..., Any], at: Place, file: Path) -> str:
    return target if isinstance(target, str) else _entry_of(target, file, at)


def _entry_of(function: Callable[..., Any], file: Path, at: Place) -> str:
    module = getattr(function, "__module__", None)
    qualname = getattr(function, "__qualname__", None)
    if not module or not qualname or "<" in qualname:
        raise at.error(
            f"{qualname or type(function).__name__} cannot be found by name.",
            "Define it at the top level of a file.",
        )
    own = module in (module_name(file), "__main__")
    return f"{file.name if own else module}:{qualname}"
