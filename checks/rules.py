"""Rules that several levels share, with one name for each kind of mistake."""

from __future__ import annotations

from pallasc.checks.findings import Rule

WRONG_NUMBERS = Rule(
    "wrong-numbers",
    "A result differs from the reference by more than the tolerance.",
    "The message has the first element that differs. The same --seed gives the same inputs.",
)
NOTHING_COMPARED = Rule(
    "nothing-compared",
    "All elements of a result are NaN, and so are those of the reference.",
    "They agree, and that tells nothing about the kernel. Give it other inputs: --input, --inputs, "
    "or another --seed.",
)
OTHER_KIND = Rule(
    "other-kind",
    "The reference returns numbers of another kind than the kernel, such as floating-point numbers "
    "for integers.",
    "They are compared by value. If that is intended, convert the result in the reference; a "
    "reference in another precision needs no conversion.",
)
UNINITIALIZED = Rule(
    "uninitialized-read",
    "A result depends on memory that was never written.",
    "In a check, such memory holds NaN, or other values in each run. Write it first, or wait for "
    "the copy that writes it.",
)
OUT_OF_BOUNDS = Rule(
    "out-of-bounds",
    "An access is out of bounds.",
    "On a GPU it reads or overwrites other memory, or fails. Clamp the index, or mask the access.",
)
RACE = Rule(
    "race",
    "Two accesses to the same memory, one of them a write, are not ordered by synchronization.",
    "Their order is undefined. Add what orders them: a wait for the copy or MMA (barrier_wait, "
    "wait_smem_to_gmem, wgmma_wait), a barrier, or a fence (commit_smem).",
)
DEADLOCK = Rule(
    "deadlock",
    "All threads that still run are waiting, and nothing can wake them.",
    "On a GPU the kernel hangs. Compare the arrivals of each barrier with the number it expects, "
    "and the phases that complete with the phases that each thread waits for.",
)
BARRIER_MISUSE = Rule(
    "barrier-misuse",
    "A barrier is misused: a thread misses a phase, or arrivals or bytes are left over.",
    "A thread that waits on a barrier must wait for each of its phases, and no arrivals or bytes "
    "may be pending when the kernel ends.",
)
UNFINISHED_COPY = Rule(
    "unfinished-copy",
    "A kernel ends while a copy into or out of its shared memory, or an MMA, may be in flight.",
    "The next block may get the shared memory while it is still in use. Before the kernel ends, "
    "wait for copies into it on their barrier (barrier_wait), for copies out of it with "
    "wait_smem_to_gmem, and for MMAs with wgmma_wait.",
)
NOT_EXECUTED = Rule(
    "not-executed",
    "No schedule executed these lines.",
    "The check holds for the rest of the kernel. Try other sizes or inputs: `check` in the spec, "
    "--input, --inputs, or another --seed.",
)
