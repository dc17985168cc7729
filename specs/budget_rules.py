"""Limits of a budget: absolute ones, and rules relative to what a variant had in a baseline.

    limit   = whole number | rule
    rule    = sign amount [ "." digits ] [ " " ] "%" | sign amount | ( "<=" | ">=" ) " " "baseline"
    sign    = "+" | "-"

A fraction goes with "%" alone. The limit of a number that should be small takes "+" and "<=", that
of one that should be large (occupancy) takes "-" and ">=".
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pallasc.specs.resources import MORE_IS_BETTER

_RULE = re.compile(
    r"\s*(?:(?P<order>[<>]=)\s*baseline"
    r"|(?P<sign>[+-])\s*(?P<amount>\d{1,12})(?P<part>\.\d{1,6})?\s*(?P<percent>%)?)\s*",
    re.ASCII,
)


class Rule(NamedTuple):
    """How far a number may be from the baseline's.

    Attributes:
        text: the rule as it is written: `+8`, `+10 %`, `<= baseline`.
        amount: how much more, or fewer, is allowed, in millionths.
        percent: whether the amount is a part of the baseline's number, in percent.
        most: whether it is the most that is allowed, not the least.
    """

    text: str
    amount: int
    percent: bool
    most: bool

    def allows(self, value: int, before: int) -> bool:
        """Tell whether a number is within the rule, where the baseline has `before`."""
        change = self.amount * (before if self.percent else 100)  # in units of 1e-8
        difference = (value - before) * 10**8
        return difference <= change if self.most else difference >= -change


def parse_rule(text: str, field: str) -> Rule | None:
    """Return the rule that a text gives for a field of `Resources`, None if it gives none."""
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
    """Return an example of each rule that a field takes."""
    more = field in MORE_IS_BETTER
    return ("-8", "-10 %", ">= baseline") if more else ("+8", "+10 %", "<= baseline")
