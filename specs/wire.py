"""Specs and variants as plain JSON, to carry them between processes of one version.

Mappings keep their order, so do not sort the keys of the text. Nothing of this is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from msgspec import structs

from pallasc.errors import Location
from pallasc.specs.arrays import looks_like_array, resolve_array
from pallasc.specs.gpus import Target
from pallasc.specs.spec import Budget, Check, Row, Spec, Tolerance, Variant, plain_args

if TYPE_CHECKING:
    from pallasc.specs.tuning import Tune


def spec_to_json(spec: Spec) -> dict[str, object]:
    """Return a spec as plain data."""
    return {
        **structs.asdict(spec),
        "matrix": [[name, list(values)] for name, values in spec.matrix.items()],
        "rows": [[list(row.values.items()), location_to_json(row.location)] for row in spec.rows],
        "include": [list(point.items()) for point in spec.include],
        "exclude": [list(point.items()) for point in spec.exclude],
        "models": {name: asdict(model) for name, model in spec.models.items()},
        "mesh": [list(axis) for axis in spec.mesh.items()],
        "tune": _tune_to_json(spec.tune) if spec.tune is not None else None,
        "location": location_to_json(spec.location),
        "locations": {path: location_to_json(place) for path, place in spec.locations.items()},
    }


def spec_from_json(data: Mapping[str, Any]) -> Spec:
    """Return the spec that `spec_to_json` was given."""
    changed = {
        "matrix": {name: tuple(values) for name, values in data["matrix"]},
        "rows": tuple(Row(dict(v), location_from_json(place)) for v, place in data["rows"]),
        "include": tuple(dict(point) for point in data["include"]),
        "exclude": tuple(dict(point) for point in data["exclude"]),
        "targets": tuple(data["targets"]),
        "models": {name: Target(**model) for name, model in data["models"].items()},
        "files": tuple(data["files"]),
        "env": tuple(data["env"]),
        "mesh": dict(data["mesh"]),
        "tune": _tune_from_json(data["tune"]) if data["tune"] is not None else None,
        "location": location_from_json(data["location"]),
        "locations": {path: location_from_json(p) for path, p in data["locations"].items()},
    }
    make: Callable[..., Spec] = Spec
    return make(**{**data, **changed})


def _tune_to_json(tune: Tune) -> dict[str, object]:
    return {**asdict(tune), "over": [[name, list(values)] for name, values in tune.over.items()]}


def _tune_from_json(data: Mapping[str, Any]) -> Tune:
    from pallasc.specs.tuning import Tune, buckets_from

    changed = {
        "over": {name: tuple(values) for name, values in data["over"]},
        "by": tuple(data["by"]),
        "buckets": {name: buckets_from(own) for name, own in data["buckets"].items()},
    }
    return Tune(**{**data, **changed})


def variant_to_json(variant: Variant) -> dict[str, object]:
    """Return a variant as plain data; what tables say of it stays behind."""
    return {
        **structs.asdict(variant),
        "target": asdict(variant.target),
        "args": plain_args(variant.args, in_order=True),
        "tolerance": structs.asdict(variant.tolerance) if variant.tolerance else None,
        "budget": structs.asdict(variant.budget),
        "check": _check_to_json(variant.check) if variant.check else None,
        "tuning": None,
        "location": location_to_json(variant.location),
        "locations": {},
    }


def variant_from_json(data: Mapping[str, Any]) -> Variant:
    """Return the variant that `variant_to_json` was given."""
    changed = {
        "params": tuple((name, value) for name, value in data["params"]),
        "target": Target(**data["target"]),
        "args": _args_from_json(data["args"]),
        "tolerance": Tolerance(**data["tolerance"]) if data["tolerance"] else None,
        "budget": Budget(**data["budget"]),
        "files": tuple(data["files"]),
        "env": tuple(data["env"]),
        "mesh": tuple((name, size) for name, size in data["mesh"]),
        "check": _check_from_json(data["check"]) if data["check"] else None,
        "location": location_from_json(data["location"]),
    }
    make: Callable[..., Variant] = Variant
    return make(**{**data, **changed})


def _check_to_json(check: Check) -> dict[str, object]:
    return {
        "params": [list(param) for param in check.params],
        "args": plain_args(check.args, in_order=True),
        "static": check.static,
        "mesh": [list(axis) for axis in check.mesh],
        "tolerance": structs.asdict(check.tolerance) if check.tolerance else None,
        "seed": check.seed,
        "names_args": check.names_args,
    }


def _check_from_json(data: Mapping[str, Any]) -> Check:
    return Check(
        tuple((name, value) for name, value in data["params"]),
        _args_from_json(data["args"]),
        data["static"],
        tuple((name, size) for name, size in data["mesh"]),
        Tolerance(**data["tolerance"]) if data["tolerance"] else None,
        data["seed"],
        data["names_args"],
    )


def location_to_json(location: Location) -> list[str | int]:
    """Return a place as file, line and column."""
    return [location.file, location.line, location.column]


def location_from_json(data: list[Any]) -> Location:
    """Return the place that `location_to_json` was given."""
    return Location(*data)


def _args_from_json(data: Any, *, in_call: bool = False) -> Any:
    if isinstance(data, str):
        # Among the arguments of a `$call` is other text, which never looks like an array.
        return resolve_array(data) if not in_call or looks_like_array(data) else data
    if isinstance(data, list):
        return [_args_from_json(item, in_call=in_call) for item in data]
    if isinstance(data, dict):
        inside = in_call or "$call" in data
        return {key: _args_from_json(item, in_call=inside) for key, item in data.items()}
    return data
