"""Patterns of mnemonics taken apart: what `emulator/instructions/registry.py` says of them."""

import random
import re
from typing import Any

from pallasc.emulator.instructions.registry import PARTS

NUMBERS = "(8|16|32)"
"""What `<n>` is tried with."""

Choice = tuple[int, int]


class Pattern:
    """Draws mnemonics of a pattern, and knows which alternatives each of them takes."""

    def __init__(self, pattern: str) -> None:
        self._choices: list[int] = []
        for name, part in PARTS.items():
            pattern = pattern.replace(f"<{name}>", NUMBERS if name == "n" else part)
        (self._root,), rest = self._sequences(pattern, ends="")
        assert not rest
        self._regex = re.compile(self._expression(self._root))

    @property
    def alternatives(self) -> set[Choice]:
        """Every choice with every one of its alternatives."""
        return {(n, at) for n, count in enumerate(self._choices) for at in range(count)}

    def draw(self, generator: random.Random) -> str:
        """Return a mnemonic at random."""
        return self._drawn(self._root, generator)

    def every(self) -> list[str]:
        """Return all mnemonics."""
        return self._every(self._root)

    def chosen(self, opcode: str) -> set[Choice]:
        """Return the alternatives that a mnemonic takes; none where it has another pattern."""
        found = self._regex.fullmatch(opcode)
        if found is None:
            return set()
        names = [name for name, text in found.groupdict().items() if text is not None]
        return {(int(n), int(at)) for n, at in (name[1:].split("_") for name in names)}

    def _sequences(self, text: str, ends: str) -> tuple[list[list[Any]], str]:
        """Parse sequences that `|` separates; return them, and what is left from their end on."""
        sequences: list[list[Any]] = [[]]
        while text and text[0] not in ends:
            head, text = text[0], text[1:]
            if head == "|":
                sequences.append([])
            elif head in "([":
                number = len(self._choices)
                self._choices.append(0)
                inner, text = self._sequences(text, ")" if head == "(" else "]")
                text = text[1:]
                options = inner if head == "(" else [[], *inner]
                self._choices[number] = len(options)
                sequences[-1].append((number, options))
            else:
                sequences[-1].append(head)
        return sequences, text

    def _drawn(self, sequence: list[Any], generator: random.Random) -> str:
        text = ""
        for piece in sequence:
            if isinstance(piece, str):
                text += piece
            else:
                text += self._drawn(generator.choice(piece[1]), generator)
        return text

    def _every(self, sequence: list[Any]) -> list[str]:
        texts = [""]
        for piece in sequence:
            more = [piece] if isinstance(piece, str) else []
            for option in [] if more else piece[1]:
                more += self._every(option)
            texts = [text + end for text in texts for end in more]
        return texts

    def _expression(self, sequence: list[Any]) -> str:
        text = ""
        for piece in sequence:
            if isinstance(piece, str):
                text += re.escape(piece)
                continue
            number, options = piece
            each = [
                f"(?P<c{number}_{at}>{self._expression(option)})"
                for at, option in enumerate(options)
            ]
            text += f"(?:{'|'.join(each)})"
        return text
