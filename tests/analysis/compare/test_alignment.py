"""Which variants are compared with each other."""

from __future__ import annotations

from pallasc.analysis.compare import align
from pallasc.analysis.sides import Side, Subject, side_of
from pallasc.specs.resources import Resources


def side(*params: dict[str, str], name: str = "k", target: str = "b200") -> Side:
    subjects = []
    for each in params:
        text = ",".join(f"{key}={value}" for key, value in each.items())
        key = f"{name}[{text}]@{target}"
        subjects.append(Subject(key, name, each, target, Resources(), None, None, key))
    return side_of("side", subjects)


def labels(first: Side, second: Side, *, by_parameters: bool = False) -> list[tuple[str, str]]:
    pairs = align(first, second, by_parameters=by_parameters)
    return [(p.first.id if p.first else "", p.second.id if p.second else "") for p in pairs]


def test_variants_pair_by_id_and_the_rest_is_on_one_side() -> None:
    first, second = side({"n": "1"}, {"n": "2"}), side({"n": "2"}, {"n": "3"})
    assert labels(first, second) == [
        ("k[n=1]@b200", ""),
        ("k[n=2]@b200", "k[n=2]@b200"),
        ("", "k[n=3]@b200"),
    ]


def test_single_variants_pair_whatever_they_are() -> None:
    (pair,) = align(side({"n": "1"}), side({"m": "2"}, name="other", target="h100-sxm"))
    assert pair.label == "k[n=1]@b200 → other[m=2]@h100-sxm"


def test_two_selections_pair_by_the_parameters_that_they_share() -> None:
    first = side({"n": "1", "tile": "64"}, {"n": "2", "tile": "64"})
    second = side({"n": "2", "tile": "128"}, {"n": "1", "tile": "128"}, {"n": "4", "tile": "128"})
    assert labels(first, second, by_parameters=True) == [
        ("k[n=1,tile=64]@b200", "k[n=1,tile=128]@b200"),
        ("k[n=2,tile=64]@b200", "k[n=2,tile=128]@b200"),
        ("", "k[n=4,tile=128]@b200"),
    ]


def test_a_selection_that_does_not_decide_pairs_nothing_by_chance() -> None:
    first = side({"n": "1", "tile": "64"}, {"n": "1", "tile": "32"})
    second = side({"n": "1", "tile": "128"}, {"n": "1", "tile": "256"})
    assert all("" in pair for pair in labels(first, second, by_parameters=True))


def test_the_target_is_compared_where_the_selections_differ_in_it() -> None:
    first = side({"n": "1"}, {"n": "2"}, target="b200")
    second = side({"n": "1"}, {"n": "2"}, target="h100-sxm")
    assert labels(first, second, by_parameters=True)[0] == ("k[n=1]@b200", "k[n=1]@h100-sxm")
