"""Specs, filled stores, and the plain JAX script that builds are compared with."""

import contextlib
import json
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from harness import PYTHON, timed_process
from msgspec.structs import replace

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.inputs.lookup import Lookup
from pallasc.compiler.toolchain.setup import prepare
from pallasc.specs.canonical import digest
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml
from pallasc.specs.spec import Variant

KERNEL = '''\
"""Adds two arrays."""

from helper import blocks_of

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


def add(x, y, *, block_size):
    def body(x_ref, y_ref, out_ref):
        part = pl.ds(lax.axis_index("block") * block_size, block_size)
        out_ref[part] = x_ref[part] + y_ref[part]

    kernel = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((x.size,), x.dtype),
        grid=(blocks_of(x, block_size),),
        grid_names=("block",),
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )
    return kernel(x.reshape(-1), y.reshape(-1)).reshape(x.shape)
'''
HELPER = '''\
"""Return the number of blocks of an array."""


def blocks_of(x, block_size):
    return x.size // block_size
'''
SPEC = """\
schema: 1
targets: [h100-sxm]
kernels:
  - name: add
    entry: kernel.py:add
    args: {{x: "f32[{{m}}, {{n}}]", y: "f32[{{m}}, {{n}}]"}}
    static: {{block_size: 2048}}
    matrix: {{m: {m}, n: {n}}}
"""
MIX = Path(__file__).with_name("library_mix.yaml")
MIX_KERNELS = 10

RIVAL = """
import pickle, sys
import jax
from jax.experimental import topologies
from pallasc.compiler.lowering.entry import import_function, static_value
from pallasc.compiler.lowering.jax_versions import target_config
from pallasc.specs.arrays import DTYPES

for variant in pickle.load(open(sys.argv[1], "rb")):
    device = topologies.get_topology_desc(
        "rival", "cuda", target_config=target_config(variant.target), topology="1x1x1"
    ).devices[0]
    sharding = jax.sharding.SingleDeviceSharding(device)
    arrays = {
        name: None if array is None else jax.ShapeDtypeStruct(
            array.shape, getattr(jax.numpy, DTYPES[array.dtype].jax_name), sharding=sharding)
        for name, array in variant.args.items()
    }
    function = import_function(variant.entry, variant.base_dir)
    static = {key: static_value(value, variant.base_dir) for key, value in variant.static.items()}
    with jax.default_device(device):
        call = jax.jit(lambda arrays: function(**arrays, **static))
        call.trace(arrays).lower(lowering_platforms=("cuda",)).compile()
"""


def write_spec(folder: Path, count: int) -> Path:
    """Write kernel, helper and a spec with `count` variants; return the spec's path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernel.py").write_text(KERNEL)
    (folder / "helper.py").write_text(HELPER)
    rows = min(count, 100)
    text = SPEC.format(
        m=[16 * (index + 1) for index in range(rows)],
        n=[128 * (index + 1) for index in range(count // rows)],
    )
    path = folder / f"spec_{count}.yaml"
    path.write_text(text)
    return path


def fill(store: Store, spec: Path, *, compiled: int = 1) -> list[Variant]:
    """Compile the first variants of a spec, and copy the first one's results for the others.

    The copies have other keys and other bytes in every blob, so that a build reads, checks and
    hashes as much for a copy as for a compiled variant.
    """
    variants = expand(load_yaml(spec))
    report = build(variants[:compiled], store=store)
    if report.failed:
        raise SystemExit(str(report.failed[0].error))
    with prepare() as setup, without_sync():
        lookup = Lookup(setup.context(store), store)
        _copy(store, lookup, variants, compiled)
    return variants


def write_mix(folder: Path, count: int) -> Path:
    """Write a spec of `count` variants, a multiple of ten; return its path."""
    if count % MIX_KERNELS:
        raise SystemExit(f"{count} misses: give a multiple of {MIX_KERNELS}")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "mix.yaml"
    sizes = [256 * (index + 1) for index in range(count // MIX_KERNELS)]
    path.write_text(MIX.read_text().replace("SIZES", str(sizes)))
    return path


def plain_jax(place: Path, variants: Sequence[Variant]) -> Callable[[], float]:
    """Return a function that compiles variants in one process with JAX alone, and times it.

    The process imports JAX once, and calls its ahead-of-time compilation for each variant, with the
    same assembler. It extracts, checks and stores nothing.
    """
    (place / "variants.pickle").write_bytes(pickle.dumps(variants))
    (place / "rival.py").write_text(RIVAL)
    environment = dict(prepare().environment)
    command = [*PYTHON, place / "rival.py", place / "variants.pickle"]
    return lambda: timed_process(command, env=environment)


def _copy(store: Store, lookup: Lookup, variants: Sequence[Variant], compiled: int) -> None:
    _, manifest = next(store.sets(lookup.key(variants[0])), ("", None))
    if manifest is None:
        raise SystemExit("the first variant has no manifest")
    stored = store.get_artifact(manifest.action, verify=True)
    if stored is None:
        raise SystemExit("the first variant has no record")
    blobs = {name: stored.blob(name) or b"" for name in stored.names}
    for number, variant in enumerate(variants[compiled:]):
        key = digest(f"copy {variant.id}".encode())
        record, own = _changed(stored.artifact, blobs, number)
        put = store.put_artifact(key, record, own)
        copied = replace(manifest, action=key, record=put.digest, variant=variant.id)
        store.put_set(lookup.key(variant), copied)


def _changed(
    record: Any, blobs: dict[str, bytes], number: int
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return record and blobs with a number appended to every blob, and the matching digests."""
    text = json.dumps(record)
    changed = {}
    for name, data in blobs.items():
        own = data + f"\n// {number:08}".encode()
        text = text.replace(name, digest(own))
        changed[digest(own)] = own
    return json.loads(text), changed


@contextlib.contextmanager
def without_sync() -> Iterator[None]:
    """Skip fsync: nothing here has to survive a crash."""
    with mock.patch.object(os, "fsync", return_value=None):
        yield
