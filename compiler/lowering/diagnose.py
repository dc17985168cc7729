"""Turn an exception of JAX, Mosaic, or XLA into one error: its message and the user's own line.

JAX chains an exception to the stack of the operation that caused it (a
`JaxStackTraceBeforeTransformation`), so the user's line is known without source locations in the
module. Only what fails below Python needs a second run with locations on.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import inspect
import itertools
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from pallasc.compiler.executable.translate import UNSUPPORTED_HINT
from pallasc.errors import (
    CompileError,
    Location,
    PallascError,
    ToolError,
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
    r"For simplicity, JAX has removed its internal frames|The preceding stack trace).*\n?",
    re.MULTILINE,
)
_OWN_FUNCTION = re.compile(r"function main at \S+ traced for jit")
_PLACE_IN_JAX = re.compile(r" (?:at|defined at) \S*[/\\]jax[/\\]\S+\.py:\d+")
_ISSUE = re.compile(r"\s*Please file (?:an issue|a bug)[^\n]*github\.com\S*")
_CALLBACK = re.compile(r"_?(?P<name>\w*callback\w*?)_lowering")
_CONTROL_FLOW = re.compile(r"\bjax/_src/(?:pallas/helpers|lax/control_flow/\w+)\.py$")
_MOSAIC = os.path.join("jax", "experimental", "mosaic", "")
_OPERATION = re.compile(r"\s*\bop=\s*\n.*", re.DOTALL)
_DUMP = re.compile(r"\{ lambda\b|^\s*Equation:|^\s*\w+\[$")
_WORKERS_FOLDER = re.compile(r"/pallasc-(?:workers|xla)-.*")
_FULL_BYTES, _MOST_FREED_BYTES = 64 << 10, 64 << 20
"""Files that a compiler could not finish may be gone when it reports that."""
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
    """Return what JAX could not lower because it needs more than a GPU's compiler.

    JAX raises plain `RuntimeError` and `ValueError` for these: only their text tells them apart.
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
    """Return the error to show for what failed below Python.

    Args:
        error: what was raised.
        function: the function that was compiled.
        output: what the compiler wrote to the standard error output, with locations on.
    """
    if (full := _full_folder(output + message_of(error))) is not None:
        return full
    if isinstance(error, PallascError):
        return error
    message = _compiler_message(output) or _message(error)
    place = user_place(_places(output)) or definition(function)
    return CompileError(message, location=place, kind="compiler")


def _full_folder(text: str) -> ToolError | None:
    """Return the error for a full folder of temporary files if a compiler ran out of space."""
    folder = _WORKERS_FOLDER.sub("", tempfile.gettempdir())
    says_so = os.strerror(errno.ENOSPC) in text
    try:
        free = shutil.disk_usage(folder).free
    except OSError:  # the folder is gone
        return None
    if free >= (_MOST_FREED_BYTES if says_so else _FULL_BYTES):
        return None
    return ToolError(
        f"the folder for temporary files is full: {folder}",
        hint="Free space there, or choose another folder with TMPDIR.",
    )


def _raised_place(error: BaseException) -> Location | None:
    """Return the user's line that raised `error`, as a function inlined into a kernel may.

    For an operation that MLIR refuses, JAX adds its line as a frame if there are locations.
    """
    trace = traceback.extract_tb(error.__traceback__)
    if not trace or not _is_users(trace[-1].filename):
        return None
    return Location(trace[-1].filename, trace[-1].lineno or 0)


def equation_place(error: BaseException) -> Location | None:
    """Return the user's line of the innermost equation that was being lowered.

    JAX lowers a function equation by equation; each remembers the Python stack that made it.
    """
    trace, place = error.__traceback__, None
    while trace is not None:
        source = getattr(trace.tb_frame.f_locals.get("eqn"), "source_info", None)
        stack = getattr(getattr(source, "traceback", None), "frames", ())
        place = user_place([(frame.file_name, frame.line_num) for frame in stack]) or place
        trace = trace.tb_next
    return place


