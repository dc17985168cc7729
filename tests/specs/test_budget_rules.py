"""Rules of budgets: what is read as one, and what it allows."""

import pytest

from pallasc.specs.artifacts.artifact import Resources, parse_rule, rules_for


@pytest.mark.parametrize(
    ("field", "text", "shown", "before", "allowed"),
    [
        ("registers", "  + 8 ", "+8", 160, 168),
        ("registers", "<=baseline", "<= baseline", 160, 160),
        ("cubin_bytes", "+10%", "+10 %", 1001, 1101),
        ("cubin_bytes", "+2.5 %", "+2.5 %", 1000, 1025),
        ("spill_bytes", "+10 %", "+10 %", 0, 0),
        ("occupancy", ">= baseline", ">= baseline", 16, 16),
        ("occupancy", "-8", "-8", 16, 8),
        ("occupancy", "-10 %", "-10 %", 24, 22),
    ],
)
def test_a_rule_allows_exactly_so_much(
    field: str, text: str, shown: str, before: int, allowed: int
) -> None:
    rule = parse_rule(text, field)
    assert rule.text == shown
    assert parse_rule(rule.text, field) == rule
    assert rule.limit(before) == allowed


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("registers", "-8"), ("registers", ">= baseline"), ("occupancy", "+8"),
        ("occupancy", "<= baseline"), ("registers", "8"), ("registers", "+8.5"),
        ("registers", "+ %"), ("registers", "+٨"), ("registers", "== baseline"),
    ],
)  # fmt: skip
def test_other_texts_are_no_rules(field: str, text: str) -> None:
    with pytest.raises(ValueError, match=rf"is not a rule for {field}"):
        parse_rule(text, field)


@pytest.mark.parametrize("field", Resources._fields)
def test_the_examples_of_a_field_are_rules_of_it(field: str) -> None:
    assert [parse_rule(text, field).text for text in rules_for(field)] == [*rules_for(field)]
