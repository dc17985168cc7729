"""Machines with GPUs, and the fields of whole programs that are compiled for them.

A machine's description has everything on the machine that enters JAX's compilation keys.

`pallasc machine` writes it as JSON, schema 1. It has no host names, and no paths except those that
the user has set in flags and variables:

* `jax`, `jaxlib`, `plugin`: versions of JAX's packages
* `platform_version`: the plugin's text for keys, such as `cuda 13020`
* `driver`, `gpu`, `gpus`, `capability`, `memory_bytes`, `cpu`: for people; `topology` has them too
* `compression`, `compression_in_key`: how JAX compresses cache entries, and the name in keys
* `flags`: the XLA flags that count, sorted; `settings`: the `JAX_*` variables that count
* `topology`: JAX's serialized topology, base64; `fingerprint`: its digest in keys
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct, field

from pallasc.errors import SpecError
from pallasc.specs.canonical import canonical_json, digest
from pallasc.specs.gpus import DEFAULT_MODELS, MODELS, Target, resolve_target

MACHINE_SCHEMA = 1
_LARGEST_BYTES = 1 << 20

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
"""Variables that can change a module or its options; others name places, logs, or processes."""


class Machine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine with GPUs, as its JAX describes it; see this module."""

    schema: int = MACHINE_SCHEMA
    jax: str
    jaxlib: str
    plugin: str
    platform_version: str
    driver: str
    gpu: str
    gpus: int
    capability: str
    memory_bytes: int
    cpu: str
    compression: Literal["zstd", "zlib"]
    compression_in_key: Literal["zstandard", "zlib"]
    flags: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    fingerprint: str
    topology: bytes

    def to_json(self) -> bytes:
        """Return the file's content."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical content."""
        return digest(canonical_json(msgspec.to_builtins(self)))

    @property
    def environment(self) -> dict[str, str]:
        """The variables that give a process here the flags and settings of that machine."""
        return {**self.settings, **({"XLA_FLAGS": " ".join(self.flags)} if self.flags else {})}

    def target(self, name: str) -> Target:
        """Return the model of the GPU, under the name of the machine.

        Raises:
            SpecError: pallasc does not compile for this GPU.
        """
        known = (model for model in MODELS.values() if model.description == self.gpu)
        arch = "sm_" + self.capability.replace(".", "")
        archs = (name for name in DEFAULT_MODELS if name.rstrip("a") == arch)
        model = next(known, None) or resolve_target(next(archs, arch))
        return replace(model, name=name)


def counted_flags(text: str) -> tuple[str, ...]:
    """Return the XLA flags in the text of `XLA_FLAGS` that enter keys, sorted."""
    flags = (flag for flag in text.split() if flag.partition("=")[0] not in _NOT_IN_KEYS)
    return tuple(sorted(flags))


def counted_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the `JAX_*` variables that can change a compilation."""
    return {name: environ[name] for name in sorted(environ) if _SETTINGS.fullmatch(name)}


def read_machine(path: str | Path) -> Machine:
    """Return the machine that a file describes.

    Raises:
        SpecError: the file cannot be read, or is not such a description.
    """
    try:
        data = Path(path).read_bytes()
        if len(data) > _LARGEST_BYTES:
            raise ValueError("it is too large")
        plain = msgspec.json.decode(data)
        schema = plain.get("schema") if isinstance(plain, dict) else None
        if schema != MACHINE_SCHEMA:
            raise ValueError(f"it has schema {schema!r}, and this pallasc reads {MACHINE_SCHEMA}")
        return msgspec.convert(plain, Machine)
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError(
            f"{path} is not a machine file: {reason}.",
            hint="Write one where the GPU is: pallasc machine > machine.json",
        ) from error


_COMPARED = {
    "driver": "driver",
    "gpu": "GPU",
    "gpus": "number of GPUs",
    "memory_bytes": "GPU memory in bytes",
    "cpu": "CPU",
    "jax": "jax",
    "jaxlib": "jaxlib",
    "plugin": "CUDA plugin",
    "platform_version": "platform version",
    "compression_in_key": "compression",
}


def machine_differences(here: Machine, recorded: Machine) -> list[str]:
    """Return the differences that make each cache entry of one machine a miss on the other."""
    found = [
        f"{label} {getattr(here, name)} here, {getattr(recorded, name)} recorded"
        for name, label in _COMPARED.items()
        if getattr(here, name) != getattr(recorded, name)
    ]
    found += _set_differences("XLA flags", here.flags, recorded.flags)
    settings = [[f"{k}={v}" for k, v in each.settings.items()] for each in (here, recorded)]
    found += _set_differences("settings", *settings)
    if not found and here.fingerprint != recorded.fingerprint:
        found.append("the topology differs, for example in CUDA or cuDNN versions")
    return found


def _set_differences(label: str, here: Iterable[str], recorded: Iterable[str]) -> list[str]:
    counts = Counter(here), Counter(recorded)
    if counts[0] == counts[1]:
        return []
    only = counts[0] - counts[1], counts[1] - counts[0]
    shown = [" ".join(sorted(each.elements())) or "none" for each in only]
    return [f"{label} {shown[0]} here, {shown[1]} recorded"]


Axes = str | tuple[str, ...] | None
"""The axes of a mesh that divide one dimension of an array."""


class Program(Struct, frozen=True):
    """The part of a variant that only programs have: XLA compiles the whole function.

    Attributes:
        machine: the machine.
        donate: names of the arguments whose memory the program may reuse.
        shardings: the axes that divide each dimension, by the path of an argument.
        explicit: axes of the mesh whose shardings are part of the types of arrays.
        only_lower: True to find the key of the program without compiling it.
        tuned: recorded autotuning results of XLA; empty for XLA's default algorithms.
    """

    machine: Machine
    donate: tuple[str, ...] = ()
    shardings: dict[str, tuple[Axes, ...]] = field(default_factory=dict)
    explicit: tuple[str, ...] = ()
    only_lower: bool = False
    tuned: bytes = b""

    def request(self) -> dict[str, object]:
        """Return everything that affects compilation as plain data."""
        own: dict[str, object] = msgspec.to_builtins(self)
        return {**own, "machine": self.machine.digest, "tuned": digest(self.tuned)}


class Programs(Struct, frozen=True):
    """The part of a spec that only programs have.

    Attributes:
        machines: machines by name.
        files: their files, relative to the spec's folder.
        donate: as in `Program`.
        shardings: as in `Program`.
        explicit: as in `Program`.
    """

    machines: dict[str, Machine]
    files: tuple[str, ...]
    donate: tuple[str, ...] = ()
    shardings: dict[str, tuple[Axes, ...]] = field(default_factory=dict)
    explicit: tuple[str, ...] = ()

    def on(self, machine: str) -> Program:
        """Return the program for one of the machines."""
        return Program(self.machines[machine], self.donate, self.shardings, self.explicit)
