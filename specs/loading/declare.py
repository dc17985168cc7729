"""Build a spec from the fields of one kernel; shared by both loaders."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from pallasc.errors import Location
from pallasc.specs.entries import check_data_file
from pallasc.specs.fields import PathParts, Place
from pallasc.specs.gpus import Target, resolve_target
from pallasc.specs.loading.schema import KERNEL_FIELDS, PARTIAL_KERNEL
from pallasc.specs.loading.tables import FILE_KEY, Matrix, Table, read_rows
from pallasc.specs.loading.tune_fields import given_values, made_tune
from pallasc.specs.loading.yaml_text import Document
from pallasc.specs.spec import Row, Spec
from pallasc.specs.templates import Value

if TYPE_CHECKING:
    from pallasc.specs.tuning import Tune


class SpecFile(Struct, frozen=True):
    """Data that all kernels of a spec file share.

    Attributes:
        base_dir: absolute folder of the spec file.
        defaults: fields for kernels that omit them, already checked.
        places: place of each default.
        models: models that the file defines.
        locations: positions of the values in defaults, by the default's name.
        documents: data files that were read, by path.
        rows: each table of the file and its rows, by the `id()` of the table.
    """

    base_dir: str
    defaults: Mapping[str, object] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)
    models: Mapping[str, Target] = field(default_factory=dict)
    locations: dict[str, dict[str, Location]] = field(default_factory=dict)
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
    if "targets" in own:
        check_targets(values["targets"], places["targets"], file.models)
    locations = _locations(own, values, places, file)
    if "matrix" in values:
        values.update(_points(values["matrix"], places["matrix"], file))
    if "files" in values:
        values["files"] = _data_files(values["files"], places["files"], file.base_dir)
    if "tune" in values:
        values["tune"] = _tune(values, places["tune"])
    return Spec(  # the kinds have checked the types of all fields
        **values,
        location=at.location,
        base_dir=file.base_dir,
        models=dict(file.models),
        locations=locations,
    )


def _check_names(
    args: Collection[Value], static: Mapping[str, Value], places: Mapping[str, Place]
) -> None:
    for name in static:
        if isinstance(args, dict) and name in args:
            message = f"argument {name!r} is given under 'args' as well."
            raise places["static"].child(name).error(message, "Give it once.", at_key=True)


def check_targets(names: tuple[str, ...], at: Place, models: Mapping[str, Target]) -> None:
    """Check the targets that a spec names.

    Raises:
        SpecError: a target does not exist.
    """
    for index, name in enumerate(names):
        resolve_target(name, models, location=at.child(index).location)


def _points(matrix: Matrix, at: Place, file: SpecFile) -> dict[str, object]:
    table, known = matrix.table, file.rows
    if table is None:
        return {"matrix": matrix.axes}
    at = at.child(table.named)
    if id(table) not in known:
        known[id(table)] = (table, read_rows(table, at, file.base_dir, file.documents))
    rows = known[id(table)][1]
    for name in matrix.axes:
        if name in rows[0].values:
            raise at.error(f"its rows give parameter {name!r}, and so does the matrix.")
    path = check_data_file(table.path, file.base_dir)
    return {"matrix": matrix.axes, "rows": rows, "table": path}


def _tune(values: Mapping[str, Any], at: Place) -> Tune:
    fields, over = values["tune"], values["tune"]["over"]
    rows = tuple(row.values for row in values.get("rows", ()))
    given = given_values(values.get("matrix", {}), rows, values.get("include", ()), over)
    return made_tune(fields, given, at)


def _data_files(files: tuple[str, ...], at: Place, base_dir: str) -> tuple[str, ...]:
    paths = []
    for index, name in enumerate(files):
        with at.child(index).blamed():
            paths.append(check_data_file(name, base_dir))
    return tuple(paths)


def _locations(
    own: Mapping[str, object],
    values: Mapping[str, object],
    places: Mapping[str, Place],
    file: SpecFile,
) -> Mapping[str, Location]:
    """Return the positions of a kernel's own fields and of the defaults, by dotted path."""
    given: dict[str, Location] = {}
    for name in own:
        given.update(_places(values[name], places[name], (name,)))
    defaults = [name for name in values if name not in own]
    for name in defaults:
        if name not in file.locations:
            file.locations[name] = dict(_places(values[name], places[name], (name,)))
    return ChainMap(given, *(file.locations[name] for name in defaults))


def _places(value: object, at: Place, path: PathParts) -> Iterator[tuple[str, Location]]:
    yield ".".join(map(str, path)), at.location
    items: Iterable[tuple[str | int, object]] = ()
    if isinstance(value, Matrix):
        if value.table is not None:
            yield f"matrix.{FILE_KEY}", at.child(value.table.named).location
        items = value.axes.items()
    elif isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    for key, item in items:
        yield from _places(item, at.child(key), (*path, key))


def kernel_place(at: Place, name: object, otherwise: str) -> Place:
    """Return a kernel's place, labeled with the kernel's name if it has one."""
    origin = name if isinstance(name, str) and name else otherwise
    return at._replace(origin=origin, skip=len(at.path))
