"""Barriers: `mbarrier` objects in shared memory, and the named barriers of a block.

PTX ISA 9.0, 9.7.13.15 (mbarrier) and 9.7.13.1 (bar).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pallasc.emulator.machine.faults import Fault

_MOST_ARRIVALS = (1 << 20) - 1
_MOST_BYTES = (1 << 20) - 1
_WARPGROUP = 128


@dataclass(slots=True)
class Mbarrier:
    """An mbarrier object: its phase, its pending arrivals, and its pending bytes."""

    expected: int
    pending: int
    phase: int = 0
    bytes: int = 0

    def expect(self, count: int) -> None:
        """Announce `count` bytes (expect-tx)."""
        self.bytes += count
        self._check()

    def complete(self, count: int) -> bool:
        """Record the arrival of `count` bytes (complete-tx); return True if the phase completed."""
        self.bytes -= count
        self._check()
        return self._turn()

    def arrive(self, count: int = 1) -> bool:
        """Record `count` arrivals; return True if the phase completed.

        Raises:
            Fault: more arrivals than the barrier expects.
        """
        if count > self.pending:
            raise Fault(
                "too-many-arrivals",
                f"{count} arrivals at an mbarrier in phase {self.phase}: {self._left()}",
            )
        self.pending -= count
        return self._turn()

    def has_passed(self, parity: int) -> bool:
        """Return True if the phase of this parity has completed."""
        return self.phase & 1 != parity & 1

    def _turn(self) -> bool:
        if self.pending or self.bytes:
            return False
        self.phase += 1
        self.pending = self.expected
        return True

    def _expected(self) -> str:
        """Format the arrivals of a phase, with the `num_arrivals` that the user wrote."""
        if self.expected % _WARPGROUP:
            return f"{self.expected} arrivals"
        count = self.expected // _WARPGROUP
        return f"{self.expected} arrivals (num_arrivals={count} with {_WARPGROUP} threads each)"

    def _left(self) -> str:
        of = self._expected()
        if self.pending:
            return f"only {self.pending} of its {of} are left"
        return f"all its {of} have already happened, and it waits for bytes of copies"

    def _check(self) -> None:
        if abs(self.bytes) > _MOST_BYTES:
            raise Fault(
                "transaction-overflow",
                f"the transaction count of an mbarrier is {self.bytes} bytes",
            )

    def __str__(self) -> str:
        arrived = self.expected - self.pending
        under_way = ""
        if self.bytes > 0:
            under_way = f", {self.bytes} bytes announced but not copied"
        elif self.bytes < 0:
            under_way = f", {-self.bytes} bytes copied but not announced"
        return f"phase {self.phase}: {arrived} of {self._expected()}{under_way}"


@dataclass(slots=True)
class NamedBarrier:
    """One of the 16 barriers of a block, with the arrivals since it last completed."""

    generation: int = 0
    threads: int = 0
    expected: int = 0
    arrived: list[int] = field(default_factory=list)  # numbers of warps

    def arrive(self, warp: int, threads: int, expected: int) -> bool:
        """Record the arrival of a warp's threads; return True if the barrier is complete.

        Raises:
            Fault: warps disagree on the number of threads, or more threads arrive.
        """
        if self.threads and expected != self.expected:
            raise Fault(
                "barrier-count",
                f"a warp expects {expected} threads at a barrier, and other warps expect "
                f"{self.expected}",
            )
        self.expected = expected
        self.threads += threads
        self.arrived.append(warp)
        if self.threads > expected:
            raise Fault(
                "barrier-count", f"{self.threads} threads arrive at a barrier for {expected}"
            )
        if self.threads < expected:
            return False
        self.generation += 1
        self.threads = 0
        self.arrived = []
        return True
