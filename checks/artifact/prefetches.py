"""Prefetches of the same bytes by several blocks of a cluster: extra traffic, correct results."""

from __future__ import annotations

from pallasc.checks.artifact.rules import REPEATED_PREFETCH
from pallasc.checks.findings import Finding
from pallasc.emulator.machine.block import Dim3, Prefetch
from pallasc.emulator.machine.warp import Warp
from pallasc.emulator.races.threads import instruction_at


class Prefetches:
    """Records the prefetches of the blocks of each cluster."""

    def __init__(self) -> None:
        self._first: dict[tuple[object, ...], Dim3] = {}
        self._found: dict[tuple[str, str, int], Finding] = {}

    def new_launches(self) -> None:
        """Forget the prefetches of earlier launches, but keep the findings."""
        self._first.clear()

    def note(self, w: Warp, place: int, prefetch: Prefetch) -> None:
        """Record a prefetch by a warp."""
        block, launch = w.block, w.block.launch
        if len(block.cluster.blocks) == 1:
            return
        key = (block.device, block.cluster.first, place, prefetch)
        first = self._first.setdefault(key, block.index)
        if first == block.index:
            return
        instruction = instruction_at(w, place)
        cubin, kernel, line = launch.cubin, launch.program.kernel.name, instruction.line
        self._found.setdefault(
            (cubin, kernel, line),
            Finding(
                rule=REPEATED_PREFETCH.name,
                message=f"blocks {first} and {block.index} of one cluster prefetch the same "
                f"{prefetch.bytes:,} bytes of {prefetch.label}",
                severity="note",
                subject=prefetch.label,
                instruction=f"{instruction.opcode}, PTX line {line}",
                kernel=kernel,
                cubin=cubin,
                ptx_line=line,
            ),
        )

    def findings(self) -> list[Finding]:
        """Return a note for each instruction that repeats another block's prefetch."""
        return list(self._found.values())
