"""Which variants a digest is of, by the store and by a lock."""

from __future__ import annotations

from pathlib import Path

from pallasc.cache.store import Store
from pallasc.compiler.tuning.owners import owners
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml
from pallasc.specs.lock import Entry, Lock

SPEC = """\
schema: 1
targets: [h100-sxm]
kernels:
  - name: k
    entry: json:loads
    args: {x: "f32[{m}]"}
    matrix: {m: [1, 2]}
"""


def test_a_lock_says_of_what_an_artifact_is_that_no_store_has(
    warm_store: Store, tmp_path: Path
) -> None:
    (tmp_path / "k.yaml").write_text(SPEC)
    variants = expand(load_yaml(tmp_path / "k.yaml"))
    digest = "a" * 64
    lock = Lock(variants={variants[1].id: Entry("b" * 64, digest, "c" * 64)})
    assert owners(variants, store=warm_store, lock=lock) == {digest: [variants[1]]}
    assert owners(variants, store=warm_store) == {}