def operation_place(error: BaseException) -> Location | None:
    """Return the user's line of the MLIR operation at which one of Mosaic's passes failed.

    The passes are Python, and raise without a place; the operation that a pass was at is a local
    variable of its frames, with a location if the module was made with them.
    """
    if (raised := _raised_place(error)) is not None:
        return raised
    trace, place = error.__traceback__, None
    while trace is not None:
        if _MOSAIC in trace.tb_frame.f_code.co_filename:
            operation = trace.tb_frame.f_locals.get("op")
            places = _places(str(getattr(operation, "location", "")))
            place = user_place(places) or place
        trace = trace.tb_next
    return place or user_place(_places(message_of(error)))


def is_mosaic(error: BaseException) -> bool:
    """Return whether one of Mosaic's own passes raised `error`, or MLIR, which verifies them."""
    if type(error).__name__ == _MLIR:
        return True
    trace = traceback.extract_tb(error.__traceback__)
    return bool(trace) and _MOSAIC in trace[-1].filename


def _places(text: str) -> list[tuple[str, int]]:
    return [(m["file"], int(m["line"])) for m in _MLIR_PLACE.finditer(text)]


def frames(error: BaseException) -> list[tuple[str, int]]:
    """Return (file, line) of the Python frames that led to `error`, innermost first.

    The frames that called the compiler, such as those of `pallasc.compile`, are left out.
    """
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__
    result = []
    for link in reversed(chain):
        trace = traceback.extract_tb(link.__traceback__)
        result += _inside([(frame.filename, frame.lineno or 0) for frame in reversed(trace)])
    return result


def user_place(places: list[tuple[str, int]]) -> Location | None:
    """Return the first of `places`, innermost first, that is neither JAX's nor ours nor Python's.

    A kernel that ships with JAX or with pallasc is named if no other code called it.
    """
    inside = _inside(places) or places
    for belongs in (_is_users, _is_shipped):
        for file, line in inside:
            if belongs(file):
                return Location(file, line)
    return None


def user_stack(stack: list[tuple[str, int, int]]) -> tuple[Location, ...]:
    """Return those of (file, line, column), innermost first, that `user_place` could name."""
    inside = stack[: len(_inside([(file, line) for file, line, _ in stack]))] or stack
    return tuple(
        Location(*frame) for frame in inside if _is_users(frame[0]) or _is_shipped(frame[0])
    )


def control_flow_calls(stack: list[tuple[str, int, int]]) -> Iterator[Location]:
    """Yield the frames of a stack, innermost first, that call `pl.when`, a loop, or `cond`."""
    inner = ""
    for file, line, column in stack:
        if file.endswith("traceback_util.py"):  # JAX wraps its functions there
            continue
        if _CONTROL_FLOW.search(inner):
            yield Location(file, line, column)
        inner = file


