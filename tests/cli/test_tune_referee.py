"""How outputs of points are judged: by reference values, and by the first point of the key."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pallasc.cli.tune.referee import OutputReferee
from pallasc.errors import ToolError
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.bundle.reference import Reference, Sampled

RIGHT = np.arange(1, 13).reshape(3, 4)


class Judged:
    """Judges points one after the other, each by what it gives."""

    def __init__(self, reference: Reference | None, dtype: str = "f32", layout: Any = None) -> None:
        bundle: Any = SimpleNamespace(reference=lambda entry: reference)
        self.referee = OutputReferee(bundle, 0, votes=reference is None)
        self.signature: Any = SimpleNamespace(outputs=[Binding("out", dtype, (3, 4), 0, layout)])
        self.number = 0

    def __call__(self, values: Any, kind: Any = np.float32) -> str:
        self.number += 1
        entry: Any = SimpleNamespace(id=f"p{self.number}")
        data = np.asarray(values).astype(kind).tobytes()
        why = self.referee.disagreement(entry, self.signature, [data])
        return why or self.referee.outvoted().get(entry.id, "")


def sampled(*values: float, rtol: float = 1e-3, atol: float = 0.0) -> Reference:
    return Reference(0, rtol, atol, (Sampled((0, 6, 11), values),))


def test_reference_values_decide() -> None:
    judge = Judged(sampled(1, 7, 12))
    wrong = RIGHT * np.where(RIGHT == 7, 1.01, 1)
    assert judge(wrong) == (
        "wrong result: out[1, 2] is 7.07, and the reference has 7.0; 1 of 3 elements differ by "
        "more than rtol 0.001 and atol 0"
    )
    assert judge(RIGHT) == judge(RIGHT * 1.0005) == ""


def test_elements_without_a_reference_are_those_of_the_first_point() -> None:
    judge = Judged(sampled(1, 7, 12))
    assert judge(RIGHT * 1.0005) == ""
    assert judge(RIGHT * 0.9995) == ""  # within twice the tolerance of each other
    wrong = RIGHT + np.where(RIGHT == 2, 1, 0)
    assert judge(wrong).startswith("wrong result: out[0, 1] is 3.0, and p1 gives 2.001; 1 of 12 ")


def test_reference_values_count_in_row_major_order() -> None:
    judge = Judged(sampled(1, 7, 12), layout=(0, 1))
    assert judge(RIGHT.T.copy()) == ""


@pytest.mark.parametrize(
    ("dtype", "kind", "close"),
    [("f32", np.float32, 1e-4), ("bf16", ml_dtypes.bfloat16, 2e-2), ("f16", np.float16, 1e-2)],
)
def test_without_a_reference_half_of_the_digits_must_agree(
    dtype: str, kind: Any, close: float
) -> None:
    judge = Judged(None, dtype)
    assert judge(RIGHT, kind) == judge(RIGHT * (1 + close), kind) == ""
    assert judge(RIGHT * 1.5, kind) == (
        "wrong result: differs from 2 of 3 points, and the job has no reference"
    )


def test_a_wrong_first_point_is_outvoted_and_a_tie_has_no_right_one() -> None:
    judge = Judged(None)
    assert judge(RIGHT * 2) == ""
    tie = "the 2 points give 2 different results, none of them more often than all others, and "
    assert judge(RIGHT) == f"{tie}the job has no reference"
    assert [*judge.referee.outvoted()] == ["p1", "p2"]
    assert judge(RIGHT) == ""
    assert judge.referee.outvoted() == {
        "p1": "wrong result: differs from 2 of 3 points, and the job has no reference"
    }


def test_small_elements_may_differ_as_much_as_large_ones() -> None:
    judge = Judged(None)
    mixed = np.where(RIGHT == 3, 0.0, RIGHT)
    assert judge(mixed) == judge(np.where(RIGHT == 3, 1e-4, RIGHT)) == ""
    assert judge(np.where(RIGHT == 3, 0.1, RIGHT))


def test_whole_numbers_are_equal() -> None:
    judge = Judged(None, "i32")
    assert judge(RIGHT, np.int32) == ""
    assert "2 different results" in judge(RIGHT + 1, np.int32)


def test_a_missing_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    with pytest.raises(ToolError, match=r"results cannot be compared: .*ml_dtypes"):
        Judged(sampled(1, 7, 12))(RIGHT)
