"""Specs in Python: the decorator `@kernel` and the call `declare`, with the same fields as YAML.

The decorator returns the function unchanged. The decorator and the call declare kernels only while
`collect_python` executes the file; an ordinary import of the same file just defines functions.
"""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import FrameType, FunctionType, MethodType
from typing import Any, Required, TypedDict, TypeVar, Unpack

from msgspec.structs import replace

from pallasc.errors import Location, SpecError
from pallasc.specs.fields import Place
from pallasc.specs.loading.yaml_loader import SpecFile, kernel_place
from pallasc.specs.loading.yaml_loader import declare as checked_spec
from pallasc.specs.spec import Spec
from pallasc.specs.spelling import an
from pallasc.specs.user_files import load_module, module_name

Function = TypeVar("Function", bound=Callable[..., Any])


class Call:
    """A static argument that is the result of a call: `$call` in YAML.

    Args:
        target: an entry point, or a function or class that has one.
        arguments: keyword arguments of the call, in the form of static arguments.
    """

    def __init__(self, target: str | Callable[..., Any], /, **arguments: Any) -> None:
        self.target = target
        self.arguments = arguments

    def __repr__(self) -> str:
        return f"Call({self.target!r}, {self.arguments!r})"


@dataclass(frozen=True, slots=True)
class Ref:
    """A static argument that is an attribute of a module: `$ref` in YAML.

    Args:
        target: an entry point, or a function or class that has one.
    """

    target: str | Callable[..., Any]


@dataclass(slots=True)
class _Collection:
    """The specs of the file that is being executed."""

    shown: str
    file: Path
    specs: list[Spec] = field(default_factory=list)


_collections: list[_Collection] = []

_UNNAMED = "has no name that a worker process can import it by."
_NAME_IT = "Define it with def at the top level of a file."


class _SharedFields(TypedDict, total=False):
    """Fields of kernels and programs."""

    args: Required[Mapping[str, object] | Sequence[object]]
    name: str | None
    static: Mapping[str, object] | None
    matrix: Mapping[str, Sequence[object]] | None
    include: Sequence[Mapping[str, object]] | None
    exclude: Sequence[Mapping[str, object]] | None
    files: Sequence[str] | None
    env: Sequence[str] | None
    mesh: Mapping[str, int | str] | None


class KernelFields(_SharedFields, total=False):
    """Fields of a kernel; see `kernel`."""

    targets: Sequence[str] | None
    reference: str | Callable[..., Any] | None
    tolerance: Mapping[str, float | str] | None
    budget: Mapping[str, int | str] | None
    check: Mapping[str, Any] | None
    vmap: str | None
    tune: Mapping[str, Any] | None


class ProgramFields(_SharedFields, total=False):
    """Fields of a program; see `program`."""

    machines: Required[Sequence[str]]
    donate: Sequence[str] | None
    shardings: Mapping[str, Sequence[object]] | None
    explicit: Sequence[str] | None


def kernel(**fields: Unpack[KernelFields]) -> Callable[[Function], Function]:
    """Declare the decorated function as a kernel; the fields are the same as in YAML.

    Args:
        args: arrays in their notation, by name or by position: `{"a": "bf16[{m}, 4096]"}`.
        name: the kernel's name, by default the name of the function.
        static: static keyword arguments: plain data, `Call`, and `Ref`.
        matrix: values of each parameter.
        include: additional points, each with every parameter.
        exclude: partial points; the points they match are dropped.
        targets: models or architectures.
        reference: function that gives the correct result.
        tolerance: `rtol` and `atol`.
        budget: resource limits of a variant.
        files: data files that the kernel reads while it is traced.
        env: names of environment variables that the kernel can see.
        mesh: axes and sizes of the devices that run it together: `{"x": 4}`.
        check: values that replace those of a point in `pallasc check`, `$args`, and `$seed`.
        vmap: name of the kernel that does the same for a batch, for `jax.vmap`.
        tune: parameters that change only the speed, and the table of their best values.

    Raises:
        SpecError: a field is wrong; raised by the decoration, and only while the file is being
            collected.
    """
    return _register(sys._getframe(1), {**fields})


