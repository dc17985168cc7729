"""The schema of spec files: every field of a kernel and of a file, for YAML and the decorator.

The JSON schema is generated from the same tables, for editors to complete and check specs. Errors
that involve two places (an unknown parameter, a duplicate variant) are found only by the loader.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Literal, NamedTuple

from pallasc.errors import SpecError
from pallasc.specs.arrays import ALIASES, DTYPES, looks_like_array, parse_array
from pallasc.specs.fields import (
    DATA,
    ENTRY,
    IDENTIFIER,
    PARAMETER,
    PARAMETERS_HINT,
    SCALAR,
    VALUE_NAME,
    ByType,
    Checked,
    Field,
    Filled,
    Leaf,
    ListOf,
    MapOf,
    ParameterKind,
    Place,
    Record,
    Schema,
    Tree,
    expected,
    number,
    text,
)
from pallasc.specs.gpus import DEFAULT_MODELS, FIGURES, MODELS
from pallasc.specs.loading.files import TABLE_SUFFIX
from pallasc.specs.loading.tables import MatrixKind
from pallasc.specs.resources import MORE_IS_BETTER, parse_rule, rules_for
from pallasc.specs.templates import NAME, Expression, Value, is_template, parse_template
from pallasc.specs.variables import why_not_declared


class LimitKind(NamedTuple):
    """A whole number, or a rule relative to a baseline.

    Attributes:
        field: name of the limited number in `Resources`.
    """

    field: str

    def read(self, value: object, at: Place) -> int | str:
        """Return the number, or the normalized rule."""
        rule = parse_rule(value, self.field) if isinstance(value, str) else None
        if rule is not None:
            return rule.text
        if type(value) is int and value >= 0:
            return value
        examples = ", ".join(f'"{each}"' for each in rules_for(self.field))
        hint = f"Write a number, or a rule in quotes, like {examples}."
        raise expected("a whole number or a rule relative to a baseline", value, at, hint)

    def schema(self) -> Schema:
        """Return the schema."""
        sign, order = ("-", ">") if self.field in MORE_IS_BETTER else (r"\+", "<")
        amount = r"([0-9]+|[0-9]+(\.[0-9]+)?\s*%)"
        rule = rf"^\s*({order}=\s*baseline|{sign}\s*{amount})\s*$"
        return {"anyOf": [number().schema(), {"type": "string", "pattern": rule}]}


BUDGET_FIELDS = tuple(
    Field(name, Filled(LimitKind(name)), doc)
    for name, doc in (
        ("registers", "Registers of a thread."),
        ("spill_bytes", "Bytes of spill stores and spill loads of a thread together."),
        ("stack_bytes", "Stack frame of a thread."),
        ("smem_bytes", "Static and dynamic shared memory of a block."),
        ("occupancy", "The fewest warps that a multiprocessor holds at once."),
        ("cubin_bytes", "Size of all cubins of a variant."),
    )
)
LIMITS = {field.name: LimitKind(field.name) for field in BUDGET_FIELDS}


_BRACES = r"\{[^{}]+\}"
_LAYOUT = r"(\{\s*[0-9]+\s*(,\s*[0-9]+\s*)*\})?"

SCHEMA_VERSION = 1
"""Version of spec files that this release reads. 1 is the first."""

SEED_KEY, TOLERANCE_KEY, ARGS_KEY = "$seed", "$tolerance", "$args"
"""Keys of `check` that are not parameters."""


class ArrayKind(NamedTuple):
    """An array in its notation, a parameter that is one, or `null`.

    Attributes:
        in_call: True for arguments of a `$call`, where values other than arrays are as under
            `static`.
    """

    in_call: bool = False

    def read(self, value: object, at: Place) -> Value:
        """Check an array and return it unchanged."""
        if value is None:
            return None
        if self.in_call and not (isinstance(value, str) and looks_like_array(value)):
            static: Value = STATIC.leaf.read(value, at)
            return static
        if not isinstance(value, str):
            raise expected("an array", value, at, 'Write it like "bf16[1024, {n}]".')
        with at.blamed():
            if not is_parameter(value):
                parse_array(value)
        return value

    def schema(self) -> Schema:
        """Return the schema."""
        if self.in_call:
            return SCALAR.schema()
        dtypes = "|".join(sorted([*DTYPES, *ALIASES], key=lambda name: (-len(name), name)))
        dimension = rf"\s*(0|[1-9][0-9]*|{_BRACES})\s*"
        array = rf"\s*({dtypes}|{_BRACES})\s*\[(\s*|{dimension}(,{dimension})*)\]{_LAYOUT}\s*"
        return {"type": ["string", "null"], "pattern": f"^({array}|{_BRACES})$"}


STATIC = Tree("static", Filled(SCALAR), Filled(ENTRY))
_IN_CALL = Tree("argument", ArrayKind(in_call=True), Filled(ENTRY), ("$call", "$ref", "$tuple"))
ARRAYS = Tree("array", ArrayKind(), Filled(ENTRY), ("$call", "$tuple"), _IN_CALL)
_ARGUMENT = text("the name of an argument", r"[^\W\d]\w*", "Arguments are passed by these names.")
ARGS = ByType(
    {
        list: Checked(ListOf(ARRAYS, "arrays", 0, repeats=True), lambda items, at: list(items)),
        dict: MapOf(_ARGUMENT, ARRAYS, "arrays", 0),
    }
)


def _declarable(name: str, at: Place) -> str:
    if why := why_not_declared(name):
        raise at.error(f"{name} {why}.", "Remove it.")
    return name


VARIABLES_KIND = ListOf(
    Checked(
        text(
            "the name of an environment variable",
            IDENTIFIER,
            "Use letters, digits and '_', beginning with a letter or '_'.",
        ),
        _declarable,
    ),
    "environment variables",
    0,
)

KERNEL_NAME = text(
    "the name of a kernel",
    r"[A-Za-z_][A-Za-z0-9_.-]*",
    "Use letters, digits, '_', '-' and '.', beginning with a letter or '_'.",
)
_TARGET = text("the name of a target", r"[A-Za-z0-9][A-Za-z0-9._-]*", "Write it like sm_90a.")


_POINT = MapOf(PARAMETER, ParameterKind(), "parameters")
DIFFERENCE = number(whole=False)

TOLERANCE_FIELDS = (
    Field("rtol", Filled(DIFFERENCE), "Relative difference that is allowed."),
    Field("atol", Filled(DIFFERENCE), "Absolute difference that is allowed."),
)
CHECK_FIELDS = (
    Field(ARGS_KEY, ARGS, "Arguments that replace arguments of the same name or position."),
    Field(SEED_KEY, number(), "The seed of the inputs."),
    Field(TOLERANCE_KEY, Record(TOLERANCE_FIELDS), "The tolerance for these sizes."),
)
AXIS_SIZE = number(1)
MESH_KIND = MapOf(
    text(
        "the name of an axis", IDENTIFIER, "Use letters, digits and '_', beginning with a letter."
    ),
    Filled(AXIS_SIZE),
    "axes",
)
_TARGETS = ListOf(_TARGET._replace(known=(*DEFAULT_MODELS, *MODELS)), "targets")

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
    f"Give it a name that ends in {TABLE_SUFFIX}, to distinguish it from a folder's specs.",
)
_PATH = text("the path of an array")
_TUNE_FIELDS = (
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
        "Parameters whose values are grouped into ranges: pow2, or ascending edges.",
    ),
    Field(
        "pad",
        MapOf(PARAMETER, MapOf(_PATH, number(), "dimensions"), "parameters"),
        "Parameters to whose buckets calls may be padded: the dimension of each array.",
    ),
    Field(
        "default",
        MapOf(PARAMETER, ParameterKind(), "parameters"),
        "Values of the tuned parameters where no row of the table fits.",
    ),
    Field("table", _TABLE, "The table's file; the spec's own name with .tuned.yaml by default."),
)
TUNE = Record(_TUNE_FIELDS)


KERNEL_FIELDS = (
    Field("name", KERNEL_NAME, "The kernel's name, like name: matmul.", required=True),
    Field("entry", ENTRY, "What to compile: package.module:function or file.py:function.", True),
    Field("args", ARGS, 'Arrays by name or position, like "bf16[{m}, 4096]"; null.', True),
    Field(
        "static",
        MapOf(_ARGUMENT, STATIC, "arguments", 0),
        "Static keyword arguments; $call builds one, $ref takes an attribute.",
    ),
    Field(
        "matrix",
        MatrixKind(),
        "Values of each parameter, every combination a point; $file takes rows from a file.",
    ),
    Field("include", ListOf(_POINT, "points"), "Further points, each with every parameter."),
    Field("exclude", ListOf(_POINT, "points"), "Points to drop; a part drops all matching points."),
    Field("tune", TUNE, "Parameters that change only the speed, and the table of the best values."),
    Field("targets", _TARGETS, "Models or architectures to compile for."),
    Field("reference", ENTRY, "The function that gives the right result."),
    Field("tolerance", Record(TOLERANCE_FIELDS), "How far a result may be from the reference."),
    Field("budget", Record(BUDGET_FIELDS), "Resource limits of a variant."),
    Field(
        "files",
        ListOf(text("a path"), "paths"),
        "Data files that the kernel reads while it is traced, relative to the spec's folder.",
    ),
    Field("env", VARIABLES_KIND, "Environment variables that the kernel can see."),
    Field("mesh", MESH_KIND, "Axes and sizes of the devices that run the kernel together."),
    Field(
        "check",
        MapOf(PARAMETER, ParameterKind(), "parameters", 1, CHECK_FIELDS, PARAMETERS_HINT),
        "Small values of parameters that pallasc check uses instead.",
    ),
    Field("vmap", KERNEL_NAME, "The kernel that does the same to a batch; it may be this kernel."),
)
"""Every field of a kernel, in the order of the reference."""

_AXIS = text("the name of an axis", IDENTIFIER)
_AXES = ByType({list: ListOf(_AXIS, "axes"), type(None): Leaf(None, "null"), str: _AXIS})
"""The axes that divide a dimension: a name, a list of names, or null."""

MACHINES_FIELD = Field(
    "machines",
    ListOf(text("a path"), "paths"),
    "Files of pallasc machine, one for each machine.",
)
_OWN_FIELDS = (
    MACHINES_FIELD,
    Field(
        "donate",
        ListOf(text("the name of an argument", IDENTIFIER), "arguments"),
        "Arguments whose memory the results may take, if the function is not jitted.",
    ),
    Field(
        "shardings",
        MapOf(
            text("the path of an argument", rf"{IDENTIFIER}(\.\w+)*|[0-9]+(\.\w+)*"),
            ListOf(_AXES, "axes", 0, repeats=True),
            "arguments",
        ),
        "The axes of the mesh that divide each dimension of an argument; null for none.",
    ),
    Field(
        "explicit",
        ListOf(_AXIS, "axes"),
        "Explicit axes of the mesh, as jax.make_mesh makes them by default.",
    ),
)
_PROGRAM_NAMES = (
    "name", "entry", "args", "static", "matrix", "include", "exclude", "files", "env", "mesh",
)  # fmt: skip
PROGRAM_FIELDS = (
    *(field for field in KERNEL_FIELDS if field.name in _PROGRAM_NAMES),
    *_OWN_FIELDS,
)
"""Every field of a program, in the order of the reference."""

PROGRAM = Record(PROGRAM_FIELDS)

PARTIAL_KERNEL = Record(
    tuple(field._replace(required=field.name == "name") for field in KERNEL_FIELDS)
)
"""A kernel whose missing fields may be in the defaults."""

DEFAULTS = Record(tuple(field for field in PARTIAL_KERNEL.fields if field.name != "name"))
"""Fields that can be set once for all kernels of a file."""

_ARCH = _TARGET._replace(known=tuple(DEFAULT_MODELS))
_MODEL = _TARGET._replace(known=tuple(MODELS))
MODEL_FIELDS = (
    Field("arch", _ARCH, "Architecture, like sm_90a."),
    Field("like", _MODEL, "The model that provides the omitted figures."),
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
MODELS_KIND = MapOf(MODEL_NAME, Record(MODEL_FIELDS), "models")


class Later(NamedTuple):
    """A record that is read later, when the defaults are known."""

    record: Record
    what: str

    def read(self, value: object, at: Place) -> dict[str, object]:
        """Return the record unchanged."""
        if not isinstance(value, dict):
            raise expected(self.what, value, at, "Begin it with '- name:'.")
        return value

    def schema(self) -> Schema:
        """Return the schema."""
        return self.record.schema()


_VERSION = Leaf(
    Literal[1],
    f"schema {SCHEMA_VERSION}, which this pallasc reads",
    f"Write schema: {SCHEMA_VERSION}, or install the pallasc that the file was written for.",
)
FILE_FIELDS = (
    Field("schema", _VERSION, f"Write schema: {SCHEMA_VERSION}.", required=True),
    Field("targets", _TARGETS, "Targets of every kernel that names none."),
    Field("defaults", DEFAULTS, "Fields of every kernel that does not give them."),
    Field("models", MODELS_KIND, "Models of GPU that are not built in."),
    Field(
        "kernels",
        ListOf(Later(PARTIAL_KERNEL, "a kernel"), "kernels", repeats=True),
        "A list of kernels, each beginning with '- name: …'.",
    ),
    Field(
        "programs",
        ListOf(Later(PROGRAM, "a program"), "programs", repeats=True),
        "A list of programs, each beginning with '- name: …'.",
    ),
    Field(*MACHINES_FIELD[:2], "Machines of every program that names none."),
)
FILE = Record(FILE_FIELDS)


def is_parameter(text: str) -> bool:
    """Return True if the text is a single pair of braces: a parameter that gives an array."""
    if not is_template(text):
        return False
    try:
        parts = parse_template(text).parts
    except SpecError:
        return False
    return len(parts) == 1 and isinstance(parts[0], Expression)


def json_schema() -> Schema:
    """Return the schema of spec files, draft 2020-12."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "pallasc spec",
        "description": "Kernels that pallasc compiles ahead of time.",
        **FILE.schema(),
        "anyOf": [{"required": ["kernels"]}, {"required": ["programs"]}],
        "$defs": {
            "array": ARRAYS.definition(
                'An array, "bf16[{m}, 4096]"; null; lists and mappings of them; $call.'
            ),
            "argument": _IN_CALL.definition("Arrays, or plain data, in the arguments of $call."),
            "static": STATIC.definition(
                "Plain data; $call builds a value, $ref takes an attribute."
            ),
            "value": DATA.definition(
                "A value of a parameter; $name names a mapping.", **{NAME: VALUE_NAME.schema()}
            ),
        },
    }


def json_schema_text() -> str:
    """Return the schema as the text of `docs/spec.schema.json`."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"
