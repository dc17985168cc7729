"""A store with thousands of variants, filled in a minute: the input of the warm benchmarks.

The first variants are compiled for real. The others get a manifest and a record that differ from
the first one's in the keys and in the bytes of every blob, so that a build reads, checks and hashes
for each as much as it would for one that was compiled.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

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
"""How many blocks an array has."""


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
    """Compile the first variants of a spec and copy the first one's results for the others."""
    variants = expand(load_yaml(spec))
    report = build(variants[:compiled], store=store)
    if report.failed:
        raise SystemExit(str(report.failed[0].error))
    with prepare() as setup, without_sync():
        lookup = Lookup(setup.context(store), store)
        _copy(store, lookup, variants, compiled)
    return variants


def _copy(store: Store, lookup: Lookup, variants: Sequence[Variant], compiled: int) -> None:
    _, manifest = next(store.sets(lookup.requests.of(variants[0]).key), ("", None))
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
        store.put_set(lookup.requests.of(variant).key, copied)
        if number % 1000 == 999:
            print(f"filled {number + 1}", file=sys.stderr)


def _changed(
    record: Any, blobs: dict[str, bytes], number: int
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return record and blobs with a number at the end of every blob, and the digests that fit."""
    text = json.dumps(record)
    changed = {}
    for name, data in blobs.items():
        own = data + f"\n// {number:08}".encode()
        text = text.replace(name, digest(own))
        changed[digest(own)] = own
    return json.loads(text), changed


@contextlib.contextmanager
def without_sync() -> Iterator[None]:
    """Spare the disk: nothing here has to outlive a crash."""
    with mock.patch.object(os, "fsync", return_value=None):
        yield
