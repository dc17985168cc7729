"""The schema of spec files: every field of a kernel and of a file, for YAML and the decorator.

`docs/spec_schema.py` generates the JSON schema from the same tables, for editors to complete and
check specs. Errors that involve two places (an unknown parameter, a duplicate variant) are found
only by the loader.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import PurePath
from typing import Any, Literal

from pallasc.specs.arrays import looks_like_array, parse_array, parse_template
from pallasc.specs.artifacts.artifact import Resources, parse_rule, rule_pattern, rules_for
from pallasc.specs.canonical import Natural
from pallasc.specs.fields import (
    ENTRY,
    IDENTIFIER,
    PARAMETER,
    PARAMETER_VALUE,
    PARAMETERS_HINT,
    SCALAR,
    Field,
    Kind,
    Place,
    by_type,
    expected,
    filled,
    leaf,
    list_of,
    map_of,
    number,
    record,
    text,
    tree,
)
from pallasc.specs.gpus import DEFAULT_MODELS, FIGURES, MODELS
from pallasc.specs.settings import why_not_declared
from pallasc.specs.user_files import check_data_file, normal_path

TABLE_SUFFIX = ".tuned.yaml"
"""Suffix of table files; a folder of specs skips them."""


def table_of(spec_file: str) -> str:
    """Return the default name of a spec file's table."""
    return f"{PurePath(spec_file).stem}{TABLE_SUFFIX}"


def _limit(field: str) -> Kind:
    """Return the kind of limits for a field of `Resources`: a number, or a normalized rule."""
    what = "a whole number or a rule relative to a baseline"
    examples = ", ".join(f'"{each}"' for each in rules_for(field))
    hint = f"Write a number, or a rule in quotes, like {examples}."
    rule = text(what, rule_pattern(field), hint)
    return by_type(
        {
            int: leaf(Natural, what, hint),
            str: rule.checked(lambda own, at: parse_rule(own, field).text),
        }
    )


LIMITS = {name: _limit(name) for name in Resources._fields}
BUDGET_FIELDS = tuple(
    Field(name, filled(LIMITS[name]), doc)
    for name, doc in (
        ("registers", "Registers of a thread."),
        ("spill_bytes", "Bytes of spill stores and spill loads of a thread together."),
        ("stack_bytes", "Stack frame of a thread."),
        ("smem_bytes", "Static and dynamic shared memory of a block."),
        ("occupancy", "The fewest warps that a multiprocessor holds at once."),
        ("cubin_bytes", "Size of all cubins of a variant."),
    )
)


_PARAMETER = re.compile(r"\{[^{}]+\}")

SCHEMA_VERSION = 1
"""Version of spec files that this release reads. 1 is the first."""

SEED_KEY, ARGS_KEY = "$seed", "$args"
"""Keys of `check` that are not parameters."""


