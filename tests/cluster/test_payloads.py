"""What travels: read as it was written, and refused where it is anything else."""

from __future__ import annotations

import json
import pickle
import zlib
from typing import Any

import pytest

from pallasc.compiler.cluster import payloads
from pallasc.compiler.cluster.payloads import Outcome, Result, Session, Work
from pallasc.errors import CompileError, Location, SpecError

SESSION = Session(
    build="b",
    identity={"python": "cpython 3.12"},
    variables={"XLA_FLAGS": "-x"},
    versions={"jax": "0.12"},
    environment={"XLA_FLAGS": "-x"},
    timeout_s=3.5,
    memory_bytes=None,
    program="p",
    folders=("/a",),
    files={"/a/k.py": "00"},
    links={"/a/l": "k.py"},
    path=("/b",),
    blobs={"00": b"\0\xff"},
)
WORK = Work(
    session="s", arch="sm_90a", folders="/a:/b", declared={"TILE": None, "SIZE": "3"},
    requests=({"op": "compile"},), topic="t", key="k",
)  # fmt: skip
RESULT = Result(
    worker="tcp://a:1",
    refused=("another jax",),
    outcomes=(
        Outcome(reply={"ok": True}, output="text", stray_bytes=3, seconds=0.5),
        Outcome(error=CompileError("no", kind="died"), place=Location("/a/k.py", 3)),
    ),
)


def test_a_session_is_read_as_it_was_written() -> None:
    assert Session.from_bytes(SESSION.to_bytes()) == SESSION


def test_work_is_read_as_it_was_written() -> None:
    assert Work.from_bytes(WORK.to_bytes()) == WORK


def test_a_result_is_read_as_it_was_written() -> None:
    read = Result.from_bytes(RESULT.to_bytes())
    assert (read.worker, read.refused, read.outcomes[0]) == (
        RESULT.worker, RESULT.refused, RESULT.outcomes[0]
    )  # fmt: skip
    assert str(read.outcomes[1].error) == "no"
    assert read.outcomes[1].error is not None
    assert read.outcomes[1].error.kind == "died"
    assert read.outcomes[1].place == Location("/a/k.py", 3)


def changed(**values: object) -> bytes:
    return json.dumps({**RESULT.to_json(), **values}).encode()


@pytest.mark.parametrize(
    "data",
    [
        None,
        "text",
        {"worker": "a"},
        bytearray(RESULT.to_bytes()),
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        pickle.dumps(RESULT.to_json()),
        changed(worker=3),
        changed(lacks="yes"),
        changed(refused="no"),
        changed(refused=[3]),
        changed(outcomes={}),
        changed(outcomes=[3]),
        changed(outcomes=[{"reply": 3}]),
        changed(outcomes=[{"stray_bytes": "3"}]),
        changed(outcomes=[{"place": "here"}]),
        changed(outcomes=[{"error": {"type": "OSError"}}]),
        changed(outcomes=[{"error": {"type": "SpecError", "message": 3}}]),
    ],
)
def test_a_result_of_another_kind_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        Result.from_bytes(data)


def test_an_error_that_is_none_of_ours_becomes_one() -> None:
    error = {"type": "SystemExit", "message": "m", "hint": None, "location": None, "exit_code": 2}
    read = Result.from_bytes(changed(outcomes=[{"error": error}]))
    assert type(read.outcomes[0].error) is CompileError
    assert not isinstance(read.outcomes[0].error, SpecError)


def test_a_session_that_is_cut_or_swells_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = SESSION.to_bytes()
    with pytest.raises(ValueError, match="cut"):
        Session.from_bytes(data[:-3])
    with pytest.raises(ValueError, match="cannot be decompressed"):
        Session.from_bytes(b"not zlib")
    monkeypatch.setattr(payloads, "LONGEST_SESSION_BYTES", 1000)
    with pytest.raises(ValueError, match="too long"):
        Session.from_bytes(zlib.compress(b" " * 1_000_000))
