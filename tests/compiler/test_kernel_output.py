"""What tracing prints: passed on, kept, and small."""

import random
import sys

import pytest

from pallasc.compiler.lowering.kernel_output import LONGEST_TEXT, pack, printed_text, unpack


def test_what_is_printed_is_kept_and_goes_where_it_went(capsys: pytest.CaptureFixture[str]) -> None:
    with printed_text() as text:
        print("traced")
        sys.stdout.flush()
    print("later")
    assert text.getvalue() == "traced\n"
    assert capsys.readouterr().out == "traced\nlater\n"


def test_a_long_text_takes_little_and_loses_its_beginning() -> None:
    text = "\n".join(f"%{n} = arith.constant {n}" for n in range(100_000))
    packed = pack(text)
    assert len(packed) < len(text) / 4
    kept = unpack(packed)
    assert kept.startswith(f"[first {len(text) - LONGEST_TEXT} characters omitted]\n")
    assert kept.endswith(text[-LONGEST_TEXT:])
    for short in ("", "größer " * 1000):
        assert unpack(pack(short)) == short


def test_a_damaged_text_is_none() -> None:
    packed, dice = pack("a kernel " * 100), random.Random(1)
    for _ in range(200):
        damaged = list(packed)
        damaged[dice.randrange(len(damaged))] = dice.choice("A/+é=z")
        assert isinstance(unpack("".join(damaged)), str)
    for wrong in (None, 7, "é", "AAAA", packed[: len(packed) // 2]):
        assert unpack(wrong) in ("", "a kernel " * 100) or unpack(wrong) in "a kernel " * 100
