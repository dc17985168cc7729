"""How outputs of points are judged: by reference values, and by the first valid point."""

from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pallasc.errors import ToolError
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.bundle.tuned import Reference, Sampled
from pallasc.tuning.measure import Referee

RIGHT = np.arange(1, 13).reshape(3, 4)


class Judged:
    """Judges points one after the other, each by what it gives."""

    def __init__(self, reference: Reference | None, dtype: str = "f32", layout: Any = None) -> None:
        bundle: Any = SimpleNamespace(reference=lambda entry: reference)
        self.referee = Referee(bundle)
        self.signature: Any = SimpleNamespace(outputs=[Binding("out", dtype, (3, 4), 0, layout)])
        self.number = 0

    def __call__(self, values: Any, kind: Any = np.float32) -> str:
        self.number += 1
        entry: Any = SimpleNamespace(id=f"p{self.number}")
        data = np.asarray(values).astype(kind).tobytes()
        return self.referee.disagreement(entry, self.signature, [data])


def sampled(*values: float, rtol: float = 1e-3, atol: float = 0.0) -> Reference:
    return Reference(0, rtol, atol, (Sampled((0, 6, 11), values),))


def test_reference_values_decide() -> None:
    judge = Judged(sampled(1, 7, 12))
    wrong = RIGHT * np.where(RIGHT == 7, 1.01, 1)
    assert judge(wrong) == (
        "wrong result: out[1, 2] is 7.07, but the reference has 7.0; 1 of 3 elements differ by "
        "more than rtol 0.001 and atol 0"
    )
    assert judge(RIGHT) == judge(RIGHT * 1.0005) == ""


def test_elements_without_a_reference_are_those_of_the_first_valid_point() -> None:
    judge = Judged(sampled(1, 7, 12))
    assert judge(RIGHT * 2).startswith("wrong result: out[0, 0] is 2.0, but the reference has 1.0")
    assert judge(RIGHT * 1.0009) == ""
    assert judge(RIGHT * 0.9991) == ""  # both within the tolerance of the reference
    wrong = RIGHT + np.where(RIGHT == 2, 1, 0)
    assert judge(wrong).startswith("wrong result: out[0, 1] is 3.0, but p2 gives 2.001")


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
    assert ", but p1 gives " in judge(RIGHT * 1.5, kind)


def test_small_elements_may_differ_as_much_as_large_ones_and_whole_numbers_are_equal() -> None:
    judge = Judged(None)
    mixed = np.where(RIGHT == 3, 0.0, RIGHT)
    assert judge(mixed) == judge(np.where(RIGHT == 3, 1e-4, RIGHT)) == ""
    assert judge(np.where(RIGHT == 3, 0.1, RIGHT))
    judge = Judged(None, "i32")
    assert judge(RIGHT, np.int32) == ""
    assert "out[0, 0] is 2, but p1 gives 1" in judge(RIGHT + 1, np.int32)


def test_a_missing_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    with pytest.raises(ToolError, match=r"results cannot be compared: .*ml_dtypes"):
        Judged(sampled(1, 7, 12))(RIGHT)
