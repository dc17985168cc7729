"""Requests to workers, and their replies, which come from processes that run user code."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from pallasc.cache.manifests import MOST_DIAGNOSTICS, Diagnostic
from pallasc.cache.store import PutResult
from pallasc.compiler.workers.messages import Compile, Compiled, Failed, Reply, Request
from pallasc.errors import CompileError, Location, SpecError

WARNING = Diagnostic("compile", "UserWarning", "k.py:3", "slow", 2)
COMPILED = Compiled(
    action="0" * 64, status="compiled", seconds=0.5, warnings={"read": "w"}, uncached="", task=3,
    record={"plan": [1, {"x": None}]}, blobs={"k": b"\x00data"}, diagnostics=(WARNING,),
    put=PutResult(stored=True, digest="1" * 64), missed={"HOME": "k.py:1"},
)  # fmt: skip
COMPILE = Compile(
    variant=None, request="r", fields={"a": "b"}, data={}, env={"X": None}, trusted_records=None,
    task=3,
)  # type: ignore[arg-type]  # fmt: skip


def fields(reply: Reply) -> Any:
    """Return the fields of a reply as they are sent."""
    return json.loads(reply.line())


def read(request: Request, data: object) -> Reply:
    return request.read_reply(json.dumps(data).encode())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("type", 1), ("type", "Collected"), ("action", "../x"), ("action", None),
        ("status", "hit!"), ("seconds", -1), ("seconds", float("nan")), ("seconds", float("inf")),
        ("seconds", True), ("warnings", [1]), ("diagnostics", [{}]),
        ("diagnostics", [asdict(WARNING)] * (MOST_DIAGNOSTICS + 1)), ("record", []),
        ("blobs", {"k": 1}),
        ("blobs", {"k": "=!"}), ("put", [True, "1"]), ("task", 4), ("task", "3"),
    ],
)  # fmt: skip
def test_a_reply_with_a_field_of_another_kind_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        read(COMPILE, {**fields(COMPILED), field: value})


# ---- errors


def sent(error: CompileError | SpecError) -> Failed:
    reply = Request().read_reply(Failed.because_of(error).line())
    assert isinstance(reply, Failed)
    return reply


def test_an_error_knows_whether_memory_ran_out() -> None:
    for cause, expected in ((MemoryError(), True), (ValueError("MemoryError"), False)):
        error = CompileError("MemoryError: no")
        error.__cause__ = SpecError("in between")
        error.__cause__.__cause__ = cause
        assert sent(error).out_of_memory is expected
    error.__cause__ = error
    assert not sent(error).out_of_memory


@pytest.mark.parametrize(
    "change",
    [
        None, [], {"message": None}, {"hint": 1},
        {"location": "a.yaml"}, {"location": ["a"]}, {"type": 5},
    ],
)  # fmt: skip
def test_an_error_of_another_form_is_refused(change: Any) -> None:
    data = fields(Failed.because_of(SpecError("no", location=Location("a.yaml", 1, 2))))
    data["error"] = {**data["error"], **change} if change else change
    with pytest.raises(ValueError, match=r"."):
        read(COMPILE, data)


@given(st.dictionaries(st.text(), st.binary()))
def test_blobs_come_back_as_they_were(blobs: dict[str, bytes]) -> None:
    reply = replace(COMPILED, blobs=blobs)
    line = reply.line()
    assert (line.count(b"\n"), line[-1:]) == (1, b"\n")
    assert COMPILE.read_reply(line) == reply
