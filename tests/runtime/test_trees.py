"""What the caller passes: pytrees, order, aliases, damaged plans."""

import json
from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import made
import pytest

from pallasc.errors import ArgumentError, CorruptError
from pallasc.specs.artifacts.plan import LaunchPlan, plan_from_json
from pallasc.specs.artifacts.signature import check_addresses, flatten, unflatten

_PAIR = {"namedtuple": "Pair", "fields": {"left": 1, "right": 0}}
_NODE = {"node": "Mine", "children": [0, {"tuple": [1]}]}
_Pair = namedtuple("_Pair", "left right")
_Q = {"node": "QArray", "children": [0, 1], "keys": ["qvalue", "scale"]}
_STATIC = {**_Q, "static": "(0)"}


class QArray:
    """A type that nothing knows, with the name of one that JAX knew."""

    def __init__(self, qvalue: Any, scale: Any) -> None:
        self.qvalue, self.scale = qvalue, scale


class Other(QArray):
    """The same under another name."""


@pytest.mark.parametrize(
    ("tree", "value", "leaves"),
    [
        (0, "x", {0: "x"}),
        ([1, 0], ("x", "y"), {1: "x", 0: "y"}),
        ({"tuple": [1, 0]}, ["x", "y"], {1: "x", 0: "y"}),
        ({"dict": {"a": 0, "b": [1]}}, {"b": ["y"], "a": "x"}, {0: "x", 1: "y"}),
        ({"dict": {"dict": 0}}, {"dict": "x"}, {0: "x"}),
        ({"dict": {"0": 0}}, {0: "x"}, {0: "x"}),
        (_PAIR, _Pair("x", "y"), {1: "x", 0: "y"}),
        (_PAIR, SimpleNamespace(left="x", right="y"), {1: "x", 0: "y"}),
        (_PAIR, ("x", "y"), {0: "x", 1: "y"}),
        (_NODE, ("x", ["y"]), {0: "x", 1: "y"}),
        (_Q, ("x", "y"), {0: "x", 1: "y"}),
        (_Q, {"scale": "y", "qvalue": "x"}, {0: "x", 1: "y"}),
        (_Q, QArray("x", "y"), {0: "x", 1: "y"}),
        (_STATIC, ("x", "y"), {0: "x", 1: "y"}),
        ({"tuple": []}, (), {}),
        (None, None, {}),
    ],
)
def test_values_are_flattened_along_the_tree(tree: Any, value: Any, leaves: Any) -> None:
    assert dict(flatten(tree, value, "x")) == leaves


