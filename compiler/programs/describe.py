"""Describe this machine: all inputs of the keys of JAX's compilation cache."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from typing import Any

from pallasc.compiler.programs.jax_cache import compression, fingerprint
from pallasc.errors import ToolError, summary_of
from pallasc.specs.spec import Machine

_NOT_IN_KEYS = {
    "--xla_dump_compress_protos", "--xla_dump_disable_metadata", "--xla_dump_fusion_visualization",
    "--xla_dump_hlo_as_dot", "--xla_dump_hlo_as_html", "--xla_dump_hlo_as_long_text",
    "--xla_dump_hlo_as_proto", "--xla_dump_hlo_as_text", "--xla_dump_hlo_as_url",
    "--xla_dump_hlo_module_re", "--xla_dump_hlo_pass_re", "--xla_dump_hlo_pipeline_re",
    "--xla_dump_hlo_snapshots", "--xla_dump_include_timestamp", "--xla_dump_max_hlo_modules",
    "--xla_dump_module_metadata", "--xla_dump_to", "--xla_force_host_platform_device_count",
    "--xla_gpu_cuda_data_dir", "--xla_gpu_experimental_autotune_cache_mode",
    "--xla_gpu_per_fusion_autotune_cache_dir",
}  # fmt: skip
"""Flags for GPUs that `jax._src.cache_key` leaves out, in JAX 0.11 and 0.12."""
_SETTINGS = re.compile(
    r"JAX_(?!ARRAY_GARBAGE|CAPTURED_CONSTANTS|CHECK_PROXY|CHECK_TRACER|COMPILATION_CACHE|COORDINATOR"
    r"|CPU_|CROSS_HOST|CUDA_VIS|DEBUG_L|DISTRIBUTED|DUMP|ENABLE_CHECKS|ENABLE_COMPILATION_CACHE|EXPLAIN"
    r"|HLO_SOURCE|INCLUDE_DEBUG|INCLUDE_FULL_TRACEBACKS|LOCAL_DEVICE|LOG|MOCK|MTLS|NUM_|PERSISTENT_CACHE"
    r"|PLATFORM|PPRINT|PROCESS_ID|RAISE_PERSISTENT|SEND_TRACEBACK|SHARE_BINARY|SKIP_CUDA|SOURCE_URL"
    r"|TEST_|THREAD_GUARD|TRACEBACK|TRACER_ERROR|TRANSFER_)\w+"
)
"""Variables that can change a module or its options; the rest set folders, logs, or processes."""
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


def counted_flags(text: str) -> tuple[str, ...]:
    """Return the XLA flags in the text of `XLA_FLAGS` that enter keys, sorted."""
    flags = (flag for flag in text.split() if flag.partition("=")[0] not in _NOT_IN_KEYS)
    return tuple(sorted(flags))


def counted_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the `JAX_*` variables that can change a compilation."""
    return {name: environ[name] for name in sorted(environ) if _SETTINGS.fullmatch(name)}


_DESCRIPTION = (9, 2)
"""Field numbers that lead from a `PjRtTopologyDescriptionProto` to its `GpuTopologyProto`."""
_FACTS = {"driver": (8, 1, 24), "memory_bytes": (8, 1, 14), "cpu": (9, 2)}
"""Numbers of the fields in `GpuTopologyProto`, as of jaxlib 0.11 and 0.12."""


def _facts(topology: bytes) -> dict[str, str]:
    """Return figures to show from a serialized topology, "" for each that is not where expected."""
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
