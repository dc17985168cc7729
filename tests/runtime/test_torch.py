"""Tensors of a stock PyTorch on the stand-in driver; operators, and frames to skip, without one."""

import sys
from functools import partial
from types import CodeType, SimpleNamespace
from typing import Any

import made
import pytest

from pallasc.errors import ArgumentError
from pallasc.runtime.adapters.torch_arrays import _Operator
from pallasc.runtime.calls.native_path import TRACED, make_operator, skip_frames
from pallasc.runtime.kernel import Kernel
from pallasc.runtime.matching.arrays import Access
from pallasc.runtime.opening import Kernels

TEXT = "f32[4, 64]"
METHODS = (
    *("__call__", "available", "choice", "defvjp", "defvmap", "into", "variant"),
    *("preload", "prepare"),
)


def test_calls_with_tensors_of_torch_are_right_or_refused(torch_process: Any) -> None:
    torch_process("torch_ways.py")


# ---- operators


def _operator(kernel: Any) -> _Operator:
    return _Operator(kernel, kernel.forms)


def test_an_operator_returns_what_its_schema_says_and_is_fast_the_next_time(
    slow: list[str], runtime: Any, framework: Any
) -> None:
    updates = made.kernel(made.artifact(made.launch("two", 0, 1), outputs=["b"]))
    a, b = (framework.tensor(TEXT) for _ in range(2))
    operator = _operator(updates)
    assert operator.schema() == "(Tensor a, Tensor(b!) b) -> ()"
    assert operator.launch(a, b) is None
    adds = made.kernel(made.add())
    operator = _operator(adds)
    assert operator.schema() == "(Tensor a, Tensor b) -> Tensor"
    for _ in range(2):
        assert operator.launch(a, b).shape == (4, 64)
    slow.clear()
    operator.launch(a, b)
    assert slow == []


def test_arguments_that_no_variant_has_are_refused(runtime: Any, framework: Any) -> None:
    whole = made.artifact(made.launch("four", 0, 1, 2, 3), inputs=dict.fromkeys("abc", TEXT))
    tree = {"a": 0, "b": None, "c": None}
    first = made.artifact(made.launch("two", 0, 1), inputs={"a": TEXT}, input_tree=tree)
    kernel = Kernels([("k", {"b": None}, first), ("k", {"b": TEXT}, whole)])["k"]
    a, b = (framework.tensor(TEXT) for _ in range(2))
    with pytest.raises(ArgumentError, match=r"k has no variant without c\."):
        _operator(kernel).launch(a, b)


# ---- what torch.compile is told about the functions of a kernel


class _Frames:
    """The part of torch that is told which frames to skip."""

    _FrameAction = SimpleNamespace(SKIP="skip")

    def __init__(self) -> None:
        self.told: dict[CodeType, Any] = {}

    def _FrameExecStrategy(self, own: str, called: str) -> tuple[str, str]:
        return own, called

    def set_code_exec_strategy(self, code: CodeType, strategy: Any) -> None:
        self.told[code] = strategy

    @property
    def names(self) -> set[str]:
        return {code.co_name for code in self.told}


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> _Frames:
    made_up = _Frames()
    torch = SimpleNamespace(_C=SimpleNamespace(_dynamo=SimpleNamespace(eval_frame=made_up)))
    monkeypatch.setitem(sys.modules, "torch", torch)
    return made_up


def test_a_torch_that_is_loaded_skips_the_frames_of_kernels(runtime: Any, frames: _Frames) -> None:
    made.kernel(made.add())
    assert frames.names == {*METHODS, "unchecked", "by_digest"}
    for name in METHODS:
        marks = vars(vars(Kernel)[name])
        assert marks["_torchdynamo_disable"] is True
        assert marks["_torchdynamo_disable_msg"] == TRACED


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
    runtime: Any, frames: _Frames
) -> None:
    own = _Framework()
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
    assert frames.names == {
        *("_view", "_view_in_order", "_new_here", "_is_plain", "_fallback"),
        *("new_in", "mark_written", "stream"),
        *("_make_program", "_refuse", "stream_handle"),
    }


@pytest.mark.parametrize("torch", [None, SimpleNamespace(), SimpleNamespace(_C=None)])
def test_another_torch_is_told_nothing(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    skip_frames([_view])
