"""Requests to workers, and their replies, which come from processes that run user code."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pallasc.cache.store import PutResult
from pallasc.compiler.inputs.manifest import Sources
from pallasc.compiler.workers.diagnostics import MOST, Diagnostic
from pallasc.compiler.workers.messages import (
    Collect,
    Collected,
    Compile,
    Compiled,
    Failed,
    Reply,
    Request,
)
from pallasc.errors import BudgetError, CompileError, Location, SpecError, UnsupportedError
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_specs

SPEC = """schema: 1
targets: [sm_90a]
kernels:
- name: run
  entry: kernels:run
  args: {x: "bf16[{M}, 8]", y: ["f32[1]", "f32[2]"]}
  static: {b: 1, a: {"$ref": "kernels:f"}}
  matrix: {M: [8, 16]}
  tolerance: {rtol: 0.5, atol: 0.5}
"""
WARNING = Diagnostic("compile", "UserWarning", "k.py:3", "slow", 2)
READ = Sources(
    files={"module:a": Path("/a.py")},
    packages={"b", "c"},
    unknown={"d"},
    unseen={"e ran another program"},
    altered={"file:f"},
    absent={"e"},
    folders=("/x",),
    hidden=["colorsys"],
    opened={"file:t": Path("/t")},
    missed={"ONE": "kernel.py:1"},
)
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


def read(request: Request, fields: object) -> Reply:
    return request.read_reply(json.dumps(fields).encode())


def test_requests_come_back_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "kernels.py").write_text("def run(x, y, *, a, b): return x\nf = len\n")
    for variant in expand(list(load_specs([str(tmp_path / "spec.yaml")]))):
        asked = replace(COMPILE, variant=variant, trusted_records={"0": "1"})
        back = pickle.loads(pickle.dumps(asked))
        assert back == asked
        assert list(back.variant.static) == list(variant.static)


def test_replies_come_back_as_they_were() -> None:
    assert COMPILE.read_reply(COMPILED.line()) == COMPILED
    plain = replace(COMPILED, record=None, blobs={}, put=PutResult(False, ""), diagnostics=())
    assert COMPILE.read_reply(plain.line()) == plain
    for sources in (READ, Sources(), None):
        collected = Collected(specs=({"a": [1]},), uncached="", sources=sources, tainted=True)
        assert Collect(path="").read_reply(collected.line()) == collected
    assert read(COMPILE, {**fields(COMPILED), "unknown": 1}) == COMPILED


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("type", 1), ("type", "Collected"), ("action", "../x"), ("action", None),
        ("status", "hit!"), ("seconds", -1), ("seconds", float("nan")), ("seconds", float("inf")),
        ("seconds", True), ("warnings", [1]), ("diagnostics", [{}]),
        ("diagnostics", [WARNING.to_json()] * (MOST + 1)), ("record", []), ("blobs", {"k": 1}),
        ("blobs", {"k": "=!"}), ("put", [True, "1"]), ("task", 4), ("task", "3"),
    ],
)  # fmt: skip
def test_a_reply_with_a_field_of_another_kind_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        read(COMPILE, {**fields(COMPILED), field: value})


@pytest.mark.parametrize("field", ["type", "action", "status", "seconds", "warnings", "uncached"])
def test_a_reply_without_a_field_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read(COMPILE, {k: v for k, v in fields(COMPILED).items() if k != field})


@pytest.mark.parametrize("line", [b"[]", b"{", b"[" * 200_000, b'{"a": "\xff"}', b"rubbish", b""])
def test_a_line_that_is_no_reply_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        COMPILE.read_reply(line)


# ---- errors


def sent(error: CompileError | SpecError) -> Failed:
    reply = Request().read_reply(Failed.because_of(error).line())
    assert isinstance(reply, Failed)
    return reply


@pytest.mark.parametrize(
    "error",
    [
        SpecError("wrong", location=Location("a.yaml", 3, 4), hint="do this"),
        BudgetError("too much", location=Location("b.py")),
        UnsupportedError("cuBLAS", hint="x"),
    ],
)
def test_an_error_comes_back_as_it_was(error: CompileError) -> None:
    back = sent(error).error
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert (back.location, back.hint) == (error.location, error.hint)
    assert back.exit_code == error.exit_code


def test_an_error_knows_whether_memory_ran_out() -> None:
    for cause, expected in ((MemoryError(), True), (ValueError("MemoryError"), False)):
        error = CompileError("MemoryError: no")
        error.__cause__ = SpecError("in between")
        error.__cause__.__cause__ = cause
        assert sent(error).out_of_memory is expected
    error.__cause__ = error
    assert not sent(error).out_of_memory


def test_an_error_of_an_inner_or_unknown_class_comes_back_as_a_public_one() -> None:
    class InnerError(UnsupportedError):
        exit_code = 4

    back = sent(InnerError("x")).error
    assert (type(back), back.exit_code) == (UnsupportedError, 4)
    for kind in ("Location", "os", "NoSuchError"):
        data = fields(Failed.because_of(SpecError("m")))
        data["error"]["type"] = kind
        reply = read(Request(), data)
        assert isinstance(reply, Failed)
        assert type(reply.error) is CompileError


@pytest.mark.parametrize(
    "change",
    [
        None, [], {"exit_code": 0}, {"exit_code": "2"}, {"message": None}, {"hint": 1},
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
