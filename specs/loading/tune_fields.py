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
    Choice,
    Field,
    Leaf,
    ListOf,
    MapOf,
    ParameterKind,
    Place,
    Record,
    number,
    text,
)
from pallasc.specs.spelling import nearest, show, suggestion, values_text
from pallasc.specs.templates import Scalar, Value, label_of, typed

if TYPE_CHECKING:
    from pallasc.specs.tuning import Buckets, Tune

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
    Field("round", Choice(("up", "down")), "The end of its bucket that a value belongs to; up."),
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
    for name in over:
        if name in given:
            message = f"parameter {name!r} is in the matrix as well."
            raise at.child("over").key(name).error(message, "Give it once.")
    by = _by(fields.get("by"), given, over, at.child("by"))
    buckets = fields.get("buckets", {})
    _check_buckets(buckets, by, given, at.child("buckets"))
    rounding = fields.get("round", "up")
    pad = fields.get("pad", {})
    _check_pad(pad, buckets, rounding, at.child("pad"))
    default = fields.get("default")
    table = fields.get("table")
    if table is not None:
        with at.child("table").blamed():
            table = normal_path(table)
    return Tune(
        over=over,
        by=by,
        buckets=buckets,
        rounding=rounding,
        pad=pad,
        default=None if default is None else _default(default, over, at.child("default")),
        table=table or table_of(at.location.file),
    )


def table_of(spec_file: str) -> str:
    """Return the default name of a spec file's table."""
    return f"{PurePath(spec_file).stem}{TABLE_SUFFIX}"


def _by(
    names: tuple[str, ...] | None,
    given: Mapping[str, list[Value]],
    over: Mapping[str, object],
    at: Place,
) -> tuple[str, ...]:
    if names is None:
        return tuple(given)
    for index, name in enumerate(names):
        place = at.child(index)
        if name in over:
            raise place.error(f"parameter {name!r} is tuned itself.", "Remove it here.")
        if name not in given:
            hint = suggestion(name, given, otherwise="Parameters of the matrix")
            raise place.error(
                f"the matrix has no parameter {show(name)}.", hint or "The matrix has none."
            )
    return names


def _check_buckets(
    buckets: Mapping[str, Buckets],
    by: tuple[str, ...],
    given: Mapping[str, list[Value]],
    at: Place,
) -> None:
    for name in buckets:
        place = at.key(name)
        if name not in by:
            hint = suggestion(name, by, otherwise="'by' has")
            message = f"parameter {show(name)} is not among those of 'by'."
            raise place.error(message, hint)
        for value in given[name]:
            if type(value) is not int or value < 0:
                message = f"buckets hold whole numbers, and {name} can be {show(value)}."
                raise place.error(message, "Remove its buckets.")


def _check_pad(
    pad: Mapping[str, object], buckets: Mapping[str, object], rounding: str, at: Place
) -> None:
    for name in pad:
        if name not in buckets:
            hint = suggestion(name, buckets, otherwise="With buckets") or f"Add buckets of {name}."
            message = f"parameter {show(name)} has no buckets, so no call is padded to their ends."
            raise at.key(name).error(message, hint)
    if pad and rounding == "down":
        message = "a call cannot be padded to an end of its bucket that is below it."
        raise at.error(message, "Write round: up, or remove pad.")


def _default(
    default: Mapping[str, Value], over: Mapping[str, tuple[Value, ...]], at: Place
) -> dict[str, Scalar]:
    """Return the labels of the default, in the order of `over`."""
    for name, value in default.items():
        if name not in over:
            raise at.unknown("parameter", name, list(over))
        known = {typed(label_of(each)) for each in over[name]} | {typed(v) for v in over[name]}
        if typed(value) not in known and typed(label_of(value)) not in known:
            labels = list(map(label_of, over[name]))
            message = f"{show(label_of(value))} is not among the values of {name} under 'over'."
            near = nearest(plain(label_of(value)), map(plain, labels))
            hint = f"Did you mean {near!r}?" if near else f"Its values: {values_text(labels)}."
            raise at.child(name).error(message, hint)
    if missing := [name for name in over if name not in default]:
        raise at.error(
            f"parameter {missing[0]!r} is missing.", "Give each tuned parameter a value."
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
