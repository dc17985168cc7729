"""What the static level looks for."""

from __future__ import annotations

from pallasc.checks.findings import Rule
from pallasc.checks.rules import OUT_OF_BOUNDS, UNFINISHED_COPY

TRANSACTION_BYTES = Rule(
    "transaction-bytes",
    "The bytes announced to a barrier are not the bytes of the copies that signal it.",
    "The barrier completes before the copies do, or never. Announce as many bytes as the copies "
    "move.",
    has_example=True,
)
ARRIVALS = Rule(
    "arrivals",
    "The arrivals at a barrier do not add up to the number that it expects.",
    "Its phases complete too early, or never. Give Barrier as num_arrivals the number of arrivals "
    "in each phase.",
    has_example=True,
)
READ_BEFORE_WAIT = Rule(
    "read-before-wait",
    "Memory that a copy fills is read before a wait for the copy.",
    "The read sees old data, or part of the new. Wait on the barrier of the copy first.",
    has_example=True,
)
REFILL_WITHOUT_WAIT = Rule(
    "refill-without-wait",
    "A loop refills memory without waiting for the threads that read it.",
    "The next copy overwrites memory that may still be read. Wait on the barrier at which the "
    "readers arrive.",
    has_example=True,
)
OPERAND_OVERWRITTEN = Rule(
    "operand-overwritten",
    "The operand of an MMA is overwritten, or released, while the MMA may still read it.",
    "MMAs are asynchronous. Wait for them (wgmma_wait) before their operands are refilled.",
    has_example=True,
)
ACCUMULATOR_BEFORE_WAIT = Rule(
    "accumulator-before-wait",
    "An accumulator is used before its MMA has completed.",
    "Commit the MMA, and wait for it, before its accumulator is read.",
    has_example=True,
)
MISSING_PROXY_FENCE = Rule(
    "missing-proxy-fence",
    "A copy or an MMA reads shared memory without a fence after the stores to it.",
    "Copies and tensor cores do not see the stores of threads without a fence. Call commit_smem() "
    "after the stores.",
    has_example=True,
)
BULK_STORE_SOURCE = Rule(
    "bulk-store-source",
    "Shared memory is overwritten while a copy to global memory may still read it.",
    "Wait for the copy (wait_smem_to_gmem) before its source is overwritten.",
    has_example=True,
)
MEMORY_LIMIT = Rule(
    "memory-limit",
    "A kernel asks for more memory or registers than the device has, or for an invalid amount.",
    "Use smaller tiles or fewer stages.",
    has_example=True,
)
TENSOR_MAP = Rule(
    "tensor-map",
    "A tensor map breaks a rule of the driver, or exceeds its buffer.",
    "The driver rejects it, or copies access memory past the end of the array.",
    has_example=True,
)
OUTPUT_NOT_WRITTEN = Rule(
    "output-not-written",
    "No step of the launch plan writes to an output.",
    "The caller gets uninitialized memory. Write the output, or remove it.",
    has_example=True,
)
BANK_CONFLICT = Rule(
    "bank-conflict",
    "Threads of a warp access different words of the same bank of shared memory.",
    "An N-way conflict takes N times as long. Use a swizzle, or pad the rows.",
    has_example=True,
)
SPILLS = Rule(
    "spills",
    "A thread runs out of registers, and keeps values in local memory.",
    "Spills cost memory bandwidth. Use smaller tiles, or give this warpgroup more registers.",
    has_example=True,
)

RULES: tuple[Rule, ...] = (
    TRANSACTION_BYTES,
    ARRIVALS,
    READ_BEFORE_WAIT,
    REFILL_WITHOUT_WAIT,
    OPERAND_OVERWRITTEN,
    ACCUMULATOR_BEFORE_WAIT,
    MISSING_PROXY_FENCE,
    BULK_STORE_SOURCE,
    UNFINISHED_COPY,
    OUT_OF_BOUNDS,
    MEMORY_LIMIT,
    TENSOR_MAP,
    OUTPUT_NOT_WRITTEN,
    BANK_CONFLICT,
    SPILLS,
)
