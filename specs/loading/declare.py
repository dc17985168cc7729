"""Make a spec from the fields that an author gave, for both loaders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pallasc.errors import Location
from pallasc.specs.entries import check_data_file, check_entry, parse_entry
from pallasc.specs.fields import PathParts, Place
from pallasc.specs.gpus import Target
from pallasc.specs.loading.entry_fields import NODES
from pallasc.specs.loading.kernel_fields import KERNEL_FIELDS, PARTIAL_KERNEL
from pallasc.specs.loading.parameter_fields import FILE_KEY
from pallasc.specs.loading.tables import read_rows
from pallasc.specs.loading.yaml_text import Document
from pallasc.specs.spec import Row, Spec
from pallasc.specs.targets import resolve_target
from pallasc.specs.templates import is_template


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a file gives to each of its kernels.

    Attributes:
        base_dir: absolute folder of the spec file.
        defaults: fields for kernels that do not give them, already checked.
        places: where each default stands.
        models: the file's own models.
    """

    base_dir: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)
    models: Mapping[str, Target] = field(default_factory=dict)
    shared: _Shared = field(default_factory=lambda: _Shared())


@dataclass(slots=True)
class _Shared:
    """What the kernels of a file need once: a default may be large, and kernels many.

    Attributes:
        checked: defaults whose entry points were looked for.
        locations: places of the values of defaults.
        documents: data files that were read.
        rows: the mapping under `$file` and what it gave, by the identity of the mapping.
    """

    checked: set[str] = field(default_factory=set)
    locations: dict[str, dict[str, Location]] = field(default_factory=dict)
    documents: dict[str, Document] = field(default_factory=dict)
    rows: dict[int, tuple[Any, tuple[Row, ...]]] = field(default_factory=dict)


def declare(given: dict[str, Any], at: Place, around: Surroundings) -> Spec:
    """Check one kernel's fields and return its spec.

    Raises:
        SpecError: a field is wrong or missing, or names what does not exist.
    """
    own = PARTIAL_KERNEL.read(given, at)
    values = {**around.defaults, **own}
    places = {name: at.child(name) if name in own else around.places[name] for name in values}
    for known in KERNEL_FIELDS:
        if known.required and known.name not in values:
            raise at.error(f"field {known.name!r} is missing.", known.doc)
    _check_names(values, places)
    _check_existence(values, own, places, around)
    if FILE_KEY in values.get("matrix", {}):
        _read_table(values, places["matrix"].child(FILE_KEY), around)
    if "files" in values:
        values["files"] = _data_files(values["files"], places["files"], around.base_dir)
    return Spec(
        **values,
        location=at.location,
        base_dir=around.base_dir,
        models=dict(around.models),
        locations=_locations(own, values, places, around),
    )


def _check_names(values: dict[str, Any], places: Mapping[str, Place]) -> None:
    if isinstance(values["args"], dict):
        for name in values["args"].keys() & values.get("static", {}).keys():
            raise (
                places["static"]
                .child(name)
                .error(
                    f"argument {name!r} stands under 'args' as well.",
                    "Give an argument once.",
                    at_key=True,
                )
            )


def _check_existence(
    values: dict[str, Any],
    own: Mapping[str, Any],
    places: Mapping[str, Place],
    around: Surroundings,
) -> None:
    checked = around.shared.checked
    new = {name: value for name, value in values.items() if name in own or name not in checked}
    checked.update(name for name in new if name not in own)
    entries = [(places[name], new[name]) for name in ("entry", "reference") if name in new]
    for name in ("args", "static", "matrix", "include"):
        entries.extend(_nodes(new.get(name), places.get(name)))
    for place, entry in entries:
        if is_template(entry):
            continue  # looked for once it is filled in
        with place.blamed():
            check_entry(parse_entry(entry), around.base_dir)
    for index, name in enumerate(new.get("targets", ())):
        check_target(name, places["targets"].child(index), around.models)


def _read_table(values: dict[str, Any], at: Place, around: Surroundings) -> None:
    """Put the rows of a file in the place of what says where they are."""
    table = values["matrix"][FILE_KEY]
    found = around.shared.rows
    if id(table) not in found:
        rows = read_rows(table, at, around.base_dir, around.shared.documents)
        found[id(table)] = (table, rows)
    values["rows"] = found[id(table)][1]
    values["table"] = check_data_file(table["path"], around.base_dir)
    values["matrix"] = {k: item for k, item in values["matrix"].items() if k != FILE_KEY}
    for name in values["matrix"]:
        if name in values["rows"][0].values:
            raise at.error(f"its rows give parameter {name!r}, and so does the matrix.")


def check_target(name: str, at: Place, models: Mapping[str, Target]) -> Target:
    """Return the target of a name that stands in a spec.

    Raises:
        SpecError: there is no such target.
    """
    return resolve_target(name, models, location=at.location)


def _data_files(files: tuple[str, ...], at: Place, base_dir: str) -> tuple[str, ...]:
    found = []
    for index, name in enumerate(files):
        with at.child(index).blamed():
            found.append(check_data_file(name, base_dir))
    return tuple(found)


def _nodes(value: Any, at: Any) -> Iterator[tuple[Place, str]]:
    if isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _nodes(item, at.child(index))
    elif isinstance(value, dict):
        for key, item in value.items():
            if key in NODES:
                yield at.child(key), item
            else:
                yield from _nodes(item, at.child(key))


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
    own: Mapping[str, Any],
    values: Mapping[str, Any],
    places: Mapping[str, Place],
    around: Surroundings,
) -> _Locations:
    fields: dict[str, dict[str, Location]] = {}
    for name, place in places.items():
        known = {} if name in own else around.shared.locations
        if name not in known:
            found: dict[str, Location] = {}
            _collect(values[name], place, (name,), found)
            if name == "matrix" and "rows" in values:
                found[f"matrix.{FILE_KEY}"] = place.child(FILE_KEY).location
            known[name] = found
        fields[name] = known[name]
    return _Locations(fields)


def _collect(value: Any, at: Place, path: PathParts, found: dict[str, Location]) -> None:
    found[".".join(map(str, path))] = at.location
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    for key, item in items:
        _collect(item, at.child(key), (*path, key), found)


def named(at: Place, name: object, otherwise: str) -> Place:
    """Return a kernel's place with its name for the messages, if it has one."""
    origin = name if isinstance(name, str) and name else otherwise
    return replace(at, origin=origin, skip=len(at.path))
