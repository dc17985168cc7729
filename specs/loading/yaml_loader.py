"""Load specs from files and folders: YAML directly, Python through a given collector.

A folder stands for its YAML files, except tables of tuned kernels, and for its Python files that
declare kernels: that call `pallasc.kernel` or `pallasc.declare` outside functions. These are found
by parsing; nothing is executed here. Subfolders are not searched, because `tests/` and environments
are among them; a subfolder with specs is reported as skipped.

In `pyproject.toml`, a project can list environment variables that all of its kernels can see, like
the field `env` of one kernel:

    [tool.pallasc]
    env = ["KERNEL_TILE"]

The project is the nearest folder with a `pyproject.toml`, from the spec's folder upwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from pallasc.errors import SpecError
from pallasc.specs.entries import check_data_file, declares_kernels
from pallasc.specs.fields import Place
from pallasc.specs.gpus import Target, check_arch, make_model, resolve_target
from pallasc.specs.loading.schema import (
    FILE,
    FILE_FIELDS,
    KERNEL_FIELDS,
    PARTIAL_KERNEL,
    VARIABLES_KIND,
)
from pallasc.specs.loading.tables import FILE_KEY, Matrix, Table, read_rows
from pallasc.specs.loading.tune_fields import TABLE_SUFFIX, given_values, made_tune
from pallasc.specs.loading.yaml_text import Document, parse_document, read_document
from pallasc.specs.settings import project_table
from pallasc.specs.spec import Row, Spec
from pallasc.specs.spelling import nearest, suggestion
from pallasc.specs.templates import Value
from pallasc.specs.user_files import check_regular

YAML_SUFFIXES = (".yaml", ".yml")
_IS_YAML_SPEC = re.compile(
    rb"^(kernels|programs|schema)[ \t]*:.*^(kernels|programs|schema)[ \t]*:", re.M | re.S
)
_MOST_BYTES = 8 << 20
OnSkip = Callable[[str], None]
"""Called with a sentence about folders with specs that are not read."""

_PROJECT_KEY = "env"

PythonCollector = Callable[[str], list[Spec]]
"""Executes a Python spec file in a separate process and returns its specs."""


def load_specs(
    paths: Iterable[str | Path],
    *,
    collect_python: PythonCollector | None = None,
    on_skip: OnSkip = lambda text: None,
) -> list[Spec]:
    """Load all specs in these files and folders, in the given order.

    Args:
        paths: YAML files, Python spec files, and folders of both (`spec_files`).
        collect_python: executes Python spec files; without it, they are rejected.
        on_skip: called if folders in a folder have specs that are not read.

    Raises:
        SpecError: a file is missing or malformed, a folder has no specs, two files declare a kernel
            of the same name for the same architecture, or `vmap` names an unknown kernel.
    """
    specs: list[Spec] = []
    owners: dict[str, dict[str | None, Spec]] = {}
    for file in spec_files(paths, on_skip=on_skip):
        if not file.endswith(".py"):
            loaded = load_yaml(file)
        elif collect_python is not None:
            loaded = collect_python(file)
        else:
            raise SpecError(f"{file}: a Python spec file cannot be read here.", hint="Use YAML.")
        for spec in loaded:
            _check_owner(spec, owners.get(spec.name, {}))
        for spec in loaded:
            owners.setdefault(spec.name, {}).update(dict.fromkeys(_archs(spec), spec))
        specs.extend(loaded)
    _check_batch_names(specs)
    return _with_project(specs)


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
        base_dir: the folder that its paths are relative to.

    Raises:
        SpecError: the text is malformed.
    """
    return _read_file(parse_document(text, file), str(Path(base_dir).resolve()))


def _archs(spec: Spec) -> list[str | None]:
    """Return the architectures that a spec declares; None stands for a spec without targets."""
    return [resolve_target(name, spec.models).arch for name in spec.targets] or [None]


def _check_owner(spec: Spec, owners: dict[str | None, Spec]) -> None:
    """Check that a kernel with this name in another file is for other architectures."""
    own = _archs(spec)
    shared = [arch for arch in own if arch in owners]
    if shared or (owners and (None in own or None in owners)):
        other = owners[shared[0]] if shared else next(iter(owners.values()))
        what = f" for {shared[0]}" if shared and shared[0] else ""
        raise SpecError(
            f"kernel {spec.name!r} is declared in two files{what}.",
            location=spec.where("name"),
            hint=f"The other is at {other.where('name')}. Two files may declare one kernel "
            "for different architectures.",
        )


