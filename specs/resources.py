"""Resource usage of a variant in six numbers, recorded in locks and compared with budgets.

A budget limits them by absolute numbers, or by rules relative to a baseline:

    limit   = whole number | rule
    rule    = sign amount [ "." digits ] [ " " ] "%" | sign amount | ( "<=" | ">=" ) " " "baseline"
    sign    = "+" | "-"

Only "%" allows a fraction. Numbers that should be small take "+" and "<="; occupancy, which should
be large, takes "-" and ">=".
"""

from __future__ import annotations

import re
from typing import NamedTuple


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
