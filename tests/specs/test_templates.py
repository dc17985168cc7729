"""Text with parameters in braces."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallasc.errors import SpecError
from pallasc.specs.arrays import parse_template

TILES = {"m": 64, "inner": {"n": 8, "text": "a"}, "list": [1]}
PARAMS: dict[str, Any] = {"m": 96, "flag": True, "dtype": "f16", "none": None, "tiles": TILES}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{m}", 96),
        ("{none}", None),
        ("{ m }", 96),
        ("tile_{m}", "tile_96"),
        ("{flag}-{none}", "true-null"),
        ("{m // 5 * 2 + 1}", 39),
        ("{-m % 10}", 4),
        ("{(m + 1) * -2}", -194),
        ("{{m}}", "{m}"),
        ("", ""),
        ("{tiles.inner.n * m + tiles.m}", 832),
        ("m{tiles.m}_{tiles.inner.text}", "m64_a"),
        ("{tiles.list}", [1]),
        ("{tiles}", TILES),
    ],
)
def test_fill_keeps_the_type_of_a_lone_parameter(text: str, value: object) -> None:
    filled = parse_template(text).fill(PARAMS)
    assert filled == value
    assert type(filled) is type(value)


@pytest.mark.parametrize("text", ["{m", "a}", "{{m}", "{m{n}}"])
def test_a_brace_without_partner_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="unbalanced brace"):
        parse_template(text)


@pytest.mark.parametrize(
    "text",
    [
        "{}", "{m **  2}", "{m / 2}", "{m().real}", "{m.1}", "{m[0]}", "{__import__('os')}",
        "{1.5}", "{True}", "{m if m else n}", "{m, n}", "{m := 2}", "{~m}", "{+m}", "{m; n}",
        "{" + "(" * 150 + "m" + ")" * 150 + "}", "{" + "m+" * 100 + "m}", "{'\x00'}",
    ],
)  # fmt: skip
def test_anything_but_whole_number_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="is not an expression"):
        parse_template(text)


@given(st.integers(-50, 50), st.integers(-50, 50), st.integers(1, 50))
def test_arithmetic_is_that_of_python(a: int, b: int, c: int) -> None:
    filled = parse_template("{(a + b) // c - a * b % c}").fill({"a": a, "b": b, "c": c})
    assert filled == (a + b) // c - a * b % c


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{mm}", "unknown parameter 'mm' in {mm}.\n  Did you mean 'm'?"),
        ("{m // (m - 96)}", "{m // (m - 96)} divides by zero."),
        ("{m % 0}", "{m % 0} divides by zero."),
        ("{dtype * 2}", "{dtype * 2} needs whole numbers, and dtype is 'f16'."),
        ("{flag + 1}", "{flag + 1} needs whole numbers, and flag is true."),
        ("{m * 4611686018427387904}", "{m * 4611686018427387904} does not fit into 64 bits."),
        ("{tiles.mm}", "{tiles.mm}: tiles has no field 'mm'.\n  Did you mean 'm'?"),
        ("{tiles.inner.x}", "{tiles.inner.x}: tiles.inner has no field 'x'.\n  It has: n, text."),
        ("{m.real}", "{m.real}: m is 96, which has no fields."),
        ("a{tiles}", "{tiles} is a mapping, which cannot be part of text."),
        ("{tiles * 2}", "{tiles * 2} needs whole numbers, and tiles is a mapping."
         "\n  Arithmetic in braces is over whole numbers only."),
        ("{tiles.list + 1}", "{tiles.list + 1} needs whole numbers, and tiles.list is a list."),
    ],
)  # fmt: skip
def test_fill_says_what_cannot_be_evaluated(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_template(text).fill(PARAMS)
    assert str(caught.value).startswith(message)
