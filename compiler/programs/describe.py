"""Describe this machine: what its JAX puts into compilation keys."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from typing import Any

from pallasc.compiler.programs.jax_cache import compression, fingerprint
from pallasc.errors import ToolError, summary_of
from pallasc.specs.machine import Machine, counted_flags, counted_settings

_PLUGINS = ("jax-cuda13-plugin", "jax-cuda12-plugin")


def installed_version(*names: str) -> str:
    """Return the version of the first of these packages that is installed, "" for none."""
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def jax_versions() -> dict[str, str]:
    """Return the versions of JAX's packages that a machine file records."""
    return {
        "jax": installed_version("jax"),
        "jaxlib": installed_version("jaxlib"),
        "plugin": installed_version(*_PLUGINS),
    }


@contextmanager
def _plugin_errors() -> Iterator[list[BaseException]]:
    """Collect the errors of JAX's plugins, which JAX logs with their tracebacks."""
    causes: list[BaseException] = []

    def collect(record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None:
            causes.append(record.exc_info[1])
        return record.levelno < logging.ERROR

    logger = logging.getLogger("jax._src.xla_bridge")
    logger.addFilter(collect)
    try:
        yield causes
    finally:
        logger.removeFilter(collect)


def describe_machine(environ: Mapping[str, str] = os.environ) -> Machine:
    """Return the description of this machine; starts JAX on its GPUs.

    Raises:
        ToolError: JAX is missing, finds no GPU, or cannot describe it.
    """
    causes: list[BaseException] = []
    try:
        import jax
        from jax.experimental import topologies

        with _plugin_errors() as causes:
            devices: Any = jax.devices("cuda")
    except (ImportError, RuntimeError) as error:
        summary = summary_of(next(iter(causes), error))
        raise ToolError(
            f"JAX finds no GPU here: {summary.rstrip('.?')}.",
            hint="Run this where the GPU is, with the environment of your program.",
        ) from error
    if not hasattr(topologies.TopologyDescription, "serialize"):
        raise ToolError("this JAX cannot write its topology.", hint="Use JAX 0.11 or newer.")
    described: Any = topologies.TopologyDescription(devices)
    topology: bytes = described.serialize()
    content, key_name = compression()
    facts = _facts(topology)
    versions = jax_versions()
    return Machine(
        jax=versions["jax"],
        jaxlib=versions["jaxlib"],
        plugin=versions["plugin"],
        platform_version=devices[0].client.platform_version,
        driver=facts["driver"],
        gpu=devices[0].device_kind,
        gpus=len(devices),
        capability=str(devices[0].compute_capability),
        memory_bytes=int(facts["memory_bytes"] or 0),
        cpu=facts["cpu"],
        compression=content,  # type: ignore[arg-type]
        compression_in_key=key_name,  # type: ignore[arg-type]
        flags=counted_flags(environ.get("XLA_FLAGS", "")),
        settings=counted_settings(environ),
        fingerprint=fingerprint(devices),
        topology=topology,
    )


_DESCRIPTION = (9, 2)
"""`PjRtTopologyDescriptionProto`: the field with the `GpuTopologyProto`, and the bytes in it."""
_FACTS = {"driver": (8, 1, 24), "memory_bytes": (8, 1, 14), "cpu": (9, 2)}
"""Numbers of the fields in `GpuTopologyProto`, as of jaxlib 0.11 and 0.12."""


def _facts(topology: bytes) -> dict[str, str]:
    """Return figures for people from a serialized topology; "" if they have moved."""
    return {name: _field(topology, (*_DESCRIPTION, *path)) for name, path in _FACTS.items()}


def _field(message: bytes, path: tuple[int, ...]) -> str:
    value: bytes | int = message
    for number in path:
        fields = dict(_fields(value)) if isinstance(value, bytes) else {}
        if number not in fields:
            return ""
        value = fields[number]
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield number and value of each field of a protobuf message; stops where it is malformed."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        value: bytes | int
        match tag & 7:
            case 0:
                value, at = _varint(message, at)
            case 2:
                length, at = _varint(message, at)
                value, at = message[at : at + length], at + length
            case 1 | 5:
                size = 8 if tag & 7 == 1 else 4
                value, at = message[at : at + size], at + size
            case _:
                return
        yield tag >> 3, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message):
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            break
    return value, at
