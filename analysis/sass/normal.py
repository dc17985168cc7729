"""Code without what a compiler may choose freely: names of registers, and the schedule.

Registers (`R`, `UR`), predicates (`P`, `UP`), convergence barriers (`B`), scoreboards (`SB`) and
labels get numbers in the order in which the text names them first. Addresses, the control words
with their stalls and scoreboards, and the hint `.reuse` are left out. What stays: opcodes with
modifiers, constants, special registers, and the order of instructions.
"""

from __future__ import annotations

import re

from pallasc.analysis.sass.instructions import Code

_NAME = re.compile(r"`\((?P<label>\.L_\w+)\)|(?<![\w.$])(?P<kind>UR|R|UP|P|B|SB)(?P<number>\d+)\b")
_REUSE = re.compile(r"\.reuse\b")


def normalised(code: Code) -> tuple[str, ...]:
    """Return a text for each instruction of a kernel; `label:` is in front of one that has one."""
    names: dict[str, str] = {}
    counts: dict[str, int] = {}

    def renamed(kind: str, name: str) -> str:
        if name not in names:
            names[name] = f"{kind}{counts.get(kind, 0)}"
            counts[kind] = counts.get(kind, 0) + 1
        return names[name]

    def replacement(match: re.Match[str]) -> str:
        if match["label"]:
            return f"`({renamed('L', match['label'])})"
        return renamed(match["kind"], match["kind"] + match["number"])

    lines = []
    for each in code.instructions:
        label = f"{renamed('L', each.label)}: " if each.label else ""
        lines.append(label + _NAME.sub(replacement, _REUSE.sub("", each.text)))
    return tuple(lines)
