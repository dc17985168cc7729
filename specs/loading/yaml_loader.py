"""Load specs from files and folders: YAML directly, Python through a given collector.

A folder stands for its YAML files, except tables of tuned kernels, and for its Python files that
declare kernels, that is, call `pallasc.kernel` or `pallasc.declare` outside functions. Such calls
are found by parsing; nothing is executed here. Subfolders are not searched, because they include
`tests/` and environments.

In `pyproject.toml`, a project can list environment variables that all of its kernels can see, like
the field `env` of one kernel:

    [tool.pallasc]
    env = ["KERNEL_TILE"]

The project is the nearest folder with a `pyproject.toml`, from the spec's folder upwards.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from pallasc.errors import SpecError
from pallasc.specs.canonical import Scalar, Value, label_of, plain, typed
from pallasc.specs.fields import Place
from pallasc.specs.gpus import Target, make_model, resolve_target
from pallasc.specs.loading.matrix import read_rows
from pallasc.specs.loading.schema import (
    FILE,
    FILE_FIELDS,
    FILE_KEY,
    KERNEL,
    KERNELS_DOC,
    PROGRAM,
    TABLE_SUFFIX,
    VARIABLES_KIND,
    table_of,
)
from pallasc.specs.loading.yaml_text import MOST_BYTES, Document, parse_document, read_document
from pallasc.specs.settings import project_table
from pallasc.specs.spec import Program, Spec, read_machine
from pallasc.specs.spelling import nearest, show, suggestion
from pallasc.specs.user_files import check_regular, read_regular

if TYPE_CHECKING:
    from pallasc.specs.tuning import Tune

_PROJECT_KEY = "env"

_YAML_SUFFIXES = (".yaml", ".yml")
_DECLARING = ("declare", "kernel", "program")

PythonCollector = Callable[[str], list[Spec]]
"""Executes a Python spec file in a separate process and returns its specs."""


def load_specs(
    paths: Iterable[str | Path],
    *,
    collect_python: PythonCollector | None = None,
) -> list[Spec]:
    """Load all specs in these files and folders, in the given order.

    Each spec gets the environment variables that its project declares.

    Args:
        paths: YAML files, Python spec files, and folders of both (`spec_files`).
        collect_python: executes Python spec files; without it, they are rejected.

    Raises:
        SpecError: a file is missing or malformed, a folder has no specs, `vmap` names an unknown
            kernel, or a project lists something other than names of environment variables.
    """
    specs: list[Spec] = []
    for file in spec_files(paths):
        if not file.endswith(".py"):
            specs += load_yaml(file)
        elif collect_python is not None:
            specs += collect_python(file)
        else:
            raise SpecError(f"{file}: a Python spec file cannot be read here.", hint="Use YAML.")
    _check_batch_names(specs)
    declared = cache(project_env)
    return [replace(spec, env=(*spec.env, *declared(spec.base_dir))) for spec in specs]


def load_yaml(file: str | Path) -> list[Spec]:
    """Load the specs of one YAML file.

    Raises:
        SpecError: the file is missing or malformed.
    """
    return _read_file(read_document(str(file)), str(Path(file).resolve().parent))


def parse_yaml(text: str, *, file: str = "<text>", base_dir: str | Path = ".") -> list[Spec]:
    """Load the specs in YAML text.

    Args:
        text: the YAML.
        file: its name for messages.
        base_dir: the folder to which paths in the text are relative.

    Raises:
        SpecError: the text is malformed.
    """
    return _read_file(parse_document(text, file), str(Path(base_dir).resolve()))


def _read_file(document: Document, base_dir: str) -> list[Spec]:
    at = Place(document.place, base_dir=base_dir)
    if isinstance(document.data, dict) and "schema" in document.data:  # first: others depend on it
        FILE_FIELDS[0].kind.read(document.data["schema"], at.child("schema"))
    fields: dict[str, Any] = FILE.read(document.data, at)
    defaults = dict(document.data.get("defaults", {}))
    places = {name: at.child("defaults").child(name) for name in defaults}
    if "targets" in fields:
        defaults["targets"], places["targets"] = document.data["targets"], at.child("targets")
    models: dict[str, Target] = {}
    for name, figures in fields.get("models", {}).items():
        with at.child("models").child(name).blamed():
            models[name] = make_model(name, figures, models)
    shared = SpecFile(defaults, places, models, fields.get("machines", ()))
    if not ("kernels" in fields or "programs" in fields):
        raise at.error("field 'kernels' is missing.", KERNELS_DOC)
    specs = []
    for kinds in ("kernels", "programs"):
        for index, each in enumerate(fields.get(kinds, ())):
            place = kernel_place(at.child(kinds).child(index), each.get("name"))
            specs.append(declare(each, place, shared, is_program=kinds == "programs"))
    return specs


def _check_batch_names(specs: Sequence[Spec]) -> None:
    """Check that `vmap` of each spec names one of the specs.

    Raises:
        SpecError: the kernel does not exist.
    """
    names = {spec.name for spec in specs}
    for spec in specs:
        if spec.vmap is not None and spec.vmap not in names:
            raise SpecError(
                f"{spec.name}.vmap: there is no kernel {spec.vmap!r}.",
                location=spec.where("vmap"),
                hint=suggestion(spec.vmap, names, otherwise="Kernels"),
            )


def project_env(folder: str) -> tuple[str, ...]:
    """Return the environment variables declared by the project around a folder.

    Raises:
        SpecError: the list is malformed.
    """
    project = project_table(folder)
    if project is None or _PROJECT_KEY not in project.values:
        return ()
    value, at = project.values[_PROJECT_KEY], project.at.child(_PROJECT_KEY)
    names: tuple[str, ...] = VARIABLES_KIND.read(value, at)
    return names


class SpecFile(Struct, frozen=True):
    """Data that all kernels and programs of a spec file share.

    Attributes:
        defaults: fields for kernels that omit them, already checked, as written.
        places: place of each default.
        models: models that the file defines.
        machines: machine files of programs that name none.
        documents: data files that were read, by path.
    """

    defaults: Mapping[str, object] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)
    models: Mapping[str, Target] = field(default_factory=dict)
    machines: tuple[str, ...] = ()
    documents: dict[str, Document] = field(default_factory=dict)


def declare(
    fields: Mapping[str, object], at: Place, file: SpecFile, *, is_program: bool = False
) -> Spec:
    """Check the fields of one kernel or program, and return its spec.

    Args:
        fields: the fields, as plain data.
        at: the place of the kernel or program.
        file: data of its file.
        is_program: whether it is a program; its machine files are read.

    Raises:
        SpecError: a field or a machine file is wrong or missing, or refers to something that does
            not exist.
    """
    kind, shared = (PROGRAM, {}) if is_program else (KERNEL, file.defaults)
    values: dict[str, Any] = kind.read({**shared, **fields}, at)
    places = {name: at.child(name) if name in fields else file.places[name] for name in values}
    for name in values.get("static", {}):
        if isinstance(values["args"], dict) and name in values["args"]:
            message = f"argument {name!r} is given under 'args' as well."
            raise places["static"].key(name).error(message, "Give it once.")
    for index, name in enumerate(values.get("targets", ())):
        resolve_target(name, file.models, location=places["targets"].child(index).location)
    if "matrix" in values:
        values.update(_points(values["matrix"], places["matrix"], file))
    if "tune" in values:
        values["tune"] = _tune(values["tune"], _given_values(values), places["tune"])
    values["models"] = dict(file.models)
    if is_program:
        values = _on_machines(values, at, file.machines)
    return Spec(  # the kinds have checked the types of all fields
        **values, location=at.location, base_dir=at.base_dir, places=places
    )


def _points(axes: Mapping[str, Any], at: Place, file: SpecFile) -> dict[str, object]:
    if FILE_KEY not in axes:
        return {"matrix": axes}
    table = axes[FILE_KEY]
    axes = {name: values for name, values in axes.items() if name != FILE_KEY}
    at = at.child(FILE_KEY)
    rows = read_rows(table, at, file.documents)
    for name in axes:
        if name in rows[0]:
            raise at.error(f"its rows give parameter {name!r}, and so does the matrix.")
    return {"matrix": axes, "rows": rows, "table": table["path"]}


def kernel_place(at: Place, name: object, otherwise: str = "") -> Place:
    """Return a kernel's place, labeled with the kernel's name if it has one."""
    origin = name if isinstance(name, str) and name else otherwise or at.label
    return at._replace(origin=origin, skip=len(at.path))


# ---- files and folders


def spec_files(paths: Iterable[str | Path]) -> list[str]:
    """Return the spec files in these paths, each once, in the given order.

    Raises:
        SpecError: a path does not exist or is not a spec file, or a folder has none.
    """
    files: dict[Path, str] = {}
    for path in map(Path, paths):
        for file in _files_in(path) if path.is_dir() else [_checked(path)]:
            files.setdefault(file.resolve(), str(file))
    return list(files.values())


def _checked(path: Path) -> Path:
    """Return the path if it is a spec file."""
    if not path.exists():
        siblings = [child.name for child in path.parent.iterdir()] if path.parent.is_dir() else []
        near = nearest(path.name, siblings)
        hint = f"Did you mean {str(path.parent / near)!r}?" if near else None
        raise SpecError(f"{path}: there is no such file.", hint=hint)
    if path.name.endswith(TABLE_SUFFIX):
        raise SpecError(
            f"{path}: this is a table of tuned kernels, not a spec file.",
            hint="Name the specs, which find their tables themselves.",
        )
    if path.suffix not in (*_YAML_SUFFIXES, ".py"):
        hint = "Specs are *.yaml, *.yml or *.py files; pallasc bundle create makes bundles of them."
        raise SpecError(f"{path}: not a spec file.", hint=hint)
    check_regular(str(path))
    return path


def _files_in(folder: Path) -> list[Path]:
    files = [
        child
        for child in sorted(folder.iterdir())
        if (child.suffix in _YAML_SUFFIXES and not child.name.endswith(TABLE_SUFFIX))
        or (child.suffix == ".py" and _declares_kernels(child))
    ]
    if not files:
        raise SpecError(
            f"{folder}: no spec files (*.yaml, *.yml, or *.py that declares kernels) in this "
            "folder.",
            hint="Subfolders are not searched. pallasc init writes an example.",
        )
    return files


def _declares_kernels(file: Path) -> bool:
    """Return True if a Python file declares kernels when it is imported.

    If a file has syntax errors and mentions pallasc, the result is True, so that loading the file
    reports the errors.
    """
    try:
        content = read_regular(str(file), most_bytes=MOST_BYTES)
    except SpecError:
        return False
    if b"pallasc" not in content:
        return False
    try:
        calls = _DeclaringCalls()
        calls.visit(ast.parse(content))
        return calls.found
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True


class _DeclaringCalls(ast.NodeVisitor):
    """Finds calls of the declaring functions that run when a module is imported."""

    def __init__(self) -> None:
        self.found = False
        self._names: set[str] = set()

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.partition(".")[0] == "pallasc":
                self._names |= {f"{alias.asname or 'pallasc'}.{name}" for name in _DECLARING}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if (node.module or "").partition(".")[0] == "pallasc":
            own = (alias for alias in node.names if alias.name in _DECLARING)
            self._names |= {alias.asname or alias.name for alias in own}

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        pass

    def visit_Call(self, node: ast.Call) -> None:
        self.found |= ast.unparse(node.func) in self._names
        self.generic_visit(node)


# ---- tuned kernels


def _given_values(fields: Mapping[str, Any]) -> dict[str, list[Value]]:
    """Return the possible values of each parameter that is not tuned, in the points' order."""
    tuned = fields["tune"]["over"]
    pairs = [pair for row in fields.get("rows", ()) for pair in row.items()]
    pairs += [(name, each) for name, own in fields.get("matrix", {}).items() for each in own]
    included = [pair for point in fields.get("include", ()) for pair in point.items()]
    given: dict[str, list[Value]] = {}
    for name, value in [*pairs, *(pair for pair in included if pair[0] not in tuned)]:
        given.setdefault(name, []).append(value)
    return given


