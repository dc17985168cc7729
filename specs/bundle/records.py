"""Records of artifacts: check one from a stranger, say what its blobs are, name what ships.

`Artifact` and `LaunchPlan` check what they are made of; what they leave to the compiler that wrote
the record is checked here: types of the fields that a bundle and its users rely on.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, get_type_hints

from pallasc.errors import CorruptError
from pallasc.specs.artifacts.artifact import ARTIFACT_SCHEMA, KernelResources
from pallasc.specs.bundle.blobs import Kind
from pallasc.specs.bundle.manifest import Array, parse_array
from pallasc.specs.bundle.text import parse_json
from pallasc.specs.gpus import FIGURES

Record = Mapping[str, Any]
"""The JSON of an artifact."""

Shipped = Mapping[str, tuple[str, int] | None]
"""What ships in place of each blob of a record: digest and size; None where nothing does."""

_DIGITS = frozenset("0123456789abcdef")


def parse_record(data: bytes) -> Record:
    """Return the record with these bytes.

    Raises:
        CorruptError: they are not a record, or a field of it has another type.
    """
    record = parse_json(data)
    try:
        _check(record)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise CorruptError(f"an artifact's record is damaged: {error!r}") from error
    checked: Record = record
    return checked


def _check(record: Any) -> None:
    if record["schema"] != ARTIFACT_SCHEMA:
        raise ValueError(f"schema {record['schema']!r} instead of {ARTIFACT_SCHEMA}")
    target = record["target"]
    _expect(all(type(target[key]) is str for key in ("name", "arch", "description")), "target")
    _expect(all(type(target[key]) in (int, float) and target[key] > 0 for key in FIGURES), "target")
    _expect(isinstance(record["toolchain"], dict), "toolchain")
    _expect(all(type(text) is str for text in minimum_driver(record).values()), "minimum_driver")
    for key, size in record["blobs"].items():
        _expect(is_digest(key) and type(size) is int and size >= 0, "blobs")
    for kernel in record["kernels"]:
        _check_kernel(kernel)
    plan = record["plan"]
    signature(plan, "inputs"), signature(plan, "outputs")
    for step in plan["steps"]:
        _expect(isinstance(step, dict), "steps")
    kinds_of(record)


def _check_kernel(kernel: Any) -> None:
    types = _kernel_types()
    _expect(kernel.keys() == types.keys(), "kernels")
    for name, hint in types.items():
        _expect(isinstance(kernel[name], hint) and type(kernel[name]) is not bool, name)
        _expect(type(kernel[name]) is not int or kernel[name] >= 0, name)


@cache
def _kernel_types() -> dict[str, Any]:
    return get_type_hints(KernelResources)


def _expect(fits: bool, what: str) -> None:
    if not fits:
        raise ValueError(f"its {what} has another form")


def is_digest(text: Any) -> bool:
    """Tell whether a value is a digest in hexadecimal."""
    return type(text) is str and len(text) == 64 and _DIGITS.issuperset(text)


def minimum_driver(record: Record) -> Mapping[str, str]:
    """Return `cuda` and `linux` of the driver that a record asks for; empty if it asks for none."""
    driver: Mapping[str, str] = record.get("minimum_driver") or {}
    return {key: driver[key] for key in sorted(driver)}


def signature(plan: Mapping[str, Any], which: str) -> tuple[Array, ...]:
    """Return the `inputs` or `outputs` of a plan.

    Raises:
        LookupError, TypeError, ValueError: they are none.
    """
    return tuple(
        parse_array([array["path"], array["dtype"], list(array["shape"]), *_layout_of(array)])
        for array in plan[which]
    )


def kinds_of(record: Record) -> dict[str, Kind]:
    """Return what each blob of a record is, by digest, in the order of the digests.

    Raises:
        ValueError: the record uses a blob that it does not list, or lists one that it does not use.
    """
    kinds: dict[str, Kind] = {}
    for kernel in record["kernels"]:
        kinds[kernel["cubin"]] = Kind.CUBIN
        if kernel["ptx"] is not None:
            kinds[kernel["ptx"]] = Kind.PTX
    for step in record["plan"]["steps"]:
        if step["kind"] == "launch":
            kinds[step["cubin"]] = Kind.CUBIN
    for buffer in record["plan"]["buffers"]:
        if buffer["digest"] is not None:
            kinds[buffer["digest"]] = Kind.CONSTANT
    if kinds.keys() != record["blobs"].keys():
        raise ValueError("it does not list the blobs that it uses")
    return {key: kinds[key] for key in sorted(kinds)}


def shipped_record(record: Record, shipped: Shipped) -> Record:
    """Return the record of what ships: each digest is that of the bytes that are there.

    Args:
        record: what the compiler wrote.
        shipped: for each of its blobs, what ships in its place.

    Raises:
        CorruptError: a cubin or constant does not ship.
    """
    names = {key: place[0] for key, place in shipped.items() if place is not None}
    try:
        kernels = [
            {**kernel, "cubin": names[kernel["cubin"]], "ptx": names.get(kernel["ptx"])}
            for kernel in record["kernels"]
        ]
        steps = [
            {**step, "cubin": names[step["cubin"]]} if step["kind"] == "launch" else step
            for step in record["plan"]["steps"]
        ]
        constants = [buffer["digest"] for buffer in record["plan"]["buffers"] if buffer["digest"]]
    except KeyError as error:
        raise CorruptError(f"the cubin {error} was left out") from error
    for constant in constants:
        if names.get(constant) != constant:
            raise CorruptError(f"the constant {constant} was left out")
    return {
        **record,
        "blobs": {place[0]: place[1] for place in shipped.values() if place is not None},
        "kernels": kernels,
        "plan": {**record["plan"], "steps": steps},
    }


def _layout_of(array: Mapping[str, Any]) -> list[Any]:
    return [list(array["layout"])] if "layout" in array else []
