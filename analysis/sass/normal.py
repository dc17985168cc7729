"""Code in a normal form, without the compiler's free choices: register names and the schedule.

Registers (`R`, `UR`), predicates (`P`, `UP`), convergence barriers (`B`), scoreboards (`SB`) and
labels are numbered in order of first appearance. Addresses, the control words with their stalls and
scoreboards, and the hint `.reuse` are left out. Opcodes with modifiers, constants, special
registers, and the order of instructions are kept.
"""

from __future__ import annotations

import re

from pallasc.analysis.sass.instructions import Code

_NAME = re.compile(r"`\((?P<label>\.L_\w+)\)|(?<![\w.$])(?P<kind>UR|R|UP|P|B|SB)(?P<number>\d+)\b")
_REUSE = re.compile(r"\.reuse\b")


def normalised(code: Code) -> tuple[str, ...]:
    """Return a text for each instruction of a kernel, prefixed with `label:` if it has one."""
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
