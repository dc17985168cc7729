"""Keep the compilers of frameworks out of calls: their work is not for a graph of operators.

`torch.compile` looks into every function that it meets, and into every frame that runs beside its
graphs. A marked function ends the graph with our reason; a function whose frames are skipped runs
as it is, with all that it calls.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

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
