"""How results are held against those of a reference."""

import ml_dtypes
import numpy as np
import pytest

from pallasc.checks.arrays import difference, remarks
from pallasc.checks.findings import COMPILED_WRONGLY, UNINITIALIZED, WRONG_NUMBERS, from_findings
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.spec import Tolerance

X = np.random.default_rng(5).standard_normal((4, 4096)).astype(np.float32)
IN_ORDER = np.cumsum(X, axis=1, dtype=np.float32)[:, -1]
IN_PAIRS = X.sum(axis=1)


def output(dtype: str) -> Binding:
    return Binding("out", dtype, (4,), 0)


def test_sums_in_another_order_differ_by_more_than_four_units() -> None:
    assert (np.abs(IN_ORDER - IN_PAIRS) > 4 * 2**-23).any()


def test_without_a_tolerance_what_another_order_explains_is_a_note() -> None:
    (found, _) = difference(output("f32"), IN_ORDER, IN_PAIRS, None) or (None, ())
    assert found is not None
    assert (found.rule, found.severity) == (WRONG_NUMBERS.name, "note")
    assert "Name a tolerance in the spec" in found.hint
    assert not from_findings("artifact", (found,)).fails


def test_a_tolerance_is_taken_at_its_word() -> None:
    (found, _) = difference(output("f32"), IN_ORDER, IN_PAIRS, Tolerance(rtol=1e-7)) or (None, ())
    assert found is not None
    assert (found.severity, found.hint) == ("error", "")
    assert difference(output("f32"), IN_ORDER, IN_PAIRS, Tolerance(atol=1e-3)) is None


@pytest.mark.parametrize(
    ("dtype", "kind", "off"),
    [("f32", np.float32, 1e-3), ("bf16", ml_dtypes.bfloat16, 0.25), ("i32", np.int32, 1)],
)
def test_what_no_order_explains_is_an_error_without_a_tolerance(
    dtype: str, kind: type, off: float
) -> None:
    right = np.ones(4, kind)
    wrong = (right + np.asarray([0, 0, off, 0])).astype(kind)
    (found, _) = difference(output(dtype), wrong, right, None) or (None, ())
    assert found is not None
    assert (found.rule, found.severity) == (WRONG_NUMBERS.name, "error")
    assert "out[2] is" in found.message


def test_memory_that_nothing_wrote_is_never_a_note() -> None:
    got = np.asarray([1, np.nan, 1, 1], np.float32)
    (found, _) = difference(output("f32"), got, np.ones(4, np.float32), None) or (None, ())
    assert found is not None
    assert (found.rule, found.severity) == (UNINITIALIZED.name, "error")
    assert found.rule != COMPILED_WRONGLY.name


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_nan_everywhere_in_both_compares_nothing(dtype: type) -> None:
    nan = np.full(4, np.nan, dtype)
    partly = np.array([1, np.nan, 2, np.nan], dtype)
    (found,) = remarks([output("f32")], [[nan]], [[nan]], None)
    assert (found.rule, found.severity) == ("nothing-compared", "note")
    assert found.message.startswith("all 4 elements of out are NaN, and so are those of the refer")
    assert not from_findings("artifact", (found,)).fails
    for got, expected in ((partly, partly), (nan, partly), (partly, nan)):
        assert not remarks([output("f32")], [[got]], [[expected]], None)
    empty, whole = np.zeros(0, dtype), np.zeros(4, np.int32)
    assert not remarks([output("f32")], [[empty]], [[empty]], None)
    assert not remarks([output("i32")], [[whole]], [[whole]], None)
    (found,) = remarks([output("f32")], [[partly], [nan]], [[partly], [nan]], None)
    assert found.message.endswith("this compares nothing on device 1")


@pytest.mark.parametrize(
    ("dtype", "reference"),
    [
        ("bf16", np.float32),
        ("f8e4m3fn", np.float64),
        ("f32", ml_dtypes.bfloat16),
        ("i8", np.int64),
        ("u8", np.int32),
        ("i4", ml_dtypes.int4),
        ("bool", np.bool_),
    ],
)
def test_a_reference_in_another_precision_is_as_it_should_be(dtype: str, reference: type) -> None:
    assert not remarks([output(dtype)], [[np.ones(4)]], [[np.zeros(4, reference)]], None)


@pytest.mark.parametrize(
    ("dtype", "reference", "named"),
    [("i32", np.float32, "f32"), ("bf16", np.int32, "i32"), ("i32", np.bool_, "bool")],
)
def test_a_reference_of_another_kind_is_noted(dtype: str, reference: type, named: str) -> None:
    results, expected = [[np.ones(4)]] * 2, [[np.zeros(4, reference)]] * 2
    (found,) = remarks([output(dtype)], results, expected, None)
    assert (found.rule, found.severity) == ("other-kind", "note")
    told = f"the reference returns {named} for out, which is {dtype}: "
    assert found.message.startswith(told)
