"""Mutants of PTX: a kernel's text in which one synchronisation is missing or wrong.

Each has the line that was changed and what was done to it, such as "without bar.sync".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_REMOVED = (
    "fence.proxy.async",
    "fence.mbarrier_init",
    "bar.sync",
    "barrier.cluster",
    "wgmma.fence",
    "wgmma.commit_group",
    "wgmma.wait_group",
    "cp.async.bulk.commit_group",
    "cp.async.bulk.wait_group",
    "cp.async.commit_group",
    "cp.async.wait_group",
    "tcgen05.commit",
    "tcgen05.wait",
    "tcgen05.fence",
    "mbarrier.arrive",
)


@dataclass(frozen=True)
class Mutant:
    """A changed text, and what was changed at which of its lines, from 1."""

    what: str
    line: int
    text: str


def mutants(ptx: str) -> Iterator[Mutant]:
    """Yield every mutant of a kernel."""
    lines = ptx.split("\n")
    immediates = _immediates(lines)
    for at, line in enumerate(lines):
        code = line.split("//")[0].strip()
        for opcode in _REMOVED:
            if re.match(rf"(@!?%p\d+ )?{re.escape(opcode)}\b", code):
                yield _changed(lines, at, "", f"without {opcode}")
        if "mbarrier.try_wait" in code:
            yield _changed(lines, at, "mov.pred P1, -1;", "without mbarrier.try_wait")
            yield from _swapped(lines, at, 1, immediates, lambda n: n ^ 1, "other parity")
        if "mbarrier.init" in code:
            yield from _swapped(lines, at, 1, immediates, lambda n: n + 1, "one arrival more")
            yield from _swapped(lines, at, 1, immediates, lambda n: n - 1, "one arrival less")
        if "expect_tx" in code:
            yield from _swapped(lines, at, 1, immediates, lambda n: n - n // 2, "half the bytes")
            yield from _swapped(lines, at, 1, immediates, lambda n: n * 2, "twice the bytes")
        if re.match(r"(wgmma|cp\.async(\.bulk)?)\.wait_group\S*\s+0;", code):
            yield _changed(lines, at, line.replace("0;", "1;"), "wait_group 1")


def _changed(lines: list[str], at: int, line: str, what: str) -> Mutant:
    return Mutant(what, at + 1, "\n".join([*lines[:at], line, *lines[at + 1 :]]))


def _immediates(lines: list[str]) -> dict[str, int]:
    """Return the registers that are only ever set to one constant."""
    found: dict[str, int] = {}
    for line in lines:
        match = re.match(r"mov\.b32 \s*(%r\d+), (\d+);", line.strip())
        if match:
            found[match[1]] = int(match[2])
    return found


def _swapped(lines, at, number, immediates, change, what):  # type: ignore[no-untyped-def]
    """Yield the line with another value of its last-but-something operand, where it is constant."""
    line = lines[at]
    match = re.search(r"\[[^\]]*\], (%r\d+|\d+)", line)
    if match is None:
        return
    operand = match[1]
    value = immediates.get(operand) if operand.startswith("%") else int(operand)
    if value is None:
        if what == "other parity":
            new = (
                f"{{ .reg .b32 mutated; xor.b32 mutated, {operand}, 1; "
                f"{line[: match.start(1)]}mutated{line[match.end(1) :]} }}"
            )
            yield _changed(lines, at, new, what)
        return
    changed = change(value)
    if changed >= 0 and changed != value:
        new = line[: match.start(1)] + str(changed) + line[match.end(1) :]
        yield _changed(lines, at, new, what)


def wait_twice(ptx: str, number: int) -> Mutant:
    """Return the kernel with its wait for an mbarrier of this number, from 0, once more after it.

    The second waits for the phase that follows, as a second `barrier_wait` in the source does.
    """
    waits = list(re.finditer(r"\{\s*\.reg \.pred +P1;.*?DONE:\s*\}", ptx, re.DOTALL))
    wait = waits[number]
    again = re.sub(r"(\[%r\d+\]), (%r\d+)", r"\1, other", wait[0])
    parity = re.search(r"\[%r\d+\], (%r\d+)", wait[0])
    assert parity is not None
    start = f"{{ .reg .b32 other; xor.b32 other, {parity[1]}, 1;\n"
    text = f"{ptx[: wait.end()]}\n{start}{again} }}{ptx[wait.end() :]}"
    return Mutant("a second wait", ptx[: wait.end()].count("\n") + 1, text)
