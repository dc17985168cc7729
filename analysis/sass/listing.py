"""Reads the output of `nvdisasm -c`, with or without `-lrm count`.

Only these lines of each section `.text.KERNEL` are used:

    .section .text.KERNEL,"ax",@progbits
    .L_x_3:                                             labels, and functions within the kernel
            /*0a30*/              @!P1 BRA `(.L_x_3) ;         // |  45  |   2  | …

The first column after `//` is the number of live general registers; it is missing if nvdisasm's
data-flow analysis was off. A label may mark something other than a branch target (such as a point
where warps converge), and its number depends on the rest of the file. Labels that an instruction
names are therefore renumbered by address.

ptxas puts functions for traps and slow divisions after the kernel's own code. In these functions,
and at calls to them, the live count also depends on the rest of the file, so it is left out there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pallasc.analysis.sass.instructions import INSTRUCTION_BYTES, Code, Instruction
from pallasc.errors import CorruptError

_SECTION = re.compile(r'\t\.section\t\.text\.(.+),"[a-z]*",@progbits')
_LABEL = re.compile(r"([^\s:]+):")
_INSTRUCTION = re.compile(
    r"\s+/\*(?P<address>[0-9a-f]+)\*/\s+(?P<predicate>@!?U?P\w+ )?\s*(?P<opcode>[A-Z][\w.]*)"
    r"\s*(?P<operands>.*?)\s*;\s*(?:// \|\s*(?P<live>\d*)\s*\|.*)?"
)
_NAMED = re.compile(r"`\(([^)]+)\)")
_OWN_LABEL = re.compile(r"\.L_\w*")


@dataclass(slots=True)
class _Section:
    lines: list[re.Match[str]] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


def read_listing(text: str, contents: Mapping[str, bytes]) -> dict[str, Code]:
    """Return the code of the kernels in a listing.

    Args:
        text: the output of nvdisasm.
        contents: the bytes of each kernel's section, by the kernel's name.

    Raises:
        CorruptError: an instruction is outside these bytes.
    """
    sections = _sections(text)
    return {name: _code(name, sections[name], contents[name]) for name in sections}


def _sections(text: str) -> dict[str, _Section]:
    sections: dict[str, _Section] = {}
    current, waiting = _Section(), list[str]()
    for line in text.splitlines():
        if match := _INSTRUCTION.fullmatch(line):
            current.labels.update(dict.fromkeys(waiting, int(match["address"], 16)))
            current.lines.append(match)
            waiting = []
        elif match := _SECTION.match(line):
            current = sections.setdefault(match[1], _Section())
            waiting = []
        elif match := _LABEL.match(line):
            waiting.append(match[1])
    return sections


def _code(kernel: str, section: _Section, content: bytes) -> Code:
    named = {name for line in section.lines for name in _NAMED.findall(line["operands"])}
    places = {name: at for name, at in section.labels.items() if name in named}
    own = sorted({at for name, at in places.items() if _OWN_LABEL.fullmatch(name)})
    labels = {at: f".L_x_{number}" for number, at in enumerate(own)}
    renamed = {name: labels[at] for name, at in places.items() if _OWN_LABEL.fullmatch(name)}
    functions = {name: at for name, at in places.items() if name not in renamed}
    behind = min(filter(None, functions.values()), default=len(content))
    instructions = tuple(_instructions(section.lines, labels, renamed, content, behind))
    return Code(kernel, instructions[: _used(instructions)], tuple(sorted(functions.items())))


def _instructions(
    lines: list[re.Match[str]],
    labels: Mapping[int, str],
    renamed: Mapping[str, str],
    raw: bytes,
    behind: int,
) -> Iterator[Instruction]:
    for line in lines:
        address = int(line["address"], 16)
        encoding = raw[address : address + INSTRUCTION_BYTES]
        if len(encoding) != INSTRUCTION_BYTES:
            raise CorruptError(f"nvdisasm names an instruction at {address:#x}, behind the code")
        operands = line["operands"]
        if "`" in operands:
            operands = _NAMED.sub(lambda m: f"`({renamed.get(m[1], m[1])})", operands)
        yield Instruction(
            address=address,
            predicate=(line["predicate"] or "").rstrip(),
            opcode=line["opcode"],
            operands=tuple(operands.split(", ")) if operands else (),
            label=labels.get(address, ""),
            live_registers=_live(line) if address < behind else None,
            encoding=encoding,
        )


def _live(line: re.Match[str]) -> int | None:
    return int(line["live"]) if line["live"] and not line["opcode"].startswith("CALL") else None


def _used(instructions: tuple[Instruction, ...]) -> int:
    """Return the number of instructions before the padding at the end of the section."""
    count = len(instructions)
    while count and instructions[count - 1].opcode == "NOP":
        count -= 1
    return count
