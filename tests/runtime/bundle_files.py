"""Bundles of a kernel that adds, for tests that open them."""

import shutil
from pathlib import Path
from typing import Any

import made

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.writer import build_bundle
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml
from pallasc.specs.user_files import replace_file

TARGETS = ("h100-sxm", "h200", "b200", "a100-sxm")


def add_artifact(target: str = "h100-sxm", columns: int = 64, **changes: Any) -> Any:
    array = f"f32[4, {columns}]"
    return made.add(inputs={"a": array, "b": array}, outputs=[array], target=target, **changes)


def write_bundle(
    path: Path, *targets: str, name: str = "add", columns: tuple[int, ...] = (64,)
) -> Path:
    """Write a bundle of a kernel with so many columns on these targets."""
    items = (
        Item(name, {"n": n}, add_artifact(target, n))
        for target in targets or TARGETS
        for n in columns
    )
    replace_file(path, build_bundle(items, level=3))
    return path


def build_with_ptx(folder: Path, spec: Path, store: Store) -> Path:
    """Build a spec in a copy of a store, and write it into a bundle that keeps the PTX."""
    shutil.copytree(store.root, folder / "store")
    variants = expand(load_yaml(spec))
    report = build(variants, store=Store(folder / "store"), options=Options(jobs=1))
    assert report.exit_code == 0, [str(result.error) for result in report.results if result.error]
    items = [Item(r.variant.name, dict(r.variant.params), r.artifact) for r in report.results]
    path = folder / f"{spec.stem}.pallasc"
    path.write_bytes(build_bundle(items, keep_ptx=True))
    return path
