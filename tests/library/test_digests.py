"""The library's artifacts, and JAX's own kernels, have the digests in `digests-<JAX>.json`.

A kernel of each function is compiled here, and all variants if `PALLASC_ALL_KERNELS` is set. If
bytes are meant to change, `python -P tests/library/digests.py` records them again, with each
version of JAX.
"""

import os
from collections.abc import Sequence
from importlib import metadata

import digests
import pytest

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.compiler.builds.report import VariantResult
from pallasc.specs.spec import Variant

ALL = bool(os.environ.get("PALLASC_ALL_KERNELS"))
BACKWARD = "attention_backward[head=64,kv_heads=4,wgs=1,block=64]@h100-sxm"
RAGGED = "ragged_dot_backward_rhs[block_m=64,block_n=64,block_k=64]@h100-sxm"
BLACKWELL = "blackwell_ragged_dot[steps=4,width=8]@b200"
JAX_KERNELS = {"attention_forward[head=64,block_kv=64]@h100-sxm", BACKWARD, RAGGED}
"""The cheapest that show most."""

if ALL or metadata.version("jax") >= "0.12":
    JAX_KERNELS |= {BLACKWELL}  # several times as expensive with JAX 0.10


def check(results: Sequence[VariantResult]) -> None:
    """Compare artifacts with the recorded ones, if the toolchain is the same."""
    found, recorded = digests.digests(results), digests.recorded()
    if digests.toolchain(results) != recorded["toolchain"]:
        pytest.skip(f"{digests.FILE.name} is of another toolchain: {digests.toolchain(results)}")
    changed = [name for name, digest in found.items() if recorded["digests"][name] != digest]
    assert changed == [], "other bytes: tests/library/digests.py records them, if they are meant"


def test_artifacts_of_the_library_are_those_that_are_recorded(library_store: Store) -> None:
    variants = digests.variants(*digests.LIBRARY)
    first: dict[str, Variant] = {}
    for variant in variants:
        if variant.target.arch == "sm_90a":  # another architecture is another process
            first.setdefault(variant.name, variant)
    chosen = variants if ALL else [*first.values()]
    assert len(chosen) > 5
    check(build(chosen, store=library_store, options=Options(jobs=1)).results)


def test_artifacts_of_jax_kernels_are_those_that_are_recorded(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    variants = digests.variants(digests.TUNINGS)
    chosen = [variant for variant in variants if ALL or variant.id in JAX_KERNELS]
    store = Store(tmp_path_factory.mktemp("store"))
    results = build(chosen, store=store, options=Options(jobs=1)).results
    plans = {r.variant.id: r.artifact.plan for r in results if r.artifact}
    assert len(plans) == len(chosen), [str(r.error) for r in results if r.error]
    backward = plans[BACKWARD]
    assert [launch.origin for launch in backward.launches].count("mosaic") == 2
    assert [binding.path for binding in backward.inputs] == [*(f"res.{n}" for n in range(5)), "do"]
    for name, multiprocessors in ((RAGGED, 132), (BLACKWELL, 148)):
        if name in plans:  # a kernel that asks for its device gets the model's figure
            (launch,) = [each for each in plans[name].launches if each.origin == "mosaic"]
            assert launch.grid[0] * launch.grid[1] * launch.grid[2] == multiprocessors
    check(results)


def test_every_variant_is_recorded() -> None:
    known = digests.recorded()["digests"]
    if not known:
        pytest.skip(f"nothing is recorded of this JAX: there is no {digests.FILE.name}")
    everything = digests.variants(*digests.LIBRARY, digests.TUNINGS)
    assert sorted(known) == sorted(variant.id for variant in everything)