def _read_file(document: Document, base_dir: str) -> list[Spec]:
    at = Place(document.place, base_dir=base_dir)
    if isinstance(document.data, dict) and "schema" in document.data:  # first: others depend on it
        FILE_FIELDS[0].kind.read(document.data["schema"], at.child("schema"))
    fields: dict[str, Any] = FILE.read(document.data, at)
    models = _models(fields.get("models", {}), at.child("models"))
    file = _spec_file(fields, at, models, base_dir)
    if not ("kernels" in fields or "programs" in fields):
        raise at.error(
            "field 'kernels' is missing.", next(f.doc for f in FILE_FIELDS if f.name == "kernels")
        )
    specs = []
    for index, kernel in enumerate(fields.get("kernels", ())):
        place = at.child("kernels").child(index)
        specs.append(declare(kernel, kernel_place(place, kernel.get("name"), place.label), file))
    for index, program in enumerate(fields.get("programs", ())):
        place = at.child("programs").child(index)
        place = kernel_place(place, program.get("name"), place.label)
        specs.append(declare_program(program, place, base_dir, fields.get("machines", ())))
    return specs


def _spec_file(
    fields: Mapping[str, Any], at: Place, models: dict[str, Target], base_dir: str
) -> SpecFile:
    defaults = dict(fields.get("defaults", {}))
    places = {name: at.child("defaults").child(name) for name in defaults}
    if "targets" in fields:
        if "targets" in defaults:
            raise (
                at.child("defaults")
                .key("targets")
                .error("targets are given at the top of the file as well.", "Give them once.")
            )
        defaults["targets"] = fields["targets"]
        places["targets"] = at.child("targets")
    return SpecFile(base_dir, defaults, places, models)


def _models(
    declared: Mapping[str, Mapping[str, str | int | float]], at: Place
) -> dict[str, Target]:
    models: dict[str, Target] = {}
    for name, fields in declared.items():
        place = at.child(name)
        figures = {key: value for key, value in fields.items() if key not in ("arch", "like")}
        arch, like = (str(fields[key]) if key in fields else None for key in ("arch", "like"))
        if arch is not None:
            check_arch(arch, location=place.child("arch").location)
        if like is not None:
            resolve_target(like, models, location=place.child("like").location)
        with place.blamed():
            models[name] = make_model(name, figures, arch=arch, like=like, known=models)
    return models


def _check_batch_names(specs: Sequence[Spec]) -> None:
    """Check that `vmap` of each spec names a kernel of the same command.

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


def _with_project(specs: Iterable[Spec]) -> list[Spec]:
    """Add the environment variables that projects declare to their specs.

    Raises:
        SpecError: a project lists something other than names of variables.
    """
    declared: dict[str, tuple[str, ...]] = {}
    result = []
    for spec in specs:
        if spec.base_dir not in declared:
            declared[spec.base_dir] = project_env(spec.base_dir)
        names = declared[spec.base_dir]
        result.append(replace(spec, env=(*spec.env, *names)) if names else spec)
    return result


def project_env(folder: str) -> tuple[str, ...]:
    """Return the environment variables declared by the project around a folder.

    Raises:
        SpecError: the list is malformed.
    """
    project = project_table(folder)
    if project is None or _PROJECT_KEY not in project.values:
        return ()
    return VARIABLES_KIND.read(project.values[_PROJECT_KEY], project.at.child(_PROJECT_KEY))


def spec_files(paths: Iterable[str | Path], *, on_skip: OnSkip = lambda text: None) -> list[str]:
    """Return the spec files in these paths, each once, in the given order.

    Args:
        paths: YAML and Python spec files, and folders.
        on_skip: called if folders in a folder have specs that are not read.

    Raises:
        SpecError: a path does not exist or is not a spec file, or a folder has none.
    """
    files: dict[Path, str] = {}
    for path in paths:
        for file in _files_of(Path(path), on_skip):
            files.setdefault(file.resolve(), str(file))
    return list(files.values())


def _files_of(path: Path, on_skip: OnSkip) -> list[Path]:
    if path.is_dir():
        return _files_in(path, on_skip)
    if not path.exists():
        raise SpecError(f"{path}: there is no such file.", hint=_missing_hint(path))
    if path.name.endswith(TABLE_SUFFIX):
        raise SpecError(
            f"{path}: this is a table of tuned kernels, not a spec file.",
            hint="Name the specs, which find their tables themselves.",
        )
    if path.suffix not in (*YAML_SUFFIXES, ".py"):
        raise SpecError(f"{path}: not a spec file.", hint="Specs are *.yaml, *.yml or *.py files.")
    check_regular(str(path))
    return [path]


def _missing_hint(path: Path) -> str | None:
    if not path.parent.is_dir():
        return None
    near = nearest(path.name, (child.name for child in path.parent.iterdir()))
    return f"Did you mean {str(path.parent / near)!r}?" if near else None


def _files_in(folder: Path, on_skip: OnSkip) -> list[Path]:
    children = sorted(folder.iterdir())
    files = [child for child in children if child.suffix in YAML_SUFFIXES or _is_spec(child)]
    files = [file for file in files if not file.name.endswith(TABLE_SUFFIX)]
    below = [
        str(child)
        for child in children
        if child.is_dir() and child.name[0] not in "._" and any(map(_is_spec, child.iterdir()))
    ]
    if not files:
        inside = f" {below[0]} has some: name it." if below else ""
        raise SpecError(
            f"{folder}: no spec files (*.yaml, *.yml, or *.py that declares kernels) in this "
            f"folder.{inside}",
            hint="pallasc init writes an example.",
        )
    if below:
        on_skip(f"specs in {', '.join(below)} are not read: name the folders to read them.")
    return files


def _is_spec(file: Path) -> bool:
    if file.suffix in YAML_SUFFIXES:
        return _IS_YAML_SPEC.search(_content(file)) is not None
    return file.suffix == ".py" and declares_kernels(_content(file))


def _content(file: Path) -> bytes:
    """Return a file's bytes; empty if it is not a regular file, is unreadable, or is huge."""
    try:
        if not file.is_file() or file.stat().st_size > _MOST_BYTES:
            return b""
        return file.read_bytes()
    except OSError:
        return b""


