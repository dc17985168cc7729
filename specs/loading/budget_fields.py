"""The fields of a budget: each a limit, or a rule relative to a baseline."""

from __future__ import annotations

from typing import NamedTuple

from pallasc.specs.budget_rules import parse_rule, rules_for
from pallasc.specs.fields import Field, Number, Place, Schema
from pallasc.specs.resources import MORE_IS_BETTER
from pallasc.specs.spelling import show
from pallasc.specs.templates import is_template

_NUMBER = Number(whole=True, template=True)


class LimitKind(NamedTuple):
    """A whole number, a template that gives one, or a rule relative to a baseline.

    Attributes:
        field: the number that is limited, by its name in `Resources`.
    """

    field: str

    def read(self, value: object, at: Place) -> int | str:
        """Return the number, the template unfilled, or the rule as it is to be written."""
        if isinstance(value, str) and is_template(value):
            return str(_NUMBER.read(value, at))
        return self.checked(value, at)

    def checked(self, value: object, at: Place) -> int | str:
        """Return the number or the rule."""
        rule = parse_rule(value, self.field) if isinstance(value, str) else None
        if rule is not None:
            return rule.text
        if type(value) is int and value >= 0:
            return value
        examples = ", ".join(f'"{each}"' for each in rules_for(self.field))
        raise at.error(
            f"expected a whole number or a rule relative to a baseline, got {show(value)}.",
            f"Write a number, or a rule in quotes, like {examples}.",
        )

    def schema(self) -> Schema:
        """Return the schema."""
        sign, order = ("-", ">") if self.field in MORE_IS_BETTER else (r"\+", "<")
        amount = r"([0-9]+|[0-9]+(\.[0-9]+)?\s*%)"
        rule = rf"^\s*({order}=\s*baseline|{sign}\s*{amount})\s*$"
        texts = [{"type": "string", "pattern": pattern} for pattern in (r"\{.*\}", rule)]
        return {"anyOf": [{"type": "integer", "minimum": 0}, *texts]}


BUDGET_FIELDS = tuple(
    Field(name, LimitKind(name), doc)
    for name, doc in (
        ("registers", "Registers of a thread."),
        ("spill_bytes", "Bytes of spill stores and spill loads of a thread together."),
        ("stack_bytes", "Stack frame of a thread."),
        ("smem_bytes", "Static and dynamic shared memory of a block."),
        ("occupancy", "The fewest warps that a multiprocessor holds at once."),
        ("cubin_bytes", "Size of all cubins of a variant."),
    )
)
LIMITS = {field.name: LimitKind(field.name) for field in BUDGET_FIELDS}
