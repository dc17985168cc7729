"""Records of artifacts: check one from a stranger, say what its blobs are, name what ships.

`Artifact` and `LaunchPlan` check what they are made of; what they leave to the compiler that wrote
the record is checked here: types of the fields that a bundle and its users rely on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from types import UnionType
from typing import cast, get_type_hints

from pallasc.errors import CorruptError
from pallasc.specs.artifacts.artifact import ARTIFACT_SCHEMA, ArtifactRecord, KernelResources
from pallasc.specs.bundle.blobs import Kind
from pallasc.specs.bundle.manifest import Array, parse_array
from pallasc.specs.gpus import target_of_record
from pallasc.specs.untrusted_json import as_list, as_object, as_text, fault, parse_json

Shipped = Mapping[str, tuple[str, int] | None]
"""What ships in place of each blob of a record: digest and size; None where nothing does."""

_DIGITS = frozenset("0123456789abcdef")


def parse_record(data: bytes) -> ArtifactRecord:
    """Return the record with these bytes.

    Raises:
        CorruptError: they are not a record, or a field of it has another type.
    """
    try:
        record = as_object(parse_json(data))
        _check(record)
        checked = cast(ArtifactRecord, record)
        kinds_of(checked)
    except (LookupError, TypeError, ValueError) as error:
        raise CorruptError(f"an artifact's record is damaged: {fault(error)}") from error
    return checked


def _check(record: Mapping[str, object]) -> None:
    if record["schema"] != ARTIFACT_SCHEMA:
        raise ValueError(f"schema {record['schema']!r} instead of {ARTIFACT_SCHEMA}")
    target_of_record(as_object(record["target"]))
    as_object(record["toolchain"])
    for version in as_object(record.get("minimum_driver") or {}).values():
        as_text(version)
    for digest, size in as_object(record["blobs"]).items():
        _expect(is_digest(digest) and type(size) is int and size >= 0, "blobs")
    for kernel in as_list(record["kernels"]):
        _check_kernel(as_object(kernel))
    plan = as_object(record["plan"])
    signature(plan, "inputs"), signature(plan, "outputs")


def _check_kernel(kernel: Mapping[str, object]) -> None:
    types = _kernel_types()
    _expect(kernel.keys() == types.keys(), "kernels")
    for name, hint in types.items():
        value = kernel[name]
        _expect(isinstance(value, hint) and type(value) is not bool, name)
        _expect(not isinstance(value, int) or value >= 0, name)


@cache
def _kernel_types() -> dict[str, type | UnionType]:
    return get_type_hints(KernelResources)


def _expect(fits: bool, what: str) -> None:
    if not fits:
        raise ValueError(f"its {what} has another form")


def is_digest(text: object) -> bool:
    """Tell whether a value is a digest in hexadecimal."""
    return isinstance(text, str) and len(text) == 64 and _DIGITS.issuperset(text)


def minimum_driver(record: ArtifactRecord) -> Mapping[str, str]:
    """Return `cuda` and `linux` of the driver that a record asks for; empty if it asks for none."""
    return dict(sorted((record.get("minimum_driver") or {}).items()))


def signature(plan: Mapping[str, object], which: str) -> tuple[Array, ...]:
    """Return the `inputs` or `outputs` of a plan.

    Raises:
        LookupError, TypeError, ValueError: they are damaged.
    """
    return tuple(_signed_array(as_object(array)) for array in as_list(plan[which]))


def _signed_array(array: Mapping[str, object]) -> Array:
    layout = [list(as_list(array["layout"]))] if "layout" in array else []
    return parse_array([array["path"], array["dtype"], list(as_list(array["shape"])), *layout])


def kinds_of(record: ArtifactRecord) -> dict[str, Kind]:
    """Return what each blob of a record is, by digest, in the order of the digests.

    Raises:
        LookupError, TypeError, ValueError: the record is damaged, uses a blob that it does not
            list, or lists one that it does not use.
    """
    kinds: dict[str, Kind] = {}
    for kernel in record["kernels"]:
        kinds[as_text(kernel["cubin"])] = Kind.CUBIN
        if kernel["ptx"] is not None:
            kinds[as_text(kernel["ptx"])] = Kind.PTX
    for step in _steps(record):
        if step["kind"] == "launch":
            kinds[as_text(step["cubin"])] = Kind.CUBIN
    for constant in _constants(record):
        kinds[constant] = Kind.CONSTANT
    if kinds.keys() != record["blobs"].keys():
        raise ValueError("it does not list the blobs that it uses")
    return {key: kinds[key] for key in sorted(kinds)}


def _steps(record: ArtifactRecord) -> Iterator[Mapping[str, object]]:
    return map(as_object, as_list(record["plan"]["steps"]))


def _constants(record: ArtifactRecord) -> Iterator[str]:
    buffers = map(as_object, as_list(record["plan"]["buffers"]))
    digests = (buffer["digest"] for buffer in buffers)
    return (as_text(digest) for digest in digests if digest is not None)


def shipped_record(record: ArtifactRecord, shipped: Shipped) -> ArtifactRecord:
    """Return an artifact's record with the digests of the bytes that the bundle contains.

    Args:
        record: what the compiler wrote.
        shipped: for each of its blobs, what ships in its place.

    Raises:
        CorruptError: a cubin or constant does not ship.
    """
    names = {key: place[0] for key, place in shipped.items() if place is not None}
    try:
        kernels = [
            {
                **kernel,
                "cubin": names[as_text(kernel["cubin"])],
                "ptx": names.get(str(kernel["ptx"])),
            }
            for kernel in record["kernels"]
        ]
        steps = [
            {**step, "cubin": names[as_text(step["cubin"])]} if step["kind"] == "launch" else step
            for step in _steps(record)
        ]
    except KeyError as error:
        raise CorruptError(f"the cubin {error} was left out") from error
    for constant in _constants(record):
        if names.get(constant) != constant:
            raise CorruptError(f"the constant {constant} was left out")
    return {
        **record,
        "blobs": {place[0]: place[1] for place in shipped.values() if place is not None},
        "kernels": kernels,
        "plan": {**record["plan"], "steps": steps},
    }
