"""Rules of more than one level: one name for one kind of mistake, whichever level finds it."""

from __future__ import annotations

from pallasc.checks.findings import Rule

WRONG_NUMBERS = Rule(
    "wrong-numbers",
    "A result differs from that of the reference by more than the tolerance.",
    "The kernel computes something else than its reference on the inputs of this check. The first "
    "element that differs is told; the same --seed gives the same inputs.",
)
UNINITIALIZED = Rule(
    "uninitialized-read",
    "A result holds memory that nothing wrote before it was read.",
    "Memory that a kernel has not written holds NaN here, or the largest whole number. Write it "
    "first, or wait for the copy that writes it.",
)
OUT_OF_BOUNDS = Rule(
    "out-of-bounds",
    "An access is out of bounds.",
    "On a GPU it reads or overwrites adjacent memory. Clamp the index, or mask the access.",
)
RACE = Rule(
    "race",
    "Two accesses to the same memory, one of them a write, are not ordered by any synchronisation.",
    "Their order is undefined. Add the wait, the barrier or the fence (commit_smem) that orders "
    "them.",
)
DEADLOCK = Rule(
    "deadlock",
    "All threads wait, and none is left that could end a wait.",
    "On a GPU the kernel hangs for ever. Count the arrivals of each barrier and the phases that "
    "each thread waits for.",
)
BARRIER_MISUSE = Rule(
    "barrier-misuse",
    "A barrier is not used as barriers must be: a phase is missed, or arrivals are left over.",
    "A thread that waits on a barrier must see every phase of it, and a barrier must end without "
    "pending arrivals.",
)
UNFINISHED_COPY = Rule(
    "unfinished-copy",
    "A kernel ends while a copy into or out of its shared memory, or a product, may be running.",
    "The shared memory is given to the next block while it is still in use. Before the kernel "
    "ends, wait for copies into it on their barrier (barrier_wait), for copies out of it "
    "with wait_smem_to_gmem, for products with wgmma_wait.",
)