def program(
    *, entry: str | Callable[..., Any] | None = None, **fields: Unpack[ProgramFields]
) -> Callable[[Function], Function]:
    """Declare the decorated function as a program for `pallasc warm`; fields as in YAML.

    Args:
        args: arrays in their notation, by name or by position.
        machines: files of `pallasc machine`.
        entry: a function in another file, which the call declares without decorating anything.
        name: the program's name, by default the name of the function.
        static: static keyword arguments.
        donate: arguments whose memory the results may reuse, if the function is not jitted.
        mesh: axes and sizes of the devices that run it together.
        shardings: the axes that divide each dimension, by argument.
        explicit: axes of the mesh that are explicit, as in `jax.make_mesh` by default.
        matrix: values of each parameter.
        include: additional points, each with every parameter.
        exclude: partial points; the points they match are dropped.
        files: data files that the program reads while it is traced.
        env: names of environment variables that the program can see.

    Raises:
        SpecError: a field is wrong; raised by the decoration, and only while the file is being
            collected.
    """
    register = _register(sys._getframe(1), {**fields}, is_program=True)
    if entry is not None:
        register(entry)
    return register


def declare(*, entry: str | Callable[..., Any], **fields: Unpack[KernelFields]) -> None:
    """Declare a function in another file as a kernel.

    A kernel declared this way does not depend on the declaring file. If a variant is added or
    renamed there, a build compiles only that variant, and finds all others in the store. After an
    edit of a file with `@kernel`, a build lowers all variants of the file again.

    Args:
        entry: the function, or its entry point: `"kernels.py:matmul"`.
        fields: as for `kernel`; `args` is required, and `name` defaults to the name of the
            function.

    Raises:
        SpecError: a field is wrong or unknown; raised only while the file is being collected.
    """
    _register(sys._getframe(1), {**fields})(entry)


def _register(
    frame: FrameType, fields: dict[str, object], *, is_program: bool = False
) -> Callable[[Any], Any]:
    """Return a decorator that declares its function with these fields."""
    found = _collected(frame)

    def register(function: Any) -> Any:
        if found is not None:
            collection, place = found
            made = _declare(function, fields, place, collection.file, is_program=is_program)
            collection.specs.append(made)
        return function

    return register


def _collected(frame: FrameType | None) -> tuple[_Collection, Location] | None:
    """Return the file that is being collected, and the position in it that the call came from.

    The call may pass through functions in any file. If it passes through the import of another
    module, the result is None, as if no file were being collected.
    """
    collection = _collections[-1] if _collections else None
    while collection is not None and frame is not None:
        if Path(frame.f_code.co_filename).resolve() == collection.file:
            return collection, _location(frame, collection.shown)
        if frame.f_code.co_name == "<module>":
            return None
        frame = frame.f_back
    return None


