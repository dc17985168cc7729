"""Generated functions; and how calls are kept from the compilers of frameworks.

`torch.compile` looks into every function that it meets, and into every frame that runs beside its
graphs. A marked function ends the graph with our reason; a function whose frames are skipped runs
as it is, with all that it calls.
"""

from __future__ import annotations

import keyword
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from pallasc.runtime.matching.arrays import FOREIGN_ERRORS
from pallasc.specs.artifacts.signature import MISSING

Function = Callable[..., Any]

BUILTINS: Mapping[str, object] = {
    "_type": type,
    "_len": len,
    "_sequences": (tuple, list),
    "_MISSING": MISSING,
    "_Unusual": (AssertionError, *FOREIGN_ERRORS),
}
"""What generated code uses under names that no parameter has."""

TRACED = "Register the kernel with torch_operator() to use it under torch.compile."

_F = TypeVar("_F", bound=Callable[..., Any])


def untraced(function: _F) -> _F:
    """Mark a function for `torch.compile`, as `torch.compiler.disable` does, but wrap nothing."""
    vars(function).update(_torchdynamo_disable=True, _torchdynamo_disable_msg=TRACED)
    return function


def skip_frames(functions: Iterable[Callable[..., Any]]) -> None:
    """Let torch, where it is loaded, run these functions and all that they call untouched.

    In a version of torch without these functions, compiling loses time on them, and nothing else.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    with suppress(AttributeError, TypeError):
        frames = torch._C._dynamo.eval_frame
        skip = frames._FrameAction.SKIP
        for function in functions:
            code = function.__code__
            frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))


def parameter_names(names: Sequence[str | None]) -> list[str]:
    """Return names for generated parameters: the function's own where they can stand in code."""
    used = [
        name
        if name
        and name.isascii()
        and name.isidentifier()
        and not keyword.iskeyword(name)
        and name[0] != "_"
        else f"_array{index}"
        for index, name in enumerate(names)
    ]
    return [
        f"_array{index}" if name in ("out", "stream") else name for index, name in enumerate(used)
    ]


def compile_function(source: Sequence[str], values: Mapping[str, object], name: str) -> Function:
    """Return the function `_front` that lines of code define, under another name."""
    scope: dict[str, Any] = dict(values)
    exec(compile("\n".join(source), f"<pallasc {name}>", "exec"), scope)
    made: Function = scope["_front"]
    made.__name__ = made.__qualname__ = name
    skip_frames([made])
    return untraced(made)