def _tune(fields: Mapping[str, Any], given: Mapping[str, list[Value]], at: Place) -> Tune:
    """Return the `tune` field of a kernel, checked against its parameters.

    Args:
        fields: the result of `TUNE.read`.
        given: the values of each parameter in the matrix, its file, and `include`.
        at: the place of the field.

    Raises:
        SpecError: a parameter or a value does not exist, or is given twice.
    """
    from pallasc.specs.tuning import Tune

    by_default = {"by": tuple(given), "table": table_of(at.location.file)}
    tune = Tune(**{**by_default, **fields})
    for name in tune.over:
        if name in given:
            message = f"parameter {name!r} is in the matrix as well."
            raise at.child("over").key(name).error(message, "Give it once.")
    for key, names, known in (
        ("by", tune.by, given),
        ("buckets", tune.buckets, tune.by),
        ("pad", tune.pad, tune.buckets),
        ("default", tune.default or (), tune.over),
    ):
        at.child(key).check_known("parameter", names, known)
    for name in tune.buckets:
        for value in given[name]:
            if type(value) is not int or value < 0:
                message = f"buckets hold whole numbers, and {name} can be {show(value)}."
                raise at.child("buckets").key(name).error(message, "Remove its buckets.")
    if tune.default is None:
        return tune
    return replace(tune, default=_default(tune.default, tune.over, at.child("default")))


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


