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
def test_the_five_nearest_shapes_are_listed(runtime: Any, framework: Any, prepares: bool) -> None:
    kernel = _sizes(count=60)
    start = kernel.prepare if prepares else kernel
    with pytest.raises(ArgumentError) as caught:
        start(framework.tensor("f32[300, 64]"), framework.tensor("f32[4, 64]"))
    assert str(caught.value).splitlines() == [
        "sum has no variant for f32[300, 64], f32[4, 64].",
        "  The nearest of its 120 variants:",
        *(f"    sum[m={m}]@h100-sxm, where a is f32[{m}, 64]" for m in (60, 59, 58, 57, 56)),
    ]


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"m": 21}, "variant with m=21.\n  Values of m: {9..20} and 8 more."),
        ({"m": "7"}, "variant with m='7'.\n  Values of m: {1..12} and 8 more."),
        ({"blok": 8}, "parameter 'blok'.\n  Did you mean 'block'? Values of block: 8, 16."),
        ({"xyz": 8}, "parameter 'xyz'.\n  Its parameters: block, m."),
        ({"m": 2, "block": 16}, "variant with m=2, block=16.\n  With block=16: Values of m: 1, 3, "
         "5, 7, 9, 11, 13, 15, 17, 19.\n  With m=2: Values of block: 8."),
        ({"m": 21, "block": 32}, "variant with m=21, block=32.\n  Values of m: {9..20} and 8 more."
         "\n  Values of block: 8, 16."),
    ],
)  # fmt: skip
def test_wrong_parameters_name_the_right_values(params: dict[str, Any], told: str) -> None:
    candidates = [
        Candidate("sum", {"m": m, "block": 8 + 8 * (m % 2)}, made.add(target=target, code=b"none"))
        for m in range(1, 21)
        for target in ("h100-sxm", "b200")
    ]
    with pytest.raises(ArgumentError) as caught:
        Kernel("sum", candidates).variant(**params)
    for first in (1, 9):
        numbers = ", ".join(str(number) for number in range(first, first + 12))
        told = told.replace(f"{{{first}..{first + 11}}}", numbers)
    assert str(caught.value) == f"sum has no {told}"


def test_of_many_that_cannot_run_five_are_listed(runtime: Any, framework: Any) -> None:
    candidates = [Candidate("sum", {"t": t}, made.add(target="b200")) for t in range(100)]
    x = framework.tensor("f32[4, 64]")
    with pytest.raises(SelectionError) as caught:
        Kernel("sum", candidates)(x, x)
    lines = caught.value.message.splitlines()
    assert [line[:16] for line in lines[1:6]] == [f"  sum[t={t}]@b200:" for t in range(5)]
    assert lines[6] == "  … and 95 more"