def _location(frame: FrameType, shown: str) -> Location:
    """Return the position of the call in a frame; Python counts columns in UTF-8 bytes, from 0."""
    code, line = frame.f_code, frame.f_lineno
    _, _, start, _ = next(islice(code.co_positions(), frame.f_lasti // 2, None))
    linecache.checkcache(code.co_filename)
    text = linecache.getline(code.co_filename, line).encode()
    return Location(shown, line, 0 if start is None else len(text[:start].decode()) + 1)


def collect_python(path: str | Path, *, shown: str | None = None) -> list[Spec]:
    """Execute a Python spec file and return its specs, in the order of declaration.

    This runs user code in the current process: for workers only.

    Args:
        path: the file.
        shown: the path to show in messages, if it differs.

    Raises:
        SpecError: the file is missing, raises an exception, declares nothing, or has a wrong
            declaration.
    """
    collection = _Collection(shown or str(path), Path(path).resolve())
    _collections.append(collection)
    try:
        load_module(path, fresh=True, shown=shown)
    except SpecError as error:
        if error.message.startswith("TypeError: kernel() takes 0 positional arguments"):
            error.hint = 'Write @pallasc.kernel(args={"x": "f32[1024]"}), with keyword arguments.'
        raise
    finally:
        _collections.remove(collection)
    if not collection.specs:
        raise SpecError(
            "no kernel is declared in this file.",
            location=Location(collection.shown),
            hint="Decorate a function with @pallasc.kernel(args=…), or call "
            "pallasc.declare(entry=…, args=…).",
        )
    return collection.specs


def _declare(
    function: str | Callable[..., Any],
    fields: Mapping[str, object],
    location: Location,
    file: Path,
    *,
    is_program: bool = False,
) -> Spec:
    # All fields have the location of the decorator's call.
    at = Place(lambda path, at_key: location, base_dir=str(file.parent))
    entry = _entry_of(function, at, file)
    own_name = entry.rpartition(".")[2].rpartition(":")[2] if ":" in entry else entry
    given = {key: value for key, value in fields.items() if value is not None}
    name = given.get("name", own_name)
    at = kernel_place(at, name, entry)
    plain = {key: _plain(value, at.child(key), file) for key, value in given.items()}
    plain |= {"name": name, "entry": entry}
    return checked_spec(plain, at, SpecFile(), is_program=is_program)


def spec_of(
    function: Callable[..., Any],
    *,
    args: Sequence[object],
    static: Mapping[str, object],
    target: str,
    mesh: Mapping[str, int] | None = None,
) -> Spec:
    """Return the spec of an importable function that no spec file declares.

    Raises:
        SpecError: the function cannot be found by name, or an argument is not plain data.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        raise SpecError(f"{_described(function)} {_UNNAMED}", hint=_NAME_IT)
    file = Path(code.co_filename).resolve()
    fields = {"args": args, "static": static, "targets": [target], "mesh": mesh or None}
    spec = _declare(function, fields, Location(str(file), code.co_firstlineno), file)
    module = spec.entry.partition(":")[0]
    levels = 0 if module.endswith(".py") else module.count(".") + (file.name == "__init__.py")
    return replace(spec, base_dir=str(file.parents[levels]))


def _plain(value: object, at: Place, file: Path) -> object:
    """Convert a field to the form that the YAML loader returns."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Ref):
        return {"$ref": _entry_of(value.target, at, file)}
    if isinstance(value, Call):
        value = {"$call": _entry_of(value.target, at, file), **value.arguments}
    if isinstance(value, Mapping):
        for key in value:
            if type(key) is not str:
                raise at.error(f"a key must be text, got {key!r}.")
        return {key: _plain(own, at.child(key), file) for key, own in value.items()}
    if isinstance(value, list | tuple | range):
        return [_plain(item, at.child(i), file) for i, item in enumerate(value)]
    if callable(value) and at.path == ("reference",):
        return _entry_of(value, at, file)
    hint = 'Write Call("package.module:function", …) or Ref("package.module:attribute").'
    if hasattr(value, "tolist") and not isinstance(value, type):  # of NumPy or JAX
        hint = 'Write an array as text, like "f32[4096]"; convert other values with .tolist().'
    raise at.error(f"{_described(value)} is not plain data.", hint)


def _entry_of(function: str | Callable[..., Any], at: Place, file: Path) -> str:
    if isinstance(function, str):
        return function
    module = getattr(function, "__module__", None)
    qualname = getattr(function, "__qualname__", None)
    if not module or not qualname or "<" in qualname or not _is_named(function, module, qualname):
        raise at.error(f"{_described(function)} {_UNNAMED}", _NAME_IT)
    own = module in (module_name(file), "__main__")
    return f"{file.name if own else module}:{qualname}"


def _is_named(function: Callable[..., Any], module: str, qualname: str) -> bool:
    """Return False if the name of a function refers to another object.

    `jax.vmap(f)`, for example, has the name of f. A name that is not bound yet is accepted, because
    a function is decorated before its name is bound.
    """
    if isinstance(function, MethodType) and not isinstance(function.__self__, type):
        return False
    held: object = sys.modules.get(module)
    for part in qualname.split("."):
        held = getattr(held, part, None)
    return not (
        isinstance(function, FunctionType) and function is not held is inspect.unwrap(function)
    )


def _described(value: Any) -> str:
    """Return the kind and name of an object."""
    name = getattr(value, "__qualname__", "")
    return f"{an(type(value).__qualname__)} object{name and f' {name}'}"