class SpecFile(Struct, frozen=True):
    """Data that all kernels of a spec file share.

    Attributes:
        base_dir: absolute folder of the spec file.
        defaults: fields for kernels that omit them, already checked.
        places: place of each default.
        models: models that the file defines.
        documents: data files that were read, by path.
        rows: each table of the file and its rows, by the `id()` of the table.
    """

    base_dir: str
    defaults: Mapping[str, object] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)
    models: Mapping[str, Target] = field(default_factory=dict)
    documents: dict[str, Document] = field(default_factory=dict)
    rows: dict[int, tuple[Table, tuple[Row, ...]]] = field(default_factory=dict)


def declare(fields: Mapping[str, object], at: Place, file: SpecFile) -> Spec:
    """Check the fields of one kernel and return its spec.

    Raises:
        SpecError: a field is wrong or missing, or refers to something that does not exist.
    """
    own = PARTIAL_KERNEL.read(fields, at)
    values: dict[str, Any] = {**file.defaults, **own}
    places = {name: at.child(name) if name in own else file.places[name] for name in values}
    for known in KERNEL_FIELDS:
        if known.required and known.name not in values:
            raise at.error(f"field {known.name!r} is missing.", known.doc)
    _check_names(values["args"], values.get("static", {}), places)
    for index, name in enumerate(values.get("targets", ())):
        where = places["targets"].child(index).location
        resolve_target(name, file.models, location=where)
    if "matrix" in values:
        values.update(_points(values["matrix"], places["matrix"], file))
    if "files" in values:
        values["files"] = _data_files(values["files"], places["files"], file.base_dir)
    if "tune" in values:
        tune = values["tune"]
        rows = tuple(row.values for row in values.get("rows", ()))
        given = given_values(
            values.get("matrix", {}), rows, values.get("include", ()), tune["over"]
        )
        values["tune"] = made_tune(tune, given, places["tune"])
    return Spec(  # the kinds have checked the types of all fields
        **values,
        location=at.location,
        base_dir=file.base_dir,
        models=dict(file.models),
        places=places,
    )


def declare_program(
    fields: Mapping[str, object], at: Place, base_dir: str, machines: Sequence[str] = ()
) -> Spec:
    """Check the fields of one program and return its spec; `machines` are the file's own.

    Raises:
        SpecError: a field is wrong or missing, or refers to something that does not exist.
    """
    from pallasc.specs.loading.programs import divide_program  # most files have no programs

    kernel, models, own = divide_program(fields, at, base_dir, machines)
    return replace(declare(kernel, at, SpecFile(base_dir, models=models)), program=own)


def _check_names(
    args: Collection[Value], static: Mapping[str, Value], places: Mapping[str, Place]
) -> None:
    for name in static:
        if isinstance(args, dict) and name in args:
            message = f"argument {name!r} is given under 'args' as well."
            raise places["static"].key(name).error(message, "Give it once.")


def _points(matrix: Matrix, at: Place, file: SpecFile) -> dict[str, object]:
    table, known = matrix.table, file.rows
    if table is None:
        return {"matrix": matrix.axes}
    at = at.child(FILE_KEY)
    if id(table) not in known:
        known[id(table)] = (table, read_rows(table, at, file.base_dir, file.documents))
    rows = known[id(table)][1]
    for name in matrix.axes:
        if name in rows[0].values:
            raise at.error(f"its rows give parameter {name!r}, and so does the matrix.")
    path = check_data_file(table.path, file.base_dir)
    return {"matrix": matrix.axes, "rows": rows, "table": path}


def _data_files(files: tuple[str, ...], at: Place, base_dir: str) -> tuple[str, ...]:
    paths = []
    for index, name in enumerate(files):
        with at.child(index).blamed():
            paths.append(check_data_file(name, base_dir))
    return tuple(paths)


def kernel_place(at: Place, name: object, otherwise: str) -> Place:
    """Return a kernel's place, labeled with the kernel's name if it has one."""
    origin = name if isinstance(name, str) and name else otherwise
    return at._replace(origin=origin, skip=len(at.path))
