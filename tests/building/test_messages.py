"""Messages between a build and its workers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallasc.compiler.workers.messages import (
    blobs_from_json,
    blobs_to_json,
    decode,
    encode,
    error_from_json,
    error_to_json,
    is_answer,
)
from pallasc.errors import BudgetError, CompileError, Location, SpecError, UnsupportedError

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@settings(max_examples=40)
@given(st.dictionaries(st.text(), values))
def test_a_message_comes_back_as_it_was_on_one_line(message: dict[str, object]) -> None:
    line = encode(message)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode(line) == message
    assert list(decode(line)) == list(message)


@pytest.mark.parametrize("line", [b"", b"[]", b"1", b'{"a":', b"\xff", b"no"])
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(line)


@pytest.mark.parametrize(
    "error",
    [
        SpecError("wrong", location=Location("a.yaml", 3, 4), hint="do this"),
        CompileError("failed"),
        BudgetError("too much", location=Location("b.py")),
        UnsupportedError("cuBLAS", hint="x"),
    ],
)
def test_an_error_comes_back_as_it_was(error: CompileError) -> None:
    back = error_from_json(json.loads(json.dumps(error_to_json(error))))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert (back.location, back.hint, back.exit_code) == (
        error.location,
        error.hint,
        error.exit_code,
    )


def test_an_error_of_an_inner_class_comes_back_as_its_public_one() -> None:
    class InnerError(UnsupportedError):
        exit_code = 4

    back = error_from_json(error_to_json(InnerError("x")))
    assert type(back) is UnsupportedError
    assert back.exit_code == 4


def test_an_error_of_an_unknown_kind_is_a_compile_error() -> None:
    for kind in ("Location", "os", "NoSuchError"):
        data = {"type": kind, "message": "m", "hint": None, "location": None, "exit_code": 1}
        assert type(error_from_json(data)) is CompileError


@given(st.dictionaries(st.text(), st.binary()))
def test_blobs_come_back_as_they_were(blobs: dict[str, bytes]) -> None:
    assert blobs_from_json(json.loads(json.dumps(blobs_to_json(blobs)))) == blobs


COMPILED = {
    "ok": True, "action": "0" * 64, "status": "compiled", "seconds": 0.5, "warnings": ["w"],
    "uncached": "", "printed": "", "stored": True, "record": {}, "blobs": {"k": "data"}, "task": 3,
}  # fmt: skip
FAILED = {"ok": False, "error": error_to_json(SpecError("no", location=Location("a.yaml", 1, 2)))}


def test_answers_are_recognised() -> None:
    assert is_answer(COMPILED, "compile")
    assert is_answer({"ok": True, "specs": [{}], "uncached": ""}, "collect")
    assert is_answer({"ok": True, "anything": object()}, "do")
    for op in ("compile", "collect", "do"):
        assert is_answer(json.loads(json.dumps(FAILED)), op)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ok", 1), ("ok", "true"), ("action", "../x"), ("action", None), ("status", "hit!"),
        ("status", []), ("seconds", -1), ("seconds", float("nan")), ("seconds", "1"),
        ("seconds", float("inf")), ("seconds", True), ("warnings", "w"), ("warnings", [1]),
        ("uncached", None), ("not_stored", 1), ("diagnostics", {}), ("diagnostics", [{}] * 99),
        ("printed", 3), ("stored", "no"), ("record", []), ("blobs", {"k": 1}),
        ("blobs", ["k"]), ("spoilt", 1), ("conflict", {}),
    ],
)  # fmt: skip
def test_an_answer_with_a_field_of_another_kind_is_none(field: str, value: object) -> None:
    assert not is_answer({**COMPILED, field: value}, "compile")


@pytest.mark.parametrize("field", ["ok", "action", "status", "seconds", "warnings", "uncached"])
def test_an_answer_without_a_field_is_none(field: str) -> None:
    assert not is_answer({k: v for k, v in COMPILED.items() if k != field}, "compile")


@pytest.mark.parametrize(
    "error",
    [
        None, {}, [], {**FAILED["error"], "exit_code": 0}, {**FAILED["error"], "exit_code": "2"},
        {**FAILED["error"], "message": None}, {**FAILED["error"], "hint": 1},
        {**FAILED["error"], "location": "a.yaml"}, {**FAILED["error"], "location": ["a"]},
        {**FAILED["error"], "type": 5},
    ],
)  # fmt: skip
def test_an_error_of_another_form_is_no_answer(error: object) -> None:
    assert not is_answer({"ok": False, "error": error}, "compile")