@pytest.mark.parametrize(
    ("tree", "value", "message"),
    [
        ([0, 1], ["x"], "x must be a list or tuple of 2."),
        ({"tuple": [0]}, "x", "x must be a list or tuple of 1."),
        ({"dict": {"a": 0}}, ["x"], "x must be a mapping with the keys a."),
        ({"dict": {"a": 0}}, {"b": 1}, "x must be a mapping with the keys a."),
        ({"dict": {"a": {"dict": {"b": [0]}}}}, {"a": {"b": []}}, "x.a.b must be a list or tuple"),
        (_PAIR, ("x",), "x must be a list or tuple of 2."),
        (None, 1, "x must be None, as it was when the kernel was compiled"),
        (_Q, Other("x", "y"), "x must be a QArray, not an Other."),
        (_Q, None, "x must be a QArray, not None."),
        (_Q, ("x",), "x must be a list or tuple of 2."),
        (_Q, {"qvalue": "x"}, "x must be a QArray, not a dict."),
        (_STATIC, QArray("x", "y"), "x is a QArray that is not registered with JAX"),
        (_NODE, QArray("x", "y"), "x must be a Mine, not a QArray."),
    ],
)
def test_another_structure_is_refused(tree: Any, value: Any, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        list(flatten(tree, value, "x"))
    assert caught.value.message.startswith(message)


def test_values_come_back_in_the_structure_that_they_had() -> None:
    tree = {"dict": {"a": [1, {"dict": {"b": 0}}], "c": None, "d": {"tuple": [0]}}}
    assert unflatten(tree, "xy") == {"a": ["y", {"b": "x"}], "c": None, "d": ("x",)}
    pair = unflatten(_PAIR, "xy")
    assert (pair.left, pair.right, type(pair).__name__) == ("y", "x", "Pair")
    assert unflatten(_NODE, "xy") == ("x", ("y",))


def test_fields_of_a_named_tuple_come_in_their_order() -> None:
    # JSON sorts them by name.
    tree = {"namedtuple": "Pair", "fields": {"left": 1, "right": 0}}
    assert unflatten(tree, "xy")._fields == ("right", "left")
    first, second = unflatten(tree, "xy")
    assert (first, second) == ("x", "y")
    between = {
        "namedtuple": "Three", "order": ["z", "none", "a"], "fields": {"a": 1, "none": None, "z": 0}
    }  # fmt: skip
    assert tuple(unflatten(between, "xy")) == ("x", None, "y")
    assert dict(flatten(between, ("x", None, "y"), "p")) == {0: "x", 1: "y"}


@pytest.mark.parametrize(
    "tree", ["x", 1.5, {}, {"other": [0]}, {"tuple": 0}, {"namedtuple": "Pair"}]
)
def test_what_is_no_tree_is_refused(tree: Any) -> None:
    with pytest.raises(CorruptError, match="is not a pytree of a plan"):
        unflatten(tree, "xy")


def test_a_named_tuple_of_a_stranger_cannot_have_any_name() -> None:
    with pytest.raises(CorruptError, match="a named tuple of a plan is damaged"):
        unflatten({"namedtuple": "x; import os", "fields": {"a": 0}}, "xy")
    with pytest.raises(CorruptError, match="a named tuple of a plan is damaged"):
        unflatten({"namedtuple": "Pair", "fields": {"_a": 0}}, "xy")


# ---- signatures


def _signature(**changes: Any) -> LaunchPlan:
    return made.artifact(code=b"none", **changes).plan


def test_outputs_know_where_they_come_from() -> None:
    signature = _signature(outputs=["f32[4, 64]", "b", "i8[4]"])
    assert signature.sources == (("result", 0), ("input", 1), ("result", 1))
    assert [array.path for array in signature.results] == ["out.0", "out.2"]
    assert [array.path for array in signature.passed] == ["a", "b", "out.0", "out.2"]
    assert [array.size_bytes for array in signature.passed] == [1024, 1024, 1024, 4]


@pytest.mark.parametrize(
    ("pointers", "message"),
    [
        ((4096, 1024, 2048), None),
        ((4096, 4096, 1024), None),
        ((1024, 0, 2048), "b has 1024 bytes, and its address is 0."),
        ((16, 1024, 2048), "a starts at 0x10, misaligned by 16 bytes: the kernel requires multipl"),
        ((4096, 1024, 2049), "out starts at 0x801, misaligned by 1 bytes: the kernel requires"),
        ((1024, 4096, 1792), "the memory for out overlaps a"),
        ((8192, 2048, 1280), "the memory for out overlaps b"),
        ((2048, 4096, 2048), "the memory for out overlaps a"),
    ],
)
def test_addresses_are_checked(pointers: Any, message: str | None) -> None:
    signature = _signature()
    if message is None:
        check_addresses(signature, "made", pointers)
        return
    with pytest.raises(ArgumentError) as caught:
        check_addresses(signature, "made", pointers)
    assert caught.value.message.startswith(f"made: {message}")


@pytest.mark.parametrize(
    ("where", "number", "changes", "message"),
    [
        ("buffers", 0, {"size": 2048}, "array a has 1024 bytes, and its buffer 2048"),
        ("buffers", 2, {"role": "temporary"}, "array out is in a temporary buffer"),
        ("buffers", 1, {"alignment": 0}, "array b is aligned to 0 bytes"),
        ("inputs", 1, {"buffer": 0}, "nobody provides input buffer 1"),
    ],
)
def test_a_damaged_plan_is_refused(
    where: str, number: int, changes: dict[str, Any], message: str
) -> None:
    plan = json.loads(json.dumps(made.artifact(code=b"none").record["plan"]))
    plan[where][number].update(changes)
    with pytest.raises(CorruptError, match=message):
        plan_from_json(plan).check_arrays()
