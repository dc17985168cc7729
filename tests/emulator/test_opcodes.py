"""Every form of instruction on docs/opcodes.md is executed, with each of its alternatives."""

from __future__ import annotations

import random
import re

import opcode_cases_copies  # noqa: F401  (registers cases)
import opcode_cases_lanes  # noqa: F401
import opcode_cases_matrices  # noqa: F401
import opcode_cases_memory  # noqa: F401
import pytest
from opcode_cases import case_of
from small_kernels import run

from pallasc.emulator.instructions.forms import FORMS, PARTS, REFUSED, Form, form_of
from pallasc.emulator.instructions.registry import BUILDERS
from pallasc.errors import UnsupportedError

OPERANDS = ("%r1, %r2", "L")
NUMBERS = "(8|16|32)"
"""What `<n>` is tried with."""


class Pattern:
    """A pattern taken apart: draws mnemonics, and knows which alternatives each of them takes."""

    def __init__(self, pattern: str) -> None:
        self._choices: list[int] = []
        for name, part in PARTS.items():
            pattern = pattern.replace(f"<{name}>", NUMBERS if name == "n" else part)
        self._root, rest = self._sequences(pattern, ends="")
        assert not rest

    @property
    def alternatives(self) -> set[tuple[int, int]]:
        """Every choice with every one of its alternatives."""
        return {(n, at) for n, count in enumerate(self._choices) for at in range(count)}

    def draw(self, generator: random.Random) -> tuple[str, set[tuple[int, int]]]:
        """Return a mnemonic at random, and what was chosen."""
        return self._drawn(self._root[0], generator)

    def _sequences(self, text: str, ends: str):  # type: ignore[no-untyped-def]
        """Parse sequences that `|` separates; return them, and what is left behind their end."""
        sequences: list[list[object]] = [[]]
        while text and text[0] not in ends:
            head, text = text[0], text[1:]
            if head == "|" and ends:
                sequences.append([])
            elif head in "([":
                inner, text = self._sequences(text, ")" if head == "(" else "]")
                text = text[1:]
                options = inner if head == "(" else [[], *inner]
                self._choices.append(len(options))
                sequences[-1].append((len(self._choices) - 1, options))
            else:
                sequences[-1].append(head)
        return sequences, text

    def _drawn(self, sequence, generator):  # type: ignore[no-untyped-def]
        text, chosen = "", set()
        for piece in sequence:
            if isinstance(piece, str):
                text += piece
                continue
            number, options = piece
            at = generator.randrange(len(options))
            inner, more = self._drawn(options[at], generator)
            text += inner
            chosen |= {(number, at)} | more
        return text, chosen


def test_patterns_are_taken_apart() -> None:
    pattern = Pattern("a[.b].(c|d[.e])")
    drawn = {pattern.draw(random.Random(seed))[0] for seed in range(99)}
    assert drawn == {"a.c", "a.d", "a.d.e", "a.b.c", "a.b.d", "a.b.d.e"}
    assert len(pattern.alternatives) == 6


@pytest.mark.parametrize("form", FORMS, ids=[form.pattern[:60] for form in FORMS])
def test_each_alternative_of_a_form_gives_what_the_manual_says(form: Form) -> None:
    pattern, generator = Pattern(form.pattern), random.Random(1)
    left = pattern.alternatives
    tried: set[str] = set()
    for _ in range(3000):
        opcode, chosen = pattern.draw(generator)
        if opcode in tried or not (chosen & left or not tried):
            continue
        tried.add(opcode)
        assert form_of(opcode) is not None
        case = case_of(opcode)
        if case is not None:
            try:
                case.check()
            except Exception as error:
                error.add_note(f"{opcode} in {case.lines}")
                raise
            left -= chosen
    assert not left, f"{len(left)} alternatives of {form.pattern} have no case; {sorted(tried)}"


@pytest.mark.parametrize(("opcode", "what"), REFUSED, ids=[opcode for opcode, _ in REFUSED])
def test_what_is_listed_as_refused_is_refused_by_name(opcode: str, what: str) -> None:
    assert what
    assert form_of(opcode) is None
    with pytest.raises(UnsupportedError, match=re.escape(opcode)):
        run(f"{opcode} {OPERANDS[opcode.startswith('br')]};\nL:\n")


@pytest.mark.parametrize("form", FORMS, ids=[form.pattern[:60] for form in FORMS])
def test_a_part_too_many_is_refused_by_name(form: Form) -> None:
    opcode, _ = Pattern(form.pattern).draw(random.Random(2))
    with pytest.raises(UnsupportedError, match=re.escape(f"{opcode}.quickly")):
        run(f"{opcode}.quickly {OPERANDS[opcode.startswith('br')]};\nL:\n")


def test_every_instruction_with_a_function_has_a_form_and_the_other_way_round() -> None:
    drawn = {
        Pattern(form.pattern).draw(random.Random(seed))[0].partition(".")[0]
        for form in FORMS
        for seed in range(20)
    }
    assert drawn == set(BUILDERS)