def _inside(places: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the frames, innermost first, that lie below the compiler's own."""
    own = _compiler_folder()
    return [*itertools.takewhile(lambda p: not os.path.realpath(p[0]).startswith(own), places)]


def _is_users(file: str) -> bool:
    if file.startswith("<"):
        return False
    path = os.path.realpath(file)
    if path.startswith((*_package_folders(), *_kernel_folders())):
        return False
    return "site-packages" in path or not path.startswith(_python_folder())


def _is_shipped(file: str) -> bool:
    return os.path.realpath(file).startswith(_kernel_folders())


@cache
def _python_folder() -> str:
    return os.path.realpath(sysconfig.get_paths()["stdlib"]) + os.sep


@cache
def _compiler_folder() -> str:
    return str(Path(__file__).resolve().parents[1]) + os.sep


@cache
def _package_folders() -> tuple[str, ...]:
    """Return the folders of the packages whose frames are not shown."""
    own = Path(_compiler_folder())
    folders = [str(own), str(own.parent / "cli")]
    for name in ("jax", "jaxlib", "numpy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            folders.append(str(metadata.distribution(name).locate_file(name)))
    return tuple(os.path.realpath(folder) + os.sep for folder in folders)


@cache
def _kernel_folders() -> tuple[str, ...]:
    """Return the folders that hold the kernels which ship with JAX and with pallasc."""
    folders = [str(Path(_compiler_folder()).parent / "specs" / "library")]
    with contextlib.suppress(metadata.PackageNotFoundError):
        jax = metadata.distribution("jax")
        folders.append(str(jax.locate_file("jax/experimental/pallas/ops")))
    return tuple(os.path.realpath(folder) + os.sep for folder in folders)


def definition(function: Callable[..., Any]) -> Location | None:
    """Return where `function` is defined, if Python knows."""
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
    text = _PLACE_IN_JAX.sub("", text)
    body = shorten(_STATUS.sub("", text.strip()))
    if not body:
        return f"{kind}: {failed_line(error)}"
    if kind == _MLIR and (diagnostic := _MLIR_ERROR.search(body)):
        return f"{kind}: {_MLIR_NAME.sub('', diagnostic['text'])}"
    if kind == "NotImplementedError" and not re.search(r"\s", body):
        body += " is not supported here"
    return body if kind in _OF_XLA else f"{kind}: {body}"


def shorten(text: str) -> str:
    """Return a compiler's message without requests to file issues, long lines and long dumps."""
    text = _OPERATION.sub("", _ISSUE.sub("", text))
    # A dump of the traced function may follow the message.
    prose = itertools.takewhile(lambda line: not _DUMP.search(line), text.splitlines())
    lines = [line.rstrip() for line in prose]
    lines = [line[:_LONGEST_LINE] + "…" * (len(line) > _LONGEST_LINE) for line in lines]
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"… ({len(lines) - _MOST_LINES} more lines)"]
    return "\n".join(lines).strip()


def _compiler_message(output: str) -> str | None:
    """Return the first error in what the compiler wrote, the assembler's without its paths."""
    first = _MLIR_ERROR.search(output)
    if first is None:
        return None
    assembler = _PTXAS.search(output, first.start())
    if assembler is None:
        return shorten(first["text"])
    lines = _PTXAS_LINE.sub(lambda m: f"{m['line']}: " if m["line"] else "", assembler["text"])
    return shorten(f"ptxas refuses the PTX of this kernel: {lines.strip()}")


@contextlib.contextmanager
def captured_output() -> Iterator[Callable[[], str]]:
    """Collect what is written to file descriptors 1 and 2, also by C++ code.

    Yields a function that returns the text so far.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        saved = [os.dup(1), os.dup(2)]
        try:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)

            def text() -> str:
                return os.pread(file.fileno(), 1 << 24, 0).decode("utf-8", "replace")

            yield text
        finally:
            for target, descriptor in enumerate(saved, start=1):
                os.dup2(descriptor, target)
                os.close(descriptor)


_LONGEST_TEXT = 60


def failed_line(error: BaseException) -> str:
    """Return the source line that raised an error, with the values of its names."""
    trace = error.__traceback__
    if trace is None:
        return "no message"
    while trace.tb_next is not None:
        trace = trace.tb_next
    line = traceback.extract_tb(trace)[-1].line
    if not line:
        return "no message"
    values = [*dict.fromkeys(_values(line, trace.tb_frame.f_locals))]
    return f"{line}, where {', '.join(values)}" if values else line


def _values(line: str, variables: Mapping[str, object]) -> Iterator[str]:
    """Yield `name = value` for each local variable of an assertion, or attribute of such."""
    try:
        (statement,) = ast.parse(line).body
    except (SyntaxError, ValueError):  # a part of a longer statement, or of several
        return
    if not isinstance(statement, ast.Assert):
        return
    below = {id(node.value) for node in ast.walk(statement) if isinstance(node, ast.Attribute)}
    for node in ast.walk(statement.test):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            value = _attribute(variables.get(node.value.id), node.attr)
        elif isinstance(node, ast.Name) and id(node) not in below:
            value = variables.get(node.id)
        else:
            continue
        text = _shown(value)
        if text:
            yield f"{ast.unparse(node)} = {text}"


def _attribute(value: Any, name: str) -> Any:
    with contextlib.suppress(Exception):  # properties may raise anything
        return getattr(value, name)
    return None


def _shown(value: Any) -> str:
    """Return a value's text, "" where it tells nothing: None, functions, addresses."""
    if value is None or callable(value) or isinstance(value, ModuleType):
        return ""
    text = ""
    with contextlib.suppress(Exception):
        text = repr(value)
    return "" if " at 0x" in text or "\n" in text or len(text) > _LONGEST_TEXT else text
