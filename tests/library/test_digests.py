"""The library's artifacts have the digests that are recorded in `digests-<version of JAX>.json`.

A kernel of each function is compiled here, all variants where `PALLASC_ALL_KERNELS` is set, and
JAX's own by `test_jax_kernels`. Where bytes are meant to change, `python -P
tests/library/digests.py` records them anew, with each version of JAX.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import digests
import pytest

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.specs.spec import Variant


def _chosen() -> list[Variant]:
    variants = digests.variants(*digests.LIBRARY)
    if os.environ.get("PALLASC_ALL_KERNELS"):
        return variants
    first: dict[str, Variant] = {}
    for variant in variants:
        if variant.target.arch == "sm_90a":  # another architecture is another process
            first.setdefault(variant.name, variant)
    return list(first.values())


def test_artifacts_are_those_that_are_recorded(
    check_digests: Callable[[Any], None], library_store: Store
) -> None:
    chosen = _chosen()
    assert len(chosen) > 5
    check_digests(build(chosen, store=library_store, options=Options(jobs=1)).results)


def test_every_variant_is_recorded() -> None:
    known = digests.recorded()["digests"]
    if not known:
        pytest.skip(f"nothing is recorded of this JAX: there is no {digests.FILE.name}")
    everything = digests.variants(*digests.LIBRARY, digests.TUNINGS)
    assert sorted(known) == sorted(variant.id for variant in everything)
