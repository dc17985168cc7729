"""Turn an exception of JAX, Mosaic, or XLA into one error with its message and the user's line.

JAX chains an exception to the stack of the operation that caused it (a
`JaxStackTraceBeforeTransformation`), so the user's line is known without source locations in the
module. Only failures in C++ (XLA, LLVM, the assembler) need a second run with locations.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from pallasc.compiler.lowering.translate import UNSUPPORTED_HINT
from pallasc.compiler.toolchain.modules import is_pythons
from pallasc.compiler.toolchain.toolchain import find_package
from pallasc.errors import (
    CompileError,
    Location,
    PallascError,
    UnsupportedError,
    message_of,
)

_MLIR = "MLIRError"
_MLIR_ERROR = re.compile(r"\berror:\s*(?P<text>.+)")
_MLIR_PLACE = re.compile(r'"(?P<file>[^"\n]+\.py)":(?P<line>\d+)')
_MLIR_NAME = re.compile(r'^(?:"[^"\n]*"|\(|\))+: ')
_STATUS = re.compile(r"^(?:[A-Z_]+: )+")
_PTXAS = re.compile(
    r"ptxas exited with .*?output: (?P<text>.*?)(?=\n\n|\nptxas fatal|\Z)", re.DOTALL
)
_PTXAS_LINE = re.compile(
    r"^ptxas (?:/\S+, (?P<line>line \d+); )?(?:error|fatal)\s*: ", re.MULTILINE
)
_NOISE = re.compile(
    r"^(?:-{5,}|The error occurred while tracing the function main at |"
    r"For simplicity, JAX has removed its internal frames|The preceding stack trace).*\n?|"
    r" (?:at|defined at) \S*[/\\]jax[/\\]\S+\.py:\d+",
    re.MULTILINE,
)
_OWN_FUNCTION = re.compile(r"function main at \S+ traced for jit")
_CALLBACK = re.compile(r"_?(?P<name>\w*callback\w*?)_lowering")
_CONTROL_FLOW = re.compile(r"\bjax/_src/(?:pallas/helpers|lax/control_flow/\w+)\.py$")
_LOOP = re.compile(r"\bjax/_src/lax/control_flow/loops\.py$")
_MOSAIC = os.path.join("jax", "experimental", "mosaic", "")
_ADDED = re.compile(r"\s*Please file (?:an issue|a bug)[^\n]*github\.com\S*|\s*\bop=\s*\n(?s:.*)")
"""Requests to file issues, and the dump of an operation that ends a message."""
_DUMP = re.compile(r"\{ lambda\b|^\s*Equation:|^\s*\w+\[$")
_OF_XLA = ("XlaRuntimeError", "JaxRuntimeError")
_MOST_LINES = 12
_LONGEST_LINE = 400


def explain(error: BaseException, function: Callable[..., Any]) -> PallascError:
    """Return the error to show for `error`, raised while `function` was traced or lowered."""
    if isinstance(error, PallascError):
        if isinstance(error, CompileError) and error.location is None:
            error.location = equation_place(error) or definition(function)
        return error
    place = _raised_place(error) or user_place(frames(error)) or equation_place(error)
    place = place or definition(function)
    if (step := _unsupported(error)) is not None:
        return UnsupportedError(
            f"the function contains {step}, which cannot be launched from a cubin",
            location=place,
            hint=UNSUPPORTED_HINT,
        )
    return CompileError(_message(error), location=place, kind=type(error).__name__)


def _unsupported(error: BaseException) -> str | None:
    """Name the operation that JAX could not lower because it needs the host or cuDNN, if any.

    JAX raises plain `RuntimeError` and `ValueError` for these operations; only the text differs.
    """
    text = message_of(error)
    if "Unknown backend: 'gpu' requested" in text:
        names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        callback = next((m for name in names if (m := _CALLBACK.fullmatch(name))), None)
        return f"a host callback ({callback['name']})" if callback else "a host callback"
    return "a cuDNN graph" if "cuDNN not found" in text else None


def explain_compilation(
    error: BaseException, function: Callable[..., Any], output: str
) -> PallascError:
    """Return the error to show for a failure of XLA, LLVM, or the assembler.

    Args:
        error: the exception that was raised.
        function: the function that was compiled.
        output: the compiler's standard error output, with locations.
    """
    if isinstance(error, PallascError):
        return error
    message = _compiler_message(output) or _message(error)
    place = user_place(_places(output)) or definition(function)
    return CompileError(message, location=place, kind="compiler")


def _raised_place(error: BaseException) -> Location | None:
    """Return the user's line that raised `error`, None if JAX or another package raised it.

    If MLIR rejects an operation that has a location, JAX adds the operation's line to the traceback
    as the innermost frame, so it is found here, too.
    """
    trace = traceback.extract_tb(error.__traceback__)
    if not trace or _origin(trace[-1].filename) != "user":
        return None
    return Location(trace[-1].filename, trace[-1].lineno or 0)


def equation_place(error: BaseException) -> Location | None:
    """Return the user's line of the innermost equation that was being lowered.

    JAX lowers a function equation by equation; each equation has the Python stack that made it.
    """
    place = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        place = place_of(frame.f_locals.get("eqn")) or place
    return place


def operation_place(error: BaseException) -> Location | None:
    """Return the user's line of the MLIR operation at which one of Mosaic's passes failed.

    The passes are Python and raise without a location. The current operation of a pass is a local
    variable in its frames, and has a location if the module was made with locations.
    """
    if (raised := _raised_place(error)) is not None:
        return raised
    place = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if _MOSAIC in frame.f_code.co_filename:
            operation = frame.f_locals.get("op")
            place = user_place(_places(str(getattr(operation, "location", "")))) or place
    return place or user_place(_places(message_of(error)))


def is_mosaic(error: BaseException) -> bool:
    """Return True if one of Mosaic's passes, or MLIR's verification of them, raised `error`."""
    if type(error).__name__ == _MLIR:
        return True
    trace = traceback.extract_tb(error.__traceback__)
    return bool(trace) and _MOSAIC in trace[-1].filename


def _places(text: str) -> list[Location]:
    return [Location(m["file"], int(m["line"])) for m in _MLIR_PLACE.finditer(text)]


def frames(error: BaseException) -> list[Location]:
    """Return the Python frames that led to `error`, innermost first.

    Frames that called the compiler, such as the frames of `pallasc.compile`, are omitted.
    """
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    result = []
    for link in reversed(chain):
        trace = reversed(traceback.extract_tb(link.__traceback__))
        result += _inside([Location(frame.filename, frame.lineno or 0) for frame in trace])
    return result


def frames_of(equation: Any) -> list[Location]:
    """Return the Python frames that made an equation, innermost first."""
    stack = getattr(getattr(equation, "source_info", None), "traceback", None)
    return [Location(frame.file_name, frame.line_num) for frame in getattr(stack, "frames", ())]


def place_of(equation: Any) -> Location | None:
    """Return the user's line that made an equation."""
    return user_place(frames_of(equation))


