"""The fields of `tune`: the tuned parameters, the parameters of keys, and the table's path."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal

from pallasc.specs.canonical import plain
from pallasc.specs.entries import normal_path
from pallasc.specs.fields import (
    PARAMETER,
    ByType,
    Checked,
    Field,
    Leaf,
    ListOf,
    MapOf,
    ParameterKind,
    Place,
    Record,
    choice,
    number,
    text,
)
from pallasc.specs.spelling import show, suggestion
from pallasc.specs.templates import Scalar, Value, label_of, typed

if TYPE_CHECKING:
    from pallasc.specs.tuning import Tune

TABLE_SUFFIX = ".tuned.yaml"
"""Suffix of table files; a folder of specs skips them."""

_LARGEST_EDGE = 2**63 - 1


def _ascending(edges: tuple[int, ...], at: Place) -> tuple[int, ...]:
    for index, (low, high) in enumerate(pairwise(edges), start=1):
        if low >= high:
            message = f"edges must ascend, and {high} follows {low}."
            raise at.child(index).error(message, "Sort them, and give each once.")
    if edges[-1] > _LARGEST_EDGE:
        raise at.error(f"edge {edges[-1]} is beyond 64 bits.")
    return edges


_BUCKETS = ByType(
    {
        list: Checked(ListOf(number(), "edges", repeats=True), _ascending),
        str: Leaf(
            Literal["pow2"],
            "pow2 or a list of edges",
            "Write pow2, or edges such as [128, 1024, 8192].",
        ),
    }
)
_TABLE = text(
    "the path of a table",
    r".*[^/]\.tuned\.yaml",
    f"Let it end in {TABLE_SUFFIX}, so that a folder's specs are told from it.",
)
_PATH = text("the path of an array")
TUNE_FIELDS = (
    Field(
        "over",
        MapOf(PARAMETER, ListOf(ParameterKind(), "values"), "parameters"),
        "Values of the parameters that are tuned; they are parameters of the kernel as well.",
        required=True,
    ),
    Field(
        "by",
        ListOf(PARAMETER, "parameters", 0),
        "Parameters of the matrix that decide which values are best; all of them by default.",
    ),
    Field(
        "buckets",
        MapOf(PARAMETER, _BUCKETS, "parameters"),
        "Parameters of which a row of the table may be for a range: pow2, or ascending edges.",
    ),
    Field("round", choice("up", "down"), "The end of its bucket that a value belongs to; up."),
    Field(
        "pad",
        MapOf(PARAMETER, MapOf(_PATH, number(), "dimensions"), "parameters"),
        "Parameters with buckets that may be larger than a call's: the dimension of each array.",
    ),
    Field(
        "default",
        MapOf(PARAMETER, ParameterKind(), "parameters"),
        "Values of the tuned parameters where no row of the table fits.",
    ),
    Field("table", _TABLE, "The table's file; the spec's own name with .tuned.yaml by default."),
)
TUNE = Record(TUNE_FIELDS)


def made_tune(fields: Mapping[str, Any], given: Mapping[str, list[Value]], at: Place) -> Tune:
    """Return the `tune` field of a kernel, checked against its parameters.

    Args:
        fields: the result of `TUNE.read`.
        given: the values of each parameter in the matrix, its file, and `include`.
        at: the place of the field.

    Raises:
        SpecError: a parameter or a value does not exist, or is given twice.
    """
    from pallasc.specs.tuning import Tune

    over: dict[str, tuple[Value, ...]] = fields["over"]
    by, buckets = fields.get("by", tuple(given)), fields.get("buckets", {})
    rounding, pad = fields.get("round", "up"), fields.get("pad", {})
    for name in over:
        if name in given:
            message = f"parameter {name!r} is in the matrix as well."
            raise at.child("over").key(name).error(message, "Give it once.")
    for field, names, what, known in (
        ("by", by, "parameter of the matrix", given),
        ("buckets", buckets, "parameter of 'by'", by),
        ("pad", pad, "parameter with buckets", buckets),
        ("default", fields.get("default", ()), "tuned parameter", over),
    ):
        for name in names:
            if name not in known:
                place, hint = at.child(field).key(name), suggestion(name, known)
                raise place.error(f"{show(name)} is not a {what}.", hint)
    for name in buckets:
        for value in given[name]:
            if type(value) is not int or value < 0:
                message = f"buckets hold whole numbers, and {name} can be {show(value)}."
                raise at.child("buckets").key(name).error(message, "Remove its buckets.")
    if pad and rounding == "down":
        message = "a call cannot be padded to an end of its bucket that is below it."
        raise at.child("pad").error(message, "Write round: up, or remove pad.")
    table = table_of(at.location.file)
    if "table" in fields:
        with at.child("table").blamed():
            table = normal_path(fields["table"])
    default = (
        _default(fields["default"], over, at.child("default")) if "default" in fields else None
    )
    return Tune(over, by, buckets, rounding, pad, default, table)


def table_of(spec_file: str) -> str:
    """Return the default name of a spec file's table."""
    return f"{PurePath(spec_file).stem}{TABLE_SUFFIX}"


def _default(
    default: Mapping[str, Value], over: Mapping[str, tuple[Value, ...]], at: Place
) -> dict[str, Scalar]:
    """Return the labels of the default, in the order of `over`."""
    for name, values in over.items():
        if name not in default:
            raise at.error(f"parameter {name!r} is missing.", "Give each tuned parameter a value.")
        labels = [label_of(each) for each in values]
        if typed(label_of(default[name])) not in map(typed, labels):
            raise at.child(name).error(
                f"{show(label_of(default[name]))} is not among the values of {name} under 'over'.",
                suggestion(plain(label_of(default[name])), map(plain, labels), otherwise="Values"),
            )
    return {name: label_of(default[name]) for name in over}


def given_values(
    matrix: Mapping[str, tuple[Value, ...]],
    rows: tuple[Mapping[str, Value], ...],
    include: tuple[Mapping[str, Value], ...],
    over: Mapping[str, object],
) -> dict[str, list[Value]]:
    """Return the possible values of each parameter that is not tuned, in the points' order."""
    given: dict[str, list[Value]] = {}
    for row in rows:
        for name, value in row.items():
            given.setdefault(name, []).append(value)
    given |= {name: list(values) for name, values in matrix.items()}
    for point in include:
        for name, value in point.items():
            if name in given or not (matrix or rows or name in over):
                given.setdefault(name, []).append(value)
    return given
