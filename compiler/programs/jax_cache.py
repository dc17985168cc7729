"""Keys and entries of JAX's persistent compilation cache, made with private functions of JAX.

JAX has no public functions for this. These private ones were tested with JAX 0.11.2 and 0.12.0.1:

* `jax._src.compiler.compile_or_get_cached` receives the module, the options, and the devices of a
  compilation (`lowering.compile.prepare_call`);
* `jax._src.cache_key.get` computes the key, with a stand-in for the machine's PJRT client;
* `jax._src.compilation_cache.combine_executable_and_time` makes an entry; `zstandard` and `zstd`
  of that module, or zlib, compress it;
* `jax._src.lru_cache` names the file of an entry `<key>-cache`;
* `jax._src.xla_bridge` answers questions about devices, while a program is imported and traced;
* `jax._src.config.remove_custom_partitioning_ptr_from_cache_key` is an argument of `get`;
* `Device.client.platform_version` enters keys;
* `jaxlib`'s topology has a `fingerprint`, which enters keys.

Topologies are public: `jax.experimental.topologies`. JAX 0.10 cannot read a serialized one.

Locations. Keys depend on the source locations in Mosaic kernels.
`JAX_TRACEBACK_IN_LOCATIONS_LIMIT=0` removes all lines but one: the line that calls the kernel, or
the line of a kernel that ships with JAX. No setting removes this line, so both sides replace
`jax._src.source_info_util.user_frame`: pallasc with `jax_versions.source_locations`, and the user's
program with `START_MODULE`. JAX imports `START_MODULE` at start from `jax_plugins`, the package of
its plugins, if `PYTHONPATH` has its folder. For JAX 0.11, `START_MODULE` also gives all kernels the
same name for their dumps, since this name is part of keys (see `jax_versions`).
"""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pallasc.compiler.lowering.jax_versions import devices_for, devices_present, patched
from pallasc.errors import ToolError
from pallasc.specs.spec import Machine

START_FOLDER = "python"
START_FILE = "jax_plugins/pallasc_warm.py"
START_MODULE = '''\
"""Written by pallasc warm: makes JAX's compilation keys independent of lines and folders."""


def initialize():
    import jax
    from jax._src import source_info_util

    source_info_util.user_frame = lambda traceback: None
    if jax.__version_info__[:2] == (0, 11):
        _name_dumps_alike()


def _name_dumps_alike():
    from jax._src.lib import mosaic_gpu_dialect as dialect
    from jaxlib.mlir import ir

    options_of = dialect.get_or_set_dump_options

    def dump_options(module):
        attributes = module.operation.attributes
        if "mosaic_gpu.dump_basename" not in attributes:
            with module.context:
                attributes["mosaic_gpu.dump_basename"] = ir.StringAttr.get("kernel")
        return options_of(module)

    dialect.get_or_set_dump_options = dump_options
'''
START_SETTINGS = {"JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0"}

_ENTRY_SUFFIX = "-cache"
KEY = re.compile(r"[A-Za-z0-9_.<>-]{1,200}-[0-9a-f]{64}")


def entry_name(key: str) -> str:
    """Return the name of the file with the entry of a key."""
    return f"{key}{_ENTRY_SUFFIX}"


class _Client(NamedTuple):
    """The part of the machine's client that enters keys."""

    platform: str
    platform_version: str


def program_key(call: Any, machine: Machine) -> str:
    """Return the key under which JAX looks a compilation up on the machine.

    Args:
        call: the prepared call, for devices of the machine's topology.
        machine: the machine.
    """
    from jax._src import cache_key, config

    client: Any = _Client("gpu", machine.platform_version)
    ignore = config.remove_custom_partitioning_ptr_from_cache_key.value
    return cache_key.get(
        call.module, call.devices, call.options, client, machine.compression_in_key, ignore
    )


def entry_bytes(executable: bytes, machine: Machine) -> bytes:
    """Return the entry for a serialized executable; its compile time is 0, to be reproducible.

    Raises:
        ToolError: the machine compresses with zstandard, which is not installed here.
    """
    from jax._src import compilation_cache

    plain = compilation_cache.combine_executable_and_time(executable, 0)
    if machine.compression == "zlib":
        return zlib.compress(plain)
    if compression()[0] != "zstd":
        raise ToolError(
            "the machine's JAX compresses with zstandard, which is not installed here.",
            hint="Install it: pip install zstandard",
        )
    # With a checksum, which JAX leaves out: a damaged entry must not become another executable.
    found: Any = compilation_cache
    if found.zstandard is not None:
        return bytes(found.zstandard.ZstdCompressor(write_checksum=True).compress(plain))
    return bytes(
        found.zstd.compress(plain, options={found.zstd.CompressionParameter.checksum_flag: 1})
    )


def compression() -> tuple[str, str]:
    """Return JAX's compression of entries in this process, and the compression's name in keys."""
    from jax._src import compilation_cache

    found: Any = compilation_cache
    has_zstd = found.zstandard is not None or getattr(found, "zstd", None) is not None
    return "zstd" if has_zstd else "zlib", "zstandard" if found.zstandard is not None else "zlib"


_devices: dict[str, list[Any]] = {}
"""Devices by machine: meshes are equal only if their devices are the same objects."""


def machine_devices(machine: Machine) -> list[Any]:
    """Return JAX devices that stand for the machine's GPUs; nothing can run on them.

    Raises:
        ToolError: the installed JAX cannot read topologies, or reads this one differently.
    """
    if machine.digest in _devices:
        return _devices[machine.digest]
    from jax.experimental import topologies

    devices_for(machine.target("machine"))  # loads the plugin
    description = topologies.TopologyDescription
    if not hasattr(description, "deserialize"):
        raise ToolError(
            "this JAX cannot read the topology of another machine.", hint="Use JAX 0.11 or newer."
        )
    devices: list[Any] = list(description.deserialize(machine.topology).devices)
    if fingerprint(devices) != machine.fingerprint or len(devices) != machine.gpus:
        raise ToolError(
            "the topology in the machine file is not the one that was recorded.",
            hint="Write the file again where the GPU is, with pallasc machine.",
        )
    return _devices.setdefault(machine.digest, devices)


def fingerprint(devices: Sequence[Any]) -> str:
    """Return the digest of these devices' topology, which is part of keys."""
    from jax._src import lib

    client: Any = vars(lib)["xla_client"]
    return f"{client.get_topology_for_devices(list(devices)).fingerprint():016x}"


@contextlib.contextmanager
def on_machine(devices: Sequence[Any], *, tracing: bool) -> Iterator[None]:
    """Make JAX report these devices in this context.

    With `tracing`, the first of them is JAX's default device. Otherwise the CPU is, so that
    computations can run.
    """
    import jax
    from jax._src import xla_bridge

    bridge: Any = xla_bridge
    first = devices[0] if tracing else jax.devices("cpu")[0]
    with devices_present(devices):
        names = ("default_backend", "device_count", "devices", "local_device_count")
        same = {name: getattr(jax, name) for name in (*names, "local_devices")}
        with patched(bridge, same), jax.default_device(first):
            yield
