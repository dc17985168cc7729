"""Bundles of a kernel that adds, for tests that open them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import made

from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.writer import build_bundle
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