def user_place(places: Sequence[Location]) -> Location | None:
    """Return the innermost of `places` that is not in JAX, pallasc, or Python.

    `places` starts with the innermost. Without such a place, the result is the innermost line of a
    kernel that ships with JAX or pallasc.
    """
    stack = user_stack(places)
    users = (place for place in stack if _origin(place.file) == "user")
    return next(users, stack[0] if stack else None)


def user_stack(places: Sequence[Location]) -> tuple[Location, ...]:
    """Return all of `places`, innermost first, that `user_place` could return."""
    inside = _inside(places) or places
    return tuple(place for place in inside if _origin(place.file) in ("user", "shipped"))


def control_flow_calls(
    stack: Sequence[Location], *, loops_only: bool = False
) -> Iterator[Location]:
    """Yield the frames of a stack, innermost first, that call `pl.when`, a loop, or `cond`."""
    called = _LOOP if loops_only else _CONTROL_FLOW
    inner = ""
    for place in stack:
        if place.file.endswith("traceback_util.py"):  # JAX wraps its functions there
            continue
        if called.search(inner):
            yield place
        inner = place.file


def _inside(places: Sequence[Location]) -> list[Location]:
    """Return the frames, innermost first, that are below the compiler's own frames."""
    return [*itertools.takewhile(lambda place: _origin(place.file) != "compiler", places)]