def _array(value: object, at: Place) -> str | None:
    """Check an array, and return it unchanged."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise expected("an array", value, at, 'Write it like "bf16[1024, {n}]".')
    with at.blamed():
        (parse_template if is_parameter(value) else parse_array)(value)
    return value


def _array_or_static(value: object, at: Place) -> Any:
    """Check an argument of a `$call`, where values other than arrays are as under `static`."""
    if isinstance(value, str) and looks_like_array(value):
        return _array(value, at)
    return _STATIC_VALUE.read(value, at)


_STATIC_VALUE = filled(SCALAR)
STATIC = tree(_STATIC_VALUE, filled(ENTRY))
IN_CALL = tree(Kind(_array_or_static, SCALAR.form), filled(ENTRY), ("$call", "$ref", "$tuple"))
ARRAYS = tree(Kind(_array, ("array",)), filled(ENTRY), ("$call", "$tuple"), IN_CALL)
_ARGUMENT = text("the name of an argument", r"[^\W\d]\w*", "Arguments are passed by these names.")
ARGS = by_type(
    {
        list: list_of(ARRAYS, "arrays", 0, repeats=True).checked(lambda items, at: list(items)),
        dict: map_of(_ARGUMENT, ARRAYS, "arrays", 0),
    }
)


def _declarable(name: str, at: Place) -> str:
    if why := why_not_declared(name):
        raise at.error(f"{name} {why}.", "Remove it.")
    return name


def _identifier(what: str) -> Kind:
    hint = "Use letters, digits and '_', beginning with a letter or '_'."
    return text(f"the name of {what}", IDENTIFIER, hint)


VARIABLES_KIND = list_of(
    _identifier("an environment variable").checked(_declarable), "environment variables", 0
)


_DATA_FILE = text("a path").checked(lambda path, at: check_data_file(path, at.base_dir))
_PATHS = list_of(_DATA_FILE, "paths")

KERNEL_NAME = text(
    "the name of a kernel",
    r"[A-Za-z_][A-Za-z0-9_.-]*",
    "Use letters, digits, '_', '-' and '.', beginning with a letter or '_'.",
)


def _target(known: Iterable[str]) -> Kind:
    pattern = r"[A-Za-z0-9][A-Za-z0-9._-]*"
    return text("the name of a target", pattern, "Write it like sm_90a.", known)


_POINT = map_of(PARAMETER, PARAMETER_VALUE, "parameters")
DIFFERENCE = number(whole=False)

TOLERANCE_FIELDS = (
    Field("rtol", filled(DIFFERENCE), "Relative difference that is allowed."),
    Field("atol", filled(DIFFERENCE), "Absolute difference that is allowed."),
)
CHECK_FIELDS = (
    Field(ARGS_KEY, ARGS, "Arguments that replace arguments of the same name or position."),
    Field(SEED_KEY, number(), "The seed of the inputs."),
)
AXIS_SIZE = number(1)
_AXIS = _identifier("an axis")
MESH_KIND = map_of(_AXIS, filled(AXIS_SIZE), "axes")
_TARGETS = list_of(_target((*DEFAULT_MODELS, *MODELS)), "targets")


def _ascending(edges: tuple[int, ...], at: Place) -> tuple[int, ...]:
    for index, (low, high) in enumerate(pairwise(edges), start=1):
        if low >= high:
            message = f"edges must ascend, and {high} follows {low}."
            raise at.child(index).error(message, "Sort them, and give each once.")
    return edges


_BUCKETS = by_type(
    {
        list: list_of(number(), "edges", repeats=True).checked(_ascending),
        str: leaf(
            Literal["pow2"],
            "pow2 or a list of edges",
            "Write pow2, or edges such as [128, 1024, 8192].",
        ),
    }
)
_TABLE = text(
    "the path of a table",
    r".*[^/]\.tuned\.yaml",
    f"Give it a name that ends in {TABLE_SUFFIX}, to distinguish it from a folder's specs.",
).checked(lambda path, at: normal_path(path))
_PATH = text("the path of an array")
_TUNE_FIELDS = (
    Field(
        "over",
        map_of(PARAMETER, list_of(PARAMETER_VALUE, "values"), "parameters"),
        "Values of the parameters that are tuned; they are parameters of the kernel as well.",
        required=True,
    ),
    Field(
        "by",
        list_of(PARAMETER, "parameters", 0),
        "Parameters of the matrix that decide which values are best; all of them by default.",
    ),
    Field(
        "buckets",
        map_of(PARAMETER, _BUCKETS, "parameters"),
        "Parameters whose values are grouped into ranges: pow2, or ascending edges.",
    ),
    Field(
        "pad",
        map_of(PARAMETER, map_of(_PATH, number(), "dimensions"), "parameters"),
        "Padding of calls up to a bucket: for each parameter, the dimension of each array.",
    ),
    Field("default", _POINT, "Values of the tuned parameters where no row of the table fits."),
    Field("table", _TABLE, "The table's file; the spec's own name with .tuned.yaml by default."),
)
TUNE = record(_TUNE_FIELDS)


FILE_KEY = "$file"
"""The matrix key for a file with points."""

_ROWS_PATH = text("a path, such as gemm.h100", ".*").checked(
    lambda path, at: tuple(path.split("."))
)
_SELECT = by_type(
    {
        dict: map_of(PARAMETER, _ROWS_PATH, "parameters"),
        list: list_of(PARAMETER, "parameters").checked(
            lambda names, at: {name: (name,) for name in names}
        ),
    }
)
_ROWS_FIELDS = (
    Field("path", _DATA_FILE, "A JSON or YAML file, relative to the spec's folder.", required=True),
    Field("rows", _ROWS_PATH, "The path of the rows in it; by default the whole document."),
    Field("select", _SELECT, "The parameters that a row gives; all fields by default."),
    Field("skip", list_of(text("a key"), "keys"), "Keys of the rows' mapping that are not rows."),
)


_ROWS_FILE = by_type(
    {str: _DATA_FILE.checked(lambda path, at: {"path": path}), dict: record(_ROWS_FIELDS)}
)
MATRIX = map_of(
    PARAMETER,
    list_of(PARAMETER_VALUE, "values"),
    "parameters",
    special=(Field(FILE_KEY, _ROWS_FILE, "A JSON or YAML file whose rows are points."),),
    hint=PARAMETERS_HINT,
)

KERNEL_FIELDS = (
    Field("name", KERNEL_NAME, "The kernel's name, like name: matmul.", required=True),
    Field("entry", ENTRY, "What to compile: package.module:function or file.py:function.", True),
    Field("args", ARGS, 'Arrays by name or position, like "bf16[{m}, 4096]"; null.', True),
    Field(
        "static",
        map_of(_ARGUMENT, STATIC, "arguments", 0),
        "Static keyword arguments; $call builds one, $ref takes an attribute.",
    ),
    Field(
        "matrix",
        MATRIX,
        "Values of each parameter, every combination a point; $file takes rows from a file.",
    ),
    Field("include", list_of(_POINT, "points"), "Further points, each with every parameter."),
    Field(
        "exclude", list_of(_POINT, "points"), "Points to drop; a part drops all matching points."
    ),
    Field("tune", TUNE, "Parameters that change only the speed, and the table of the best values."),
    Field("targets", _TARGETS, "Models or architectures to compile for."),
    Field("reference", ENTRY, "The function that gives the right result."),
    Field("tolerance", record(TOLERANCE_FIELDS), "How far a result may be from the reference."),
    Field("budget", record(BUDGET_FIELDS), "Resource limits of a variant."),
    Field(
        "files",
        _PATHS,
        "Data files that the kernel reads while it is traced, relative to the spec's folder.",
    ),
    Field("env", VARIABLES_KIND, "Environment variables that the kernel can see."),
    Field("mesh", MESH_KIND, "Axes and sizes of the devices that run the kernel together."),
    Field(
        "check",
        map_of(PARAMETER, PARAMETER_VALUE, "parameters", 1, CHECK_FIELDS, PARAMETERS_HINT),
        "Small values of parameters that pallasc check uses instead.",
    ),
    Field("vmap", KERNEL_NAME, "The kernel that does the same to a batch; it may be this kernel."),
)
"""Every field of a kernel, in the order of the reference."""

_AXES = by_type({list: list_of(_AXIS, "axes"), type(None): leaf(None, "null"), str: _AXIS})
"""The axes that divide a dimension: a name, a list of names, or null."""

MACHINES_FIELD = Field("machines", _PATHS, "Files of pallasc machine, one for each machine.")
_OWN_FIELDS = (
    MACHINES_FIELD,
    Field(
        "donate",
        list_of(_identifier("an argument"), "arguments"),
        "Arguments whose memory the results may take, if the function is not jitted.",
    ),
    Field(
        "shardings",
        map_of(
            text("the path of an argument", rf"{IDENTIFIER}(\.\w+)*|[0-9]+(\.\w+)*"),
            list_of(_AXES, "axes", 0, repeats=True),
            "arguments",
        ),
        "The axes of the mesh that divide each dimension of an argument; null for none.",
    ),
    Field(
        "explicit",
        list_of(_AXIS, "axes"),
        "Explicit axes of the mesh, as jax.make_mesh makes them by default.",
    ),
)
_NOT_IN_PROGRAMS = ("tune", "targets", "reference", "tolerance", "budget", "check", "vmap")
PROGRAM_FIELDS = (*(own for own in KERNEL_FIELDS if own.name not in _NOT_IN_PROGRAMS), *_OWN_FIELDS)
"""Every field of a program, in the order of the reference."""

PROGRAM = record(PROGRAM_FIELDS)

KERNEL = record(KERNEL_FIELDS)
DEFAULTS = record(
    (
        field._replace(required=False)
        for field in KERNEL_FIELDS
        if field.name not in ("name", "targets")
    ),
    elsewhere={"targets": "Write targets at the top of the file, next to 'defaults'."},
)
"""Fields that can be set once for all kernels of a file."""

MODEL_FIELDS = (
    Field("arch", _target(DEFAULT_MODELS), "Architecture, like sm_90a."),
    Field("like", _target(MODELS), "The model that provides the omitted figures."),
    Field("description", text("text"), "The device's name as the driver reports it."),
    *(
        Field(
            name,
            number(0, whole=False) if name == "clock_ghz" else number(1),
            f"{name.replace('_', ' ')}.".capitalize(),
        )
        for name in FIGURES
    ),
)
MODEL_NAME = text("the name of a model", r"(?!sm_)[A-Za-z0-9][A-Za-z0-9._-]*")
MODELS_KIND = map_of(MODEL_NAME, record(MODEL_FIELDS), "models")


def _items(what: str) -> Kind:
    """Return the kind of lists of records that are read later, when the defaults are known."""
    return list_of(leaf(dict, f"a {what}", "Begin it with '- name:'."), f"{what}s", repeats=True)


_VERSION = leaf(
    Literal[1],
    f"schema {SCHEMA_VERSION}, which this pallasc reads",
    f"Write schema: {SCHEMA_VERSION}, or install the pallasc that the file was written for.",
)
KERNELS_DOC = "A list of kernels, each beginning with '- name: …'."
FILE_FIELDS = (
    Field("schema", _VERSION, f"Write schema: {SCHEMA_VERSION}.", required=True),
    Field("targets", _TARGETS, "Targets of every kernel that names none."),
    Field("defaults", DEFAULTS, "Fields of every kernel that does not give them."),
    Field("models", MODELS_KIND, "Models of GPU that are not built in."),
    Field("kernels", _items("kernel"), KERNELS_DOC),
    Field("programs", _items("program"), "A list of programs, each beginning with '- name: …'."),
    Field(*MACHINES_FIELD[:2], "Machines of every program that names none."),
)
FILE = record(FILE_FIELDS)


def is_parameter(text: str) -> bool:
    """Return True if the text is a single pair of braces: a parameter that gives an array."""
    return _PARAMETER.fullmatch(text) is not None
