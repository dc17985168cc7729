"""What torch.compile is told about the functions of a kernel."""

from __future__ import annotations

import sys
from types import CodeType, SimpleNamespace
from typing import Any

import made
import pytest

from pallasc.runtime.calls.generated import TRACED
from pallasc.runtime.kernel import Kernel

METHODS = (
    *("__call__", "available", "choice", "defvjp", "defvmap", "into", "variant"),
    *("preload", "prepare"),
)


def _is_marked(function: Any) -> bool:
    marks = vars(function)
    return (marks["_torchdynamo_disable"], marks["_torchdynamo_disable_msg"]) == (True, TRACED)


@pytest.mark.parametrize("name", METHODS)
def test_a_function_that_users_call_ends_a_graph(name: str) -> None:
    assert _is_marked(vars(Kernel)[name])


class _Frames:
    """The part of torch that is told which frames to skip."""

    _FrameAction = SimpleNamespace(SKIP="skip")

    def __init__(self) -> None:
        self.told: dict[CodeType, Any] = {}

    def _FrameExecStrategy(self, own: str, called: str) -> tuple[str, str]:
        return own, called

    def set_code_exec_strategy(self, code: CodeType, strategy: Any) -> None:
        self.told[code] = strategy


def test_a_torch_that_is_loaded_skips_the_frames_of_kernels(
    runtime: Any, framework: Any, python_only: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = _Frames()
    torch = SimpleNamespace(_C=SimpleNamespace(_dynamo=SimpleNamespace(eval_frame=frames)))
    monkeypatch.setitem(sys.modules, "torch", torch)
    kernel = made.kernel(made.add())
    names = {code.co_name for code in frames.told}
    assert names == {*METHODS, "unchecked", "by_digest"}
    a, b = framework.tensor("f32[4, 64]"), framework.tensor("f32[4, 64]")
    kernel(a, b)
    kernel(a, b)
    assert frames.told[kernel._call.__code__] == ("skip", "skip")
    assert frames.told[kernel.into.__code__] == ("skip", "skip")
