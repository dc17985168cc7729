"""What torch.compile is told about the functions of a kernel."""

from __future__ import annotations

import sys
from functools import partial
from types import CodeType, SimpleNamespace
from typing import Any

import made
import pytest

from pallasc.runtime.calls.native_path import TRACED, make_operator, skip_frames
from pallasc.runtime.kernel import Kernel
from pallasc.runtime.matching.arrays import Access

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
    runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = _load_torch(monkeypatch)
    made.kernel(made.add())
    names = {code.co_name for code in frames.told}
    assert names == {*METHODS, "unchecked", "by_digest"}


def _load_torch(monkeypatch: pytest.MonkeyPatch) -> _Frames:
    frames = _Frames()
    torch = SimpleNamespace(_C=SimpleNamespace(_dynamo=SimpleNamespace(eval_frame=frames)))
    monkeypatch.setitem(sys.modules, "torch", torch)
    return frames


def _view(array: Any) -> Any: ...
def _view_in_order(array: Any) -> Any: ...
def _new_here(*_: Any) -> Any: ...
def _is_plain(array: Any) -> bool: ...
def _fallback(*_: Any) -> Any: ...


class _Framework:
    def new_in(self, *_: Any) -> Any: ...
    def mark_written(self, arrays: Any) -> None: ...
    def stream(self, device: int) -> int: ...


@pytest.mark.usefixtures("native")
def test_a_torch_that_is_loaded_skips_everything_that_a_front_calls(
    runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames, own = _load_torch(monkeypatch), _Framework()
    access = Access(
        kinds=(_Framework,),
        describe=_view,
        describe_in_order=_view_in_order,
        dtypes={},
        new_here=partial(_new_here, 1),
        new_in=own.new_in,
        mark_written=own.mark_written,
        is_plain=_is_plain,
        stream=own.stream,
    )
    make_operator(access, 2, _fallback)
    names = {code.co_name for code in frames.told}
    assert names == {
        *("_view", "_view_in_order", "_new_here", "_is_plain", "_fallback"),
        *("new_in", "mark_written", "stream"),
        *("_make_program", "_admit", "_order", "after", "_refuse", "stream_handle"),
    }


@pytest.mark.parametrize("torch", [None, SimpleNamespace(), SimpleNamespace(_C=None)])
def test_another_torch_is_told_nothing(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    skip_frames([_is_marked])
