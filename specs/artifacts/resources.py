"""Resources of an artifact as in a lock file, its occupancy, and checks against budgets.

Occupancy is the number of blocks of a launch that a multiprocessor holds at once. From the CUDA
Occupancy Calculator: registers are allocated to warps in units of 256, and the number of warps is a
multiple of 4, one for each partition of a multiprocessor. From compute capability 8.0 on, each
block uses 1,024 bytes of shared memory for the system.

A budget limits them by absolute numbers, or by rules relative to a baseline:

    limit   = whole number | rule
    rule    = sign amount [ "." digits ] [ " " ] "%" | sign amount | ( "<=" | ">=" ) " " "baseline"
    sign    = "+" | "-"

Only "%" allows a fraction. Numbers that should be small take "+" and "<="; occupancy, which should
be large, takes "-" and ">=".
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pallasc.errors import BudgetError, CorruptError
from pallasc.specs.gpus import ARCH, ARCHITECTURES, MOST_BLOCKS_PER_SM

if TYPE_CHECKING:
    from pallasc.specs.artifacts.artifact import Artifact, KernelResources, LaunchSize
    from pallasc.specs.artifacts.plan import Launch
    from pallasc.specs.spec import Budget


class Resources(NamedTuple):
    """Resource usage of a variant; None for unknown.

    With several kernels, each number is the one of the most demanding kernel.

    Attributes:
        registers: registers per thread.
        spill_bytes: bytes of spill stores plus spill loads per thread.
        stack_bytes: stack frame per thread.
        smem_bytes: static plus dynamic shared memory per block.
        occupancy: resident warps per multiprocessor, the minimum over all launches.
        cubin_bytes: total size of the variant's cubins.
    """

    registers: int | None = None
    spill_bytes: int | None = None
    stack_bytes: int | None = None
    smem_bytes: int | None = None
    occupancy: int | None = None
    cubin_bytes: int | None = None


WORDS = {
    "registers": "registers",
    "spill_bytes": "spill bytes",
    "stack_bytes": "stack bytes",
    "smem_bytes": "shared memory bytes",
    "occupancy": "resident warps",
    "cubin_bytes": "cubin bytes",
}
"""Words for each number, as in "has 40 registers"."""

MORE_IS_BETTER = frozenset({"occupancy"})
"""Numbers that should be high; the others should be low."""


_RULE = re.compile(
    r"\s*(?:(?P<order>[<>]=)\s*baseline"
    r"|(?P<sign>[+-])\s*(?P<amount>\d{1,12})(?P<part>\.\d{1,6})?\s*(?P<percent>%)?)\s*",
    re.ASCII,
)


class Rule(NamedTuple):
    """Allowed difference between a number and its baseline.

    Attributes:
        text: the rule as written: `+8`, `+10 %`, `<= baseline`.
        amount: allowed increase or decrease, in millionths.
        percent: True if the amount is a percentage of the baseline.
        most: True for an upper limit, False for a lower limit.
    """

    text: str
    amount: int
    percent: bool
    most: bool

    def allows(self, value: int, before: int) -> bool:
        """Return True if `value` satisfies the rule, given the baseline `before`."""
        change = self.amount * (before if self.percent else 100)  # in units of 1e-8
        difference = (value - before) * 10**8
        return difference <= change if self.most else difference >= -change


def parse_rule(text: str, field: str) -> Rule | None:
    """Parse a rule for a field of `Resources`; return None if the text is not one."""
    match = _RULE.fullmatch(text)
    if match is None or (match["part"] and not match["percent"]):
        return None
    most = match["order"] == "<=" or match["sign"] == "+"
    if most is (field in MORE_IS_BETTER):
        return None
    if match["order"]:
        return Rule(f"{match['order']} baseline", 0, percent=False, most=most)
    whole, part = match["amount"], match["part"] or ""
    percent = " %" if match["percent"] else ""
    amount = int(whole + part[1:].ljust(6, "0"))
    return Rule(f"{match['sign']}{whole}{part}{percent}", amount, bool(percent), most)


def rules_for(field: str) -> tuple[str, ...]:
    """Return an example of each rule that a field accepts."""
    more = field in MORE_IS_BETTER
    return ("-8", "-10 %", ">= baseline") if more else ("+8", "+10 %", "<= baseline")


REGISTERS_PER_SM = 65536
_WARP_THREADS = 32
_REGISTER_UNIT = 256
_WARP_UNIT = 4
_RESERVED_SMEM_BYTES = 1024


def blocks_by_limit(
    launch: Launch | LaunchSize, kernel: KernelResources, target: Mapping[str, Any]
) -> dict[str, int]:
    """Return how many blocks of a launch each resource of a multiprocessor allows.

    The resources are "registers", "shared memory", "threads", and "blocks"; the least counts.

    Args:
        launch: the launch.
        kernel: resources of its kernel.
        target: the model. An unknown architecture gets the highest limit on blocks.

    Raises:
        CorruptError: the target lacks a figure.
    """
    smem = launch.dynamic_smem_bytes + kernel.static_smem_bytes + _RESERVED_SMEM_BYTES
    match = ARCH.fullmatch(str(target.get("arch")))
    row = ARCHITECTURES.get((int(match[1]), int(match[2]))) if match else None
    warps = warps_of_block(launch)
    return {
        "registers": _warps_with_registers(kernel) // warps,
        "shared memory": model_figure(target, "smem_per_sm_bytes") // smem,
        "threads": model_figure(target, "threads_per_sm") // (_WARP_THREADS * warps),
        "blocks": row.blocks_per_sm if row else MOST_BLOCKS_PER_SM,
    }


def model_figure(target: Mapping[str, Any], name: str) -> int:
    """Return a figure of the model in an artifact's record, such as `sm_count`.

    Raises:
        CorruptError: the figure is missing or malformed.
    """
    figure = target.get(name)
    if type(figure) is not int or figure < 0:
        raise CorruptError(f"the artifact's target gives {figure!r} as its {name}")
    return figure


def blocks_per_sm(
    launch: Launch | LaunchSize, kernel: KernelResources, target: Mapping[str, Any]
) -> int:
    """Return the number of blocks of a launch that one multiprocessor holds.

    Raises:
        CorruptError: the target lacks a figure.
    """
    return max(1, min(blocks_by_limit(launch, kernel, target).values()))


def warps_of_block(launch: Launch | LaunchSize) -> int:
    """Return the number of warps in a block of a launch."""
    return -(-math.prod(launch.block) // _WARP_THREADS)


def _warps_with_registers(kernel: KernelResources) -> int:
    units = -(-max(kernel.registers, 1) * _WARP_THREADS // _REGISTER_UNIT)
    return REGISTERS_PER_SM // (units * _REGISTER_UNIT) // _WARP_UNIT * _WARP_UNIT


_Figures = Mapping[str, Any]


def resources_of(artifact: Artifact, target: _Figures | None = None) -> Resources:
    """Return the resources of an artifact.

    Args:
        artifact: the artifact.
        target: the figures of its model if known; None reads them from its record.

    Raises:
        CorruptError: its plan or its target is damaged.
    """
    return Resources(*(_worst(artifact, field, target)[1] for field in Resources._fields))


def check_budget(
    artifact: Artifact,
    budget: Budget,
    *,
    before: Resources = Resources(),  # noqa: B008
    baseline: str = "the baseline",
) -> BudgetError | None:
    """Return the error for all limits that the artifact exceeds, None if there are none.

    Args:
        artifact: the compiled artifact.
        budget: its limits.
        before: its baseline resources; a rule without a baseline number holds.
        baseline: name of the baseline for messages.

    Raises:
        CorruptError: the artifact's plan or target is damaged.
    """
    clauses: list[tuple[str, str]] = []
    for field in Resources._fields:
        limit, previous = budget.get(field), getattr(before, field)
        if limit is None or (isinstance(limit, str) and previous is None):
            continue
        kernel, number = _worst(artifact, field)
        if number is None:
            text = f"{kernel}: {WORDS[field]} are not known; the budget is {limit}"
            clauses.append((field, text))
        elif not _allows(limit, number, previous, field):
            least = "at least " if isinstance(limit, int) and field in MORE_IS_BETTER else ""
            where = f" ({previous} in {baseline})" if isinstance(limit, str) else ""
            text = f"{kernel or 'the variant'} has {number} {WORDS[field]}"
            clauses.append((field, f"{text}; the budget is {least}{limit}{where}"))
    if not clauses:
        return None
    return BudgetError(
        "\n".join(text for _, text in clauses),
        hint="Change the kernel, such as its tile sizes, or the limit.",
        kind=clauses[0][0],
    )


def _worst(
    artifact: Artifact, field: str, target: _Figures | None = None
) -> tuple[str, int | None]:
    """Return the most demanding kernel for a resource and its number, None if unknown."""
    if field == "cubin_bytes":
        return "", artifact.cubin_bytes
    if field == "occupancy":
        figures = artifact.target if target is None else target
        warps = [
            (
                each.kernel,
                blocks_per_sm(each, artifact.kernel_of(each), figures) * warps_of_block(each),
            )
            for each in artifact.launch_sizes
        ]
        return min(warps, key=lambda pair: pair[1], default=("", None))
    numbers = [(kernel.name, getattr(kernel, field)) for kernel in artifact.kernels]
    return max(numbers, key=lambda pair: math.inf if pair[1] is None else pair[1], default=("", 0))


def _allows(limit: int | str, number: int, before: int | None, field: str) -> bool:
    if isinstance(limit, int):
        return number >= limit if field in MORE_IS_BETTER else number <= limit
    rule = parse_rule(limit, field)
    return rule is None or before is None or rule.allows(number, before)
