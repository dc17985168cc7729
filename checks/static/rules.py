"""What the static level looks for."""

from __future__ import annotations

from pallasc.checks.findings import Rule
from pallasc.checks.rules import OUT_OF_BOUNDS, UNFINISHED_COPY

TRANSACTION_BYTES = Rule(
    "transaction-bytes",
    "The bytes announced to a barrier are not those of the copies that signal it.",
    "The barrier opens before the copies have ended, or never. Announce what the copies move.",
)
ARRIVALS = Rule(
    "arrivals",
    "The arrivals at a barrier do not add up to the number that it takes.",
    "Its phases end too early, or never. Give Barrier the num_arrivals that come in each phase.",
)
READ_BEFORE_WAIT = Rule(
    "read-before-wait",
    "Memory that a copy fills is read before anything has waited for the copy.",
    "What is read is old, or half of it. Wait for the copy's barrier first.",
)
REFILL_WITHOUT_WAIT = Rule(
    "refill-without-wait",
    "A loop fills memory again without waiting for those who read it.",
    "The next copy overwrites what is still read. Wait for the barrier that the readers arrive at.",
)
OPERAND_OVERWRITTEN = Rule(
    "operand-overwritten",
    "Memory is given back while a product still reads it.",
    "Products are asynchronous: wait for them (wgmma_wait) before their operands may be filled "
    "again.",
)
ACCUMULATOR_BEFORE_WAIT = Rule(
    "accumulator-before-wait",
    "An accumulator is used before its product is complete.",
    "Commit the product, and wait for it, before its accumulator is read.",
)
MISSING_PROXY_FENCE = Rule(
    "missing-proxy-fence",
    "Shared memory is stored to and then read by a copy or a product without a fence between.",
    "Copies and tensor cores do not see earlier stores of threads without a fence: commit_smem().",
)
BULK_STORE_SOURCE = Rule(
    "bulk-store-source",
    "Shared memory is overwritten while a copy to global memory reads it.",
    "Wait for the copy (wait_smem_to_gmem) before its source is written again.",
)
MEMORY_LIMIT = Rule(
    "memory-limit",
    "A kernel asks for more memory or registers than the device has, or not as it gives them.",
    "Use smaller tiles or fewer stages.",
)
TENSOR_MAP = Rule(
    "tensor-map",
    "A tensor map breaks a rule of the driver, or exceeds its buffer.",
    "The driver refuses it, or copies reach what lies behind the array.",
)
OUTPUT_NOT_WRITTEN = Rule(
    "output-not-written",
    "No step of the launch plan writes to an output.",
    "The caller gets what was in memory before. Store to the output, or leave it away.",
)
BANK_CONFLICT = Rule(
    "bank-conflict",
    "Threads of a warp access shared memory in the same bank at the same time.",
    "The access takes as many turns as threads meet in a bank. Use a swizzle, or pad the rows.",
)
SPILLS = Rule(
    "spills",
    "Registers do not suffice, and values are kept in local memory.",
    "Spills cost bandwidth. Use smaller tiles, or leave more registers to this warpgroup.",
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
