"""Make a spec from the fields of one kernel, for both loaders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from pallasc.errors import Location
from pallasc.specs.entries import check_data_file, check_entry, parse_entry
from pallasc.specs.fields import PathParts, Place
from pallasc.specs.gpus import Target
from pallasc.specs.loading.kernel_fields import KERNEL_FIELDS, PARTIAL_KERNEL
from pallasc.specs.loading.parameter_fields import FILE_KEY, JSON_KEY, NODES, Matrix, Table
from pallasc.specs.loading.tune_fields import given_values, made_tune
from pallasc.specs.loading.yaml_text import Document
from pallasc.specs.spec import Row, Spec
from pallasc.specs.targets import resolve_target
from pallasc.specs.templates import is_template

if TYPE_CHECKING:
    from pallasc.specs.tuning import Tune


class SpecFile(Struct, frozen=True):
    """What a spec file gives to each of its kernels.

    Attributes:
        base_dir: absolute folder of the spec file.
        defaults: fields for kernels that do not give them, already checked.
        places: place of each default.
        models: the file's own models.
        shared: what its kernels have in common.
    """

    base_dir: str
    defaults: Mapping[str, object] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)
    models: Mapping[str, Target] = field(default_factory=dict)
    shared: _Shared = field(default_factory=lambda: _Shared())


class _Shared:
    """What is done once for all kernels of a file: a default may be large, and kernels many.

    Attributes:
        checked: names of the defaults whose entry points were checked.
        locations: places of the values of defaults, by the default's name.
        documents: data files that were read, by path.
        rows: each table of the file and its rows, by the identity of the table.
    """

    def __init__(self) -> None:
        self.checked: set[str] = set()
        self.locations: dict[str, dict[str, Location]] = {}
        self.documents: dict[str, Document] = {}
        self.rows: dict[int, tuple[Table, tuple[Row, ...]]] = {}


def declare(fields: Mapping[str, object], at: Place, file: SpecFile) -> Spec:
    """Check one kernel's fields and return its spec.

    Raises:
        SpecError: a field is wrong or missing, or names what does not exist.
    """
    own = PARTIAL_KERNEL.read(fields, at)
    values = {**file.defaults, **own}
    places = {name: at.child(name) if name in own else file.places[name] for name in values}
    for known in KERNEL_FIELDS:
        if known.required and known.name not in values:
            raise at.error(f"field {known.name!r} is missing.", known.doc)
    _check_names(values, places)
    _check_existence(values, own, places, file)
    if isinstance(matrix := values.get("matrix"), Matrix):
        named = matrix.table.named if matrix.table else FILE_KEY
        values.update(_points(matrix, places["matrix"].child(named), file))
    if isinstance(files := values.get("files"), tuple):
        values["files"] = _data_files(files, places["files"], file.base_dir)
    locations = _locations(own, values, places, file)
    if "tune" in values:
        values["tune"] = _tune(values, places["tune"])
    make: Callable[..., Spec] = Spec  # whose fields are of the kinds that were read
    return make(
        **values,
        location=at.location,
        base_dir=file.base_dir,
        models=dict(file.models),
        locations=locations,
    )


def _check_names(values: Mapping[str, object], places: Mapping[str, Place]) -> None:
    args, static = values["args"], values.get("static")
    if isinstance(args, dict) and isinstance(static, dict):
        for name in args.keys() & static.keys():
            message = f"argument {name!r} is given under 'args' as well."
            raise places["static"].child(name).error(message, "Give it once.", at_key=True)


def _check_existence(
    values: Mapping[str, object],
    own: Mapping[str, object],
    places: Mapping[str, Place],
    file: SpecFile,
) -> None:
    """Check that entry points and targets exist; those of a default once for a file."""
    checked = file.shared.checked
    new = {name: value for name, value in values.items() if name in own or name not in checked}
    checked.update(name for name in new if name not in own)
    entries = [(places[name], new[name]) for name in ("entry", "reference") if name in new]
    for name in ("args", "static", "matrix", "include", "tune"):
        if name in new:
            entries.extend(_nodes(new[name], places[name]))
    for place, entry in entries:
        if isinstance(entry, str) and not is_template(entry):  # others once they are filled in
            with place.blamed():
                check_entry(parse_entry(entry), file.base_dir)
    if isinstance(targets := new.get("targets"), tuple):
        check_targets(targets, places["targets"], file.models)


def check_targets(names: tuple[str, ...], at: Place, models: Mapping[str, Target]) -> None:
    """Check the targets that a spec names.

    Raises:
        SpecError: there is no such target.
    """
    for index, name in enumerate(names):
        resolve_target(name, models, location=at.child(index).location)


def _points(matrix: Matrix, at: Place, file: SpecFile) -> dict[str, object]:
    """Return the fields of a spec that a matrix gives."""
    table, known = matrix.table, file.shared.rows
    if table is None:
        return {"matrix": matrix.axes}
    if id(table) not in known:
        from pallasc.specs.loading.tables import read_rows

        known[id(table)] = (table, read_rows(table, at, file.base_dir, file.shared.documents))
    rows = known[id(table)][1]
    for name in matrix.axes:
        if name in rows[0].values:
            raise at.error(f"its rows give parameter {name!r}, and so does the matrix.")
    path = check_data_file(table.path, file.base_dir)
    return {"matrix": matrix.axes, "rows": rows, "table": path}


def _tune(values: Mapping[str, Any], at: Place) -> Tune:
    """Return `tune` as a spec has it."""
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


def _nodes(value: object, at: Place) -> Iterator[tuple[Place, object]]:
    """Yield the entry points that `$call` and `$ref` name in a tree."""
    for key, item in _items(value):
        if key in NODES:
            yield at.child(key), item
        else:
            yield from _nodes(item, at.child(key))


def _items(value: object) -> Iterator[tuple[str | int, object]]:
    """Yield the keys and values of a mapping, or the indices and items of a list."""
    value = value.axes if isinstance(value, Matrix) else value
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list | tuple):
        yield from enumerate(value)


class _Locations(Mapping[str, Location]):
    """Places by dotted path: those of a kernel's own fields, and those of the defaults."""

    def __init__(self, fields: Mapping[str, Mapping[str, Location]]) -> None:
        self._fields = fields

    def __getitem__(self, path: str) -> Location:
        return self._fields[path.partition(".")[0]][path]

    def __iter__(self) -> Iterator[str]:
        return (path for places in self._fields.values() for path in places)

    def __len__(self) -> int:
        return sum(map(len, self._fields.values()))


def _locations(
    own: Mapping[str, object],
    values: Mapping[str, object],
    places: Mapping[str, Place],
    file: SpecFile,
) -> _Locations:
    fields: dict[str, dict[str, Location]] = {}
    for name, place in places.items():
        known = {} if name in own else file.shared.locations
        if name not in known:
            known[name] = dict(_places(values[name], place, (name,)))
            if name == "matrix" and "rows" in values:
                given = (place.child(key).location for key in (FILE_KEY, JSON_KEY))
                found = next((at for at in given if at != place.location), place.location)
                known[name][f"matrix.{FILE_KEY}"] = found
        fields[name] = known[name]
    return _Locations(fields)


def _places(value: object, at: Place, path: PathParts) -> Iterator[tuple[str, Location]]:
    yield ".".join(map(str, path)), at.location
    for key, item in _items(value):
        yield from _places(item, at.child(key), (*path, key))


def kernel_place(at: Place, name: object, otherwise: str) -> Place:
    """Return a kernel's place, which messages call by the kernel's name if it has one."""
    origin = name if isinstance(name, str) and name else otherwise
    return at._replace(origin=origin, skip=len(at.path))
