"""Load specs from files and folders: YAML directly, Python through a given collector.

In `pyproject.toml`, a project can list environment variables that all of its kernels can see, like
the field `env` of one kernel:

    [tool.pallasc]
    env = ["KERNEL_TILE"]

The project is the nearest folder with a `pyproject.toml`, from the spec's folder upwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from pallasc.errors import SpecError
from pallasc.specs.canonical import plain
from pallasc.specs.entries import check_data_file, normal_path
from pallasc.specs.fields import Place
from pallasc.specs.gpus import Target, check_arch, make_model, resolve_target
from pallasc.specs.loading.files import TABLE_SUFFIX, OnSkip, spec_files
from pallasc.specs.loading.schema import (
    FILE,
    FILE_FIELDS,
    KERNEL_FIELDS,
    PARTIAL_KERNEL,
    PROGRAM,
    VARIABLES_KIND,
)
from pallasc.specs.loading.tables import FILE_KEY, Matrix, read_rows
from pallasc.specs.loading.yaml_text import Document, parse_document, read_document
from pallasc.specs.settings import project_table
from pallasc.specs.spec import Spec
from pallasc.specs.spelling import show, suggestion
from pallasc.specs.templates import Scalar, Value, label_of, typed

if TYPE_CHECKING:
    from pallasc.specs.machine import Programs
    from pallasc.specs.tuning import Tune

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


class SpecFile(Struct, frozen=True):
    """Data that all kernels of a spec file share.

    Attributes:
        base_dir: absolute folder of the spec file.
        defaults: fields for kernels that omit them, already checked.
        places: place of each default.
        models: models that the file defines.
        documents: data files that were read, by path.
    """

    base_dir: str
    defaults: Mapping[str, object] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)
    models: Mapping[str, Target] = field(default_factory=dict)
    documents: dict[str, Document] = field(default_factory=dict)


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
        values["tune"] = _tune(values["tune"], _given_values(values), places["tune"])
    return Spec(  # the kinds have checked the types of all fields
        **values,
        location=at.location,
        base_dir=file.base_dir,
        models=dict(file.models),
        places=places,
    )


def _check_names(
    args: Collection[Value], static: Mapping[str, Value], places: Mapping[str, Place]
) -> None:
    for name in static:
        if isinstance(args, dict) and name in args:
            message = f"argument {name!r} is given under 'args' as well."
            raise places["static"].key(name).error(message, "Give it once.")


def _points(matrix: Matrix, at: Place, file: SpecFile) -> dict[str, object]:
    table = matrix.table
    if table is None:
        return {"matrix": matrix.axes}
    at = at.child(FILE_KEY)
    rows = read_rows(table, at, file.base_dir, file.documents)
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


# ---- tuned kernels


def table_of(spec_file: str) -> str:
    """Return the default name of a spec file's table."""
    return f"{PurePath(spec_file).stem}{TABLE_SUFFIX}"


def _given_values(fields: Mapping[str, Any]) -> dict[str, list[Value]]:
    """Return the possible values of each parameter that is not tuned, in the points' order."""
    matrix, rows = fields.get("matrix", {}), fields.get("rows", ())
    given: dict[str, list[Value]] = {}
    for row in rows:
        for name, value in row.values.items():
            given.setdefault(name, []).append(value)
    given |= {name: list(values) for name, values in matrix.items()}
    for point in fields.get("include", ()):
        for name, value in point.items():
            if name in given or not (matrix or rows or name in fields["tune"]["over"]):
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

    over: dict[str, tuple[Value, ...]] = fields["over"]
    by, buckets = fields.get("by", tuple(given)), fields.get("buckets", {})
    pad = fields.get("pad", {})
    for name in over:
        if name in given:
            message = f"parameter {name!r} is in the matrix as well."
            raise at.child("over").key(name).error(message, "Give it once.")
    for key, names, what, known in (
        ("by", by, "parameter of the matrix", given),
        ("buckets", buckets, "parameter of 'by'", by),
        ("pad", pad, "parameter with buckets", buckets),
        ("default", fields.get("default", ()), "tuned parameter", over),
    ):
        for name in names:
            if name not in known:
                place, hint = at.child(key).key(name), suggestion(name, known)
                raise place.error(f"{show(name)} is not a {what}.", hint)
    for name in buckets:
        for value in given[name]:
            if type(value) is not int or value < 0:
                message = f"buckets hold whole numbers, and {name} can be {show(value)}."
                raise at.child("buckets").key(name).error(message, "Remove its buckets.")
    table = table_of(at.location.file)
    if "table" in fields:
        with at.child("table").blamed():
            table = normal_path(fields["table"])
    default = (
        _default(fields["default"], over, at.child("default")) if "default" in fields else None
    )
    return Tune(over, by, buckets, pad, default, table)


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

_OWN = ("machines", "donate", "shardings", "explicit")


def declare_program(
    fields: Mapping[str, object], at: Place, base_dir: str, machines: Sequence[str] = ()
) -> Spec:
    """Check the fields of one program, read its machine files, and return its spec.

    Args:
        fields: the fields, as plain data.
        at: the place of the program.
        base_dir: the spec's folder.
        machines: machine files of programs that name none.

    Raises:
        SpecError: a field or a machine file is wrong or missing.
    """
    from pallasc.specs.machine import Programs, read_machine  # most files have no programs

    values: dict[str, Any] = PROGRAM.read(fields, at)
    named = values.get("machines", tuple(machines))
    if not named:
        raise at.error("field 'machines' is missing.", "Add machines: [machine.json]; write the "
                       "file where the GPU is, with pallasc machine.")  # fmt: skip
    place = at.child("machines")
    own = Programs(
        {}, named, values.get("donate", ()), values.get("shardings", {}), values.get("explicit", ())
    )
    models: dict[str, Target] = {}
    for index, file in enumerate(named):
        where = place.child(index) if "machines" in values else at
        with where.blamed():
            machine = read_machine(Path(base_dir, check_data_file(file, base_dir)))
            name = Path(file).stem
            if name in models:
                raise SpecError(f"two machine files are named {name}.", hint="Rename one of them.")
            models[name] = machine.target(name)
            own.machines[name] = machine
    _check_shardings(own, values, at)
    kernel = {key: value for key, value in fields.items() if key not in _OWN}
    file = SpecFile(base_dir, models=models)
    return replace(declare({**kernel, "targets": [*models]}, at, file), program=own)


def _check_shardings(own: Programs, values: Mapping[str, Any], at: Place) -> None:
    """Check that donations and shardings name arguments, and shardings axes of the mesh."""
    args, mesh = values["args"], values.get("mesh", {})
    names = [*args] if isinstance(args, dict) else [*map(str, range(len(args)))]
    for index, name in enumerate(own.donate):
        if name not in names:
            raise at.child("donate").child(index).error(f"there is no argument {name!r} in args.")
    known = f"Its axes: {', '.join(mesh) or 'none'}."
    for axis in own.explicit:
        if axis not in mesh:
            raise at.child("explicit").error(f"the mesh has no axis {axis!r}.", known)
    for path, dimensions in own.shardings.items():
        place = at.child("shardings").child(path)
        if path.partition(".")[0] not in names:
            raise place.error(f"there is no argument {path.partition('.')[0]!r} in args.")
        for axes in dimensions:
            for axis in (axes,) if isinstance(axes, str) else axes or ():
                if axis not in mesh:
                    raise place.error(f"the mesh has no axis {axis!r}.", known)