# ---- programs


def _on_machines(values: Mapping[str, Any], at: Place, machines: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of a program's spec.

    Args:
        values: the program's fields.
        at: the place of the program.
        machines: machine files of programs that name none.

    Raises:
        SpecError: a field or a machine file is wrong or missing.
    """
    _check_shardings(values, at)
    named = values.get("machines", machines)
    if not named:
        raise at.error("field 'machines' is missing.", "Add machines: [machine.json]; write the "
                       "file where the GPU is, with pallasc machine.")  # fmt: skip
    names = ("donate", "shardings", "explicit")
    own = {key: value for key, value in values.items() if key in names}
    programs: dict[str, Program] = {}
    models: dict[str, Target] = {}
    for index, file in enumerate(named):
        where = at.child("machines").child(index) if "machines" in values else at
        with where.blamed():
            machine = read_machine(Path(at.base_dir, file))
            name = Path(file).stem
            if name in models:
                raise SpecError(f"two machine files are named {name}.", hint="Rename one of them.")
            models[name] = machine.target(name)
            programs[name] = Program(machine, **own)
    shared = {key: value for key, value in values.items() if key not in names}
    made = {"programs": programs, "machines": named, "models": models, "targets": tuple(models)}
    return {**shared, **made}


def _check_shardings(values: Mapping[str, Any], at: Place) -> None:
    """Check that donations and shardings name arguments, and shardings axes of the mesh."""
    args, mesh = values["args"], values.get("mesh", {})
    shardings: Mapping[str, Any] = values.get("shardings", {})
    arguments = [*args] if isinstance(args, dict) else [*map(str, range(len(args)))]
    dividing = [axes for dimensions in shardings.values() for axes in dimensions if axes]
    names = [name for axes in dividing for name in ((axes,) if isinstance(axes, str) else axes)]
    for key, what, used, known in (
        ("donate", "argument", values.get("donate", ()), arguments),
        ("shardings", "argument", [path.partition(".")[0] for path in shardings], arguments),
        ("explicit", "axis name", values.get("explicit", ()), mesh),
        ("shardings", "axis name", names, mesh),
    ):
        at.child(key).check_known(what, used, known)
