"""Text of strangers on terminals and in logs of CI services."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pallasc.errors import bounded
from pallasc.specs.spelling import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("two\nlines\tand a tab\n", "two\nlines\tand a tab\n"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;a title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b(Bset\x1bc", "set"),
        ("bell\x07 null\x00 c1\x9b31m", "bell null c131m"),
        ("10 %\r20 %\r\ndone", "10 %\n20 %\ndone"),
        ("a\u202eb\u2066c\u200fd\u061ce", "abcde"),
        ("e\u0301 \U0001f468\u200d\U0001f469", "e\u0301 \U0001f468\u200d\U0001f469"),
        ("hidden\U000e0041\U000e0042", "hidden"),
        ("half\ud800", "half\ufffd"),
        ("caf\udce9.yaml", r"caf\xe9.yaml"),
        ("one\u2028two\u2029three\x85four", "one\ntwo\nthreefour"),
        ("a\n \t::set-output name=x::y", "a\n \t: :set-output name=x::y"),
        ("\x1b[0m::add-mask::x", ": :add-mask::x"),
        ("a\r::debug::b\u2028::debug::c", "a\n: :debug::b\n: :debug::c"),
        (":\u202e:error::x", ": :error::x"),
        ("see ##[error]x", "see ## [error]x"),
        ("##vso[task.setvariable]x ##TeamCity[y]", "## vso[task.setvariable]x ## TeamCity[y]"),
        ("## a heading, and ###", "## a heading, and ###"),
    ],
)
def test_what_a_terminal_or_a_ci_service_obeys_is_taken_out(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters(codec=None)))
@example("\x1b\x1b[mm::")
@example("#\x00#[x]")
@example(":\x1b[m:error::")
def test_what_was_made_printable_stays_as_it_is(text: str) -> None:
    shown = printable(text)
    assert printable(shown) == shown
    assert not {*shown} & {"\x1b", "\r", "\x00", "\x9b", "\u202e", "\u2066"}
    shown.encode()
    assert not any(line.lstrip(" \t\xa0").startswith("::") for line in shown.split("\n"))
    assert "##[" not in shown


def test_a_long_text_loses_its_middle_and_says_how_much() -> None:
    text = "".join(chr(97 + number % 26) for number in range(10_000))
    short = bounded(text)
    head, _, rest = short.partition("… (")
    number, _, tail = rest.partition(" characters cut) …")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head) + int(number.replace(",", "")) + len(tail) == len(text)
    kept = len(head) + len(tail)
    assert bounded(text[:kept]) == text[:kept]
    assert "(1 characters cut)" in bounded(text[: kept + 1])
