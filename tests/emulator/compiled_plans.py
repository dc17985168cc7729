"""What variants are compiled to, with the PTX of XLA's kernels."""

import json
from collections.abc import Mapping, Sequence

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.compiler.toolchain.setup import prepare
from pallasc.compiler.workers.pool import find_ptx
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml
from pallasc.specs.spec import Variant

Compiled = Mapping[str, tuple[Artifact, Mapping[str, str]]]


def compiled(variants: Sequence[Variant], store: Store) -> Compiled:
    """Build variants; return each by its id."""
    results = build(variants, store=store, options=Options(jobs=1)).results
    made = [(r.variant, r.artifact) for r in results if r.artifact is not None]
    assert len(made) == len(variants), [str(r.error) for r in results if r.error]
    with prepare() as setup:
        found = find_ptx(made, setup, store)
    plans = {}
    for (variant, artifact), texts in zip(made, found, strict=True):
        assert isinstance(texts, Mapping), texts
        plans[variant.id] = artifact, texts
    return plans


def artifacts(kernels: Sequence[Mapping[str, object]], store: Store) -> dict[str, Artifact]:
    """Compile the kernels of a spec; return the artifacts by name."""
    spec = store.root / "spec.yaml"
    spec.write_text(json.dumps({"schema": 1, "kernels": kernels}))
    report = build(expand(load_yaml(spec)), store=store, options=Options(jobs=1))
    return {r.variant.name: r.artifact for r in report.results if r.artifact is not None}
