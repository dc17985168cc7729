"""What is listed where no variant fits."""

from __future__ import annotations

from typing import Any

import made
import pytest

from pallasc.errors import ArgumentError, SelectionError
from pallasc.runtime.kernel import Kernel
from pallasc.runtime.matching.candidates import Candidate


def _sizes(*, count: int) -> Kernel:
    """Return a kernel with a variant for each of many shapes, of two targets each."""
    candidates = [
        Candidate("sum", {"m": m}, made.add(target=target, inputs=_inputs(m)))
        for m in range(1, count + 1)
        for target in ("h100-sxm", "b200")
    ]
    return Kernel("sum", candidates)


def _inputs(rows: int) -> dict[str, str]:
    return {"a": f"f32[{rows}, 64]", "b": "f32[4, 64]"}


@pytest.mark.parametrize("prepares", [False, True])
def test_a_shape_that_no_variant_takes_is_an_argument_error_with_the_five_nearest(
    runtime: Any, framework: Any, prepares: bool
) -> None:
    kernel = _sizes(count=60)
    start = kernel.prepare if prepares else kernel
    with pytest.raises(ArgumentError) as caught:
        start(framework.tensor("f32[300, 64]"), framework.tensor("f32[4, 64]"))
    assert str(caught.value).splitlines() == [
        "sum has no variant for f32[300, 64], f32[4, 64].",
        "  The nearest of its 120 variants:",
        *(f"    sum[m={m}]@h100-sxm, where a is f32[{m}, 64]" for m in (60, 59, 58, 57, 56)),
    ]


def test_a_dtype_that_no_variant_takes_names_those_of_the_same_shape_first(
    runtime: Any, framework: Any
) -> None:
    with pytest.raises(ArgumentError) as caught:
        _sizes(count=9)(framework.tensor("f32[7, 64]"), framework.tensor("f16[4, 64]"))
    assert str(caught.value).splitlines()[2] == ("    sum[m=7]@h100-sxm, where b is f32[4, 64]")


def test_a_parameter_that_no_variant_has_lists_five(runtime: Any, framework: Any) -> None:
    with pytest.raises(ArgumentError) as caught:
        _sizes(count=60).variant(m=61)
    lines = str(caught.value).splitlines()
    assert lines[:2] == ["sum has no variant with m=61.", "  The nearest of its 120 variants:"]
    assert len(lines) == 7


def test_among_many_that_cannot_run_five_are_listed_and_counted(
    runtime: Any, framework: Any
) -> None:
    candidates = [Candidate("sum", {"t": t}, made.add(target="b200")) for t in range(100)]
    x = framework.tensor("f32[4, 64]")
    with pytest.raises(SelectionError) as caught:
        Kernel("sum", candidates)(x, x)
    lines = caught.value.message.splitlines()
    assert [line[:16] for line in lines[1:6]] == [f"  sum[t={t}]@b200:" for t in range(5)]
    assert lines[6] == "  … and 95 more"


def test_of_many_variants_that_fit_five_are_listed(runtime: Any, framework: Any) -> None:
    candidates = [Candidate("sum", {"t": t}, made.add()) for t in range(100)]
    x = framework.tensor("f32[4, 64]")
    with pytest.raises(SelectionError, match="100 variants of sum fit") as caught:
        Kernel("sum", candidates)(x, x)
    assert caught.value.message.splitlines()[6:] == ["  … and 95 more"]
