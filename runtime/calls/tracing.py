"""Keep calls out of the compilers of frameworks.

`torch.compile` traces every function that it meets, and every frame that runs between its graphs. A
marked function ends the graph with our reason; a function whose frames are skipped runs unchanged,
including everything it calls.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

Function = Callable[..., Any]

TRACED = "Register the kernel with torch_operator() to use it under torch.compile."

_F = TypeVar("_F", bound=Callable[..., Any])


def untraced(function: _F) -> _F:
    """Mark a function like `torch.compiler.disable` does, but without a wrapper."""
    vars(function).update(_torchdynamo_disable=True, _torchdynamo_disable_msg=TRACED)
    return function


def skip_frames(functions: Iterable[Callable[..., Any] | None]) -> None:
    """Make torch, if loaded, run these functions and everything they call unchanged.

    Functions in C have no frames. If the torch version lacks these internals, torch.compile only
    loses time on the functions.
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