@cache
def _origin(file: str) -> Literal["user", "shipped", "compiler", "other"]:
    """Return who owns the code of a file; kernels of JAX and pallasc are "shipped"."""
    path, (shipped, hidden) = os.path.realpath(file), _folders()
    if file.startswith("<"):
        return "other"
    if path.startswith(shipped):
        return "shipped"
    if path.startswith(hidden):
        return "compiler" if path.startswith(hidden[0]) else "other"
    return "other" if is_pythons(path) else "user"


@cache
def _folders() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the folders of kernels shipped with JAX or pallasc, and the folders of hidden frames.

    Frames in the second group are not shown; its first folder is the compiler's.
    """
    own = Path(__file__).resolve().parents[2]
    shipped, hidden = [own / "specs" / "library"], [own / "compiler", own / "cli"]
    packages = filter(None, map(find_package, ("jax", "jaxlib", "numpy")))
    hidden += [package.root / package.name for package in packages]
    shipped += [folder / "experimental" / "pallas" / "ops" for folder in hidden[2:]]
    real = [tuple(os.path.realpath(each) + os.sep for each in each) for each in (shipped, hidden)]
    return real[0], real[1]


def definition(function: Callable[..., Any]) -> Location | None:
    """Return where `function` is defined, None if Python does not know."""
    inner: Any = inspect.unwrap(function)
    while hasattr(inner, "func"):
        inner = inspect.unwrap(inner.func)
    code = getattr(inner, "__code__", None)
    return Location(code.co_filename, code.co_firstlineno) if code else None


def _message(error: BaseException) -> str:
    """Return the error's message, without JAX's remarks on tracebacks."""
    kind = type(error).__name__
    text = message_of(error).split("\nThe preceding stack trace")[0]
    text = _OWN_FUNCTION.sub("the function", _NOISE.sub("", text))
    body = shorten(_STATUS.sub("", text.strip()))
    if not body:
        return f"{kind}: {failed_line(error)}"
    if kind == _MLIR and (diagnostic := _MLIR_ERROR.search(body)):
        return f"{kind}: {_MLIR_NAME.sub('', diagnostic['text'])}"
    if kind == "NotImplementedError" and not re.search(r"\s", body):
        body += " is not supported here"
    return body if kind in _OF_XLA else f"{kind}: {body}"


def shorten(text: str) -> str:
    """Remove requests to file issues, long lines, and long dumps from a compiler's message."""
    text = _ADDED.sub("", text)
    # A dump of the traced function may follow the message.
    prose = itertools.takewhile(lambda line: not _DUMP.search(line), text.splitlines())
    lines = [line.rstrip() for line in prose]
    lines = [line[:_LONGEST_LINE] + "…" * (len(line) > _LONGEST_LINE) for line in lines]
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"… ({len(lines) - _MOST_LINES} more lines)"]
    return "\n".join(lines).strip()


def _compiler_message(output: str) -> str | None:
    """Return the first error in the compiler's output; the assembler's errors lose their paths."""
    first = _MLIR_ERROR.search(output)
    if first is None:
        return None
    assembler = _PTXAS.search(output, first.start())
    if assembler is None:
        return shorten(first["text"])
    lines = _PTXAS_LINE.sub(lambda m: f"{m['line']}: " if m["line"] else "", assembler["text"])
    return shorten(f"ptxas refuses the PTX of this kernel: {lines.strip()}")


_LONGEST_TEXT = 60
_DOTTED_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


def failed_line(error: BaseException) -> str:
    """Return the source line that raised an error, with the values of its names."""
    trace = traceback.extract_tb(error.__traceback__)
    line = trace[-1].line if trace else None
    if not line:
        return "no message"
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    values = [*dict.fromkeys(_values(line, frame.f_locals))]
    return f"{line}, where {', '.join(values)}" if values else line


def _values(line: str, variables: Mapping[str, object]) -> Iterator[str]:
    """Yield `name = value` for each local variable, or attribute of one, in an assertion.

    Useless values are left out: None, functions, modules, addresses, long texts.
    """
    for text in _DOTTED_NAME.findall(line) if line.startswith("assert ") else ():
        name, *attributes = text.split(".")
        with contextlib.suppress(Exception):  # properties may raise anything
            value: Any = functools.reduce(getattr, attributes, variables[name])
            shown = repr(value)
            is_dull = value is None or callable(value) or isinstance(value, ModuleType)
            if not is_dull and " at 0x" not in shown and len(shown) <= _LONGEST_TEXT:
                yield f"{text} = {shown}"
