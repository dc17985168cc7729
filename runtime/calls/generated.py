"""Compile generated functions, and keep calls out of the compilers of frameworks.

`torch.compile` traces every function that it meets, and every frame that runs between its graphs. A
marked function ends the graph with our reason; a function whose frames are skipped runs unchanged,
including everything it calls.
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
"""Values for generated code, under names that no parameter can have."""

TRACED = "Register the kernel with torch_operator() to use it under torch.compile."

_F = TypeVar("_F", bound=Callable[..., Any])


def untraced(function: _F) -> _F:
    """Mark a function like `torch.compiler.disable` does, but without a wrapper."""
    vars(function).update(_torchdynamo_disable=True, _torchdynamo_disable_msg=TRACED)
    return function


def skip_frames(functions: Iterable[Callable[..., Any]]) -> None:
    """Make torch, if loaded, run these functions and everything they call unchanged.

    If the torch version lacks these internals, torch.compile only loses time on the functions.
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
    """Return names for generated parameters: the function's own if they are valid in code."""
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
    """Return the function `_front` that the source lines define, renamed to `name`."""
    scope: dict[str, Any] = dict(values)
    exec(compile("\n".join(source), f"<pallasc {name}>", "exec"), scope)
    made: Function = scope["_front"]
    made.__name__ = made.__qualname__ = name
    skip_frames([made])
    return untraced(made)
