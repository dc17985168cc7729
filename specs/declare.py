"""Make a spec from the fields that an author gave, for both loaders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pallasc.errors import Location
from pallasc.specs.entries import check_data_file, check_entry, parse_entry
from pallasc.specs.fields import PathParts, Place
from pallasc.specs.kernel_fields import KERNEL_FIELDS, NODES, PARTIAL_KERNEL
from pallasc.specs.spec import Spec
from pallasc.specs.targets import Target, resolve_target


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
    _check_existence(values, places, around)
    if "files" in values:
        values["files"] = _data_files(values["files"], places["files"], around.base_dir)
    return Spec(
        **values,
        location=at.location,
        base_dir=around.base_dir,
        models=dict(around.models),
        locations=_locations(values, places),
    )


def _check_names(values: dict[str, Any], places: Mapping[str, Place]) -> None:
    if isinstance(values["args"], dict):
        for name in values.get("static", {}):
            if name in values["args"]:
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
    values: dict[str, Any], places: Mapping[str, Place], around: Surroundings
) -> None:
    entries = [(places[name], values[name]) for name in ("entry", "reference") if name in values]
    for name in ("args", "static"):
        if name in values:
            entries.extend(_nodes(values[name], places[name]))
    for place, entry in entries:
        with place.blamed():
            check_entry(parse_entry(entry), around.base_dir)
    for index, name in enumerate(values.get("targets", ())):
        check_target(name, places["targets"].child(index), around.models)


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


def _nodes(value: Any, at: Place) -> Iterator[tuple[Place, str]]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _nodes(item, at.child(index))
    elif isinstance(value, dict):
        for key, item in value.items():
            if key in NODES:
                yield at.child(key), item
            else:
                yield from _nodes(item, at.child(key))


def _locations(values: dict[str, Any], places: Mapping[str, Place]) -> dict[str, Location]:
    found: dict[str, Location] = {}
    for name, value in values.items():
        _collect(value, places[name], (name,), found)
    return found


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
