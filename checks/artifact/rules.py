"""Rules of the artifact level."""

from __future__ import annotations

from pallasc.checks.findings import Rule
from pallasc.checks.rules import (
    BARRIER_MISUSE,
    DEADLOCK,
    NOT_EXECUTED,
    NOTHING_COMPARED,
    OTHER_KIND,
    OUT_OF_BOUNDS,
    RACE,
    UNFINISHED_COPY,
    UNINITIALIZED,
    WRONG_NUMBERS,
)

ACCUMULATOR_BEFORE_WAIT = Rule(
    "accumulator-before-wait",
    "An accumulator is used before its MMA has completed.",
    "Commit the MMA, and wait for it, before its accumulator is read.",
)
OPERAND_OVERWRITTEN = Rule(
    "operand-overwritten",
    "Registers that hold the left operand of an MMA are overwritten while the MMA may read them.",
    "MMAs are asynchronous. Wait for them (wgmma_wait) before the value changes.",
)
MISSING_PROXY_FENCE = Rule(
    "missing-proxy-fence",
    "A copy or an MMA reads shared memory without a fence after the stores to it.",
    "Copies and tensor cores do not see the stores of threads without a fence. Call commit_smem() "
    "after the stores.",
)
MEMORY_LIMIT = Rule(
    "memory-limit",
    "A kernel asks for more memory or registers than the device has, or for an invalid amount.",
    "Use smaller tiles or fewer stages.",
)
COMPILED_WRONGLY = Rule(
    "compiled-wrongly",
    "The compiled kernel computes something else than its source says.",
    "JAX's interpreter gives the numbers of the reference, and the PTX does not: JAX or XLA has "
    "compiled it wrongly, or a synchronization is missing that the interpreter does not see.",
)
DEPENDS_ON_ORDER = Rule(
    "depends-on-order",
    "A result depends on the order in which blocks or warps run.",
    "A GPU runs blocks in any order, so the result may change from run to run. Let each block "
    "write a part of its own, or combine parts in a fixed order. If any order is right, as of the "
    "elements of a list, --schedules 1 does not compare them.",
)
MISALIGNED = Rule(
    "misaligned",
    "An address is not a multiple of the alignment that the instruction requires.",
    "On a GPU the kernel ends with an error. Keep offsets and row lengths multiples of 16 bytes "
    "where arrays are copied.",
)
FAILED_ASSERTION = Rule(
    "failed-assertion",
    "An assertion of the kernel fails, or it traps.",
    "On a GPU the kernel ends with an error. The inputs of this check make its condition false.",
)
INVALID_INSTRUCTION = Rule(
    "invalid-instruction",
    "An instruction is executed with invalid operands, or by the wrong threads.",
    "Its behavior on a GPU is undefined.",
)
REPEATED_PREFETCH = Rule(
    "repeated-prefetch",
    "Several blocks of a cluster prefetch the same bytes.",
    "The numbers are right, and the traffic is a multiple of what it need be. Let each block "
    "prefetch a part: plgpu.async_prefetch with collective_axes, which JAX loses with "
    "LoweringSemantics.Warpgroup, the default of 0.12.",
)

RULES: tuple[Rule, ...] = (
    WRONG_NUMBERS,
    NOTHING_COMPARED,
    OTHER_KIND,
    COMPILED_WRONGLY,
    DEPENDS_ON_ORDER,
    UNINITIALIZED,
    OUT_OF_BOUNDS,
    RACE,
    MISSING_PROXY_FENCE,
    ACCUMULATOR_BEFORE_WAIT,
    OPERAND_OVERWRITTEN,
    UNFINISHED_COPY,
    DEADLOCK,
    BARRIER_MISUSE,
    MEMORY_LIMIT,
    MISALIGNED,
    FAILED_ASSERTION,
    INVALID_INSTRUCTION,
    REPEATED_PREFETCH,
    NOT_EXECUTED,
)
