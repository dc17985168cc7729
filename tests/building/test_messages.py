"""Messages between a build and its workers, and the channel that carries them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pallasc.compiler.inputs.manifest import Sources
from pallasc.compiler.workers import messages
from pallasc.compiler.workers.diagnostics import MOST, Diagnostic
from pallasc.compiler.workers.messages import (
    Collect,
    Collected,
    Compile,
    Compiled,
    Failed,
    Messages,
    Request,
    decode,
    encode,
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
    digest="1" * 64, missed={"HOME": "k.py:1"},
)  # fmt: skip
COMPILE = Compile(
    variant=None, request="r", fields={"a": "b"}, data={}, env={"X": None}, trusted_records=None,
    task=3,
)  # type: ignore[arg-type]  # fmt: skip


def carried(message: Any) -> Any:
    """Return the plain data that comes out of the channel."""
    return json.loads(json.dumps(message.to_json()))


@pytest.fixture
def specs(tmp_path: Path) -> tuple[Any, ...]:
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "kernels.py").write_text("def run(x, y, *, a, b): return x\nf = len\n")
    return tuple(load_specs([str(tmp_path / "spec.yaml")]))


def test_requests_come_back_as_they_were(specs: Any) -> None:
    for variant in expand(list(specs)):
        asked = replace(COMPILE, variant=variant, trusted_records={"0": "1"})
        back = Compile.from_json(carried(asked))
        assert back == asked
        assert isinstance(back, Compile)
        assert list(back.variant.static) == list(variant.static)
    assert Collect.from_json(carried(Collect(path="a.py"))) == Collect(path="a.py")


def test_replies_come_back_as_they_were(specs: Any) -> None:
    assert COMPILE.read_reply(carried(COMPILED)) == COMPILED
    plain = replace(COMPILED, record=None, blobs={}, digest=None, diagnostics=(), conflict="x")
    assert COMPILE.read_reply(carried(plain)) == plain
    for read in (READ, Sources(), None):
        collected = Collected(specs=specs, uncached="", sources=read, tainted=True)
        assert Collect(path="").read_reply(carried(collected)) == collected
    assert COMPILE.read_reply({**carried(COMPILED), "unknown": 1}) == COMPILED


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ok", 1), ("action", "../x"), ("action", None), ("status", "hit!"), ("seconds", -1),
        ("seconds", float("nan")), ("seconds", float("inf")), ("seconds", True), ("warnings", [1]),
        ("diagnostics", [{}]), ("diagnostics", [WARNING.to_json()] * (MOST + 1)), ("record", []),
        ("blobs", {"k": 1}), ("blobs", {"k": "=!"}), ("digest", "1"), ("task", 4), ("task", "3"),
    ],
)  # fmt: skip
def test_a_reply_with_a_field_of_another_kind_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        COMPILE.read_reply({**carried(COMPILED), field: value})


@pytest.mark.parametrize("field", ["ok", "action", "status", "seconds", "warnings", "uncached"])
def test_a_reply_without_a_field_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        COMPILE.read_reply({k: v for k, v in carried(COMPILED).items() if k != field})


def test_a_spec_with_a_field_of_another_kind_is_refused(specs: Any) -> None:
    for field in ("targets", "env", "location", "matrix"):
        data = carried(Collected(specs=specs, uncached=""))
        data["specs"][0][field] = 3
        with pytest.raises(ValueError, match=r"."):
            Collect(path="").read_reply(data)


# ---- errors


def sent(error: CompileError | SpecError) -> Failed:
    reply = Request().read_reply(carried(Failed.because_of(error)))
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
        data = carried(Failed.because_of(SpecError("m")))
        data["error"]["type"] = kind
        reply = Request().read_reply(data)
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
    data = carried(Failed.because_of(SpecError("no", location=Location("a.yaml", 1, 2))))
    data["error"] = {**data["error"], **change} if change else change
    with pytest.raises(ValueError, match=r"."):
        COMPILE.read_reply(data)


@given(st.dictionaries(st.text(), st.binary()))
def test_blobs_come_back_as_they_were(blobs: dict[str, bytes]) -> None:
    assert Compiled.from_json(carried(replace(COMPILED, blobs=blobs))).blobs == blobs


# ---- the channel

LINES: list[dict[str, object]] = [
    {"pid": 7},
    {"ok": True, "value": ["\n", "é", 1.5, None]},
    {"ok": False},
]


def test_messages_come_back_in_order_however_they_are_cut() -> None:
    data = b"".join(map(encode, LINES))
    for size in (1, 2, 7, 64, len(data)):
        received = Messages()
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        assert [m for part in parts for m in received.feed(part)] == [*LINES]


@pytest.mark.parametrize("text", [b"[]", b"{", b"[" * 200_000, b'{"a": "\xff"}', b"rubbish", b""])
def test_a_line_that_is_no_message_is_none(text: bytes) -> None:
    assert list(Messages().feed(text + b"\n")) == [None]
    with pytest.raises((ValueError, RecursionError)):
        decode(text)


@pytest.mark.parametrize("stray", [b"\n", b'"', b"x\nx"])
def test_a_message_that_was_garbled_is_noticed(stray: bytes) -> None:
    """A thread of a kernel may write into the middle of a long message."""
    data = encode({"ok": True, "value": "x" * 100}) + encode({"ok": False})
    *garbled, last = Messages().feed(data.replace(b"xxx", b"x" + stray + b"xx", 1))
    assert set(garbled) == {None}
    assert last == {"ok": False}


def test_what_has_no_end_takes_no_more_room_than_a_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages, "_LONGEST_LINE_BYTES", 1000)
    received = Messages()
    found = []
    for _ in range(50):
        found += received.feed(b"x" * 100)
        assert len(received._buffer) <= 1000
    assert set(found) == {None}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@settings(max_examples=40)
@given(st.dictionaries(st.text(), values))
def test_a_message_comes_back_as_it_was_on_one_line(message: dict[str, object]) -> None:
    line = encode(message)
    assert (line.count(b"\n"), line[-1:]) == (1, b"\n")
    assert decode(line) == message
    assert list(decode(line)) == list(message)
