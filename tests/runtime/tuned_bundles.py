"""Bundles of a tuned kernel; the width of its grid tells which variant was launched."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import made

from pallasc.runtime.kernel import Kernel
from pallasc.runtime.opening import open_bundle
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.writer import build_bundle
from pallasc.specs.gpus import MODELS
from pallasc.specs.tuning import Measured, Row, Tuning

H100 = MODELS["h100-sxm"].description


def row(m: int, *, gpu: str = "h100-sxm", device: str = "") -> Row:
    """Return a row that uses the variant that it is put into."""
    return Row(gpu, (m,), {}, measured=Measured(10.0, device=device))


def artifact(m: int, tile: int, target: str = "h100-sxm", outputs: Sequence[str] = ()) -> Any:
    """Return a kernel that adds `m` rows with a grid of `tile` blocks."""
    array = f"f32[{m}, 64]"
    return made.artifact(
        made.launch("three", 0, 1, 2, grid=(tile, 1, 1)),
        inputs={"a": array, "b": array},
        outputs=outputs or [array],
        target=target,
    )


def item(
    m: int,
    tile: int,
    *rows: Row,
    target: str = "h100-sxm",
    more: Mapping[str, Any] | None = None,
    outputs: Sequence[str] = (),
    **tune: Any,
) -> Item:
    """Return a variant for `m` rows with a tile; `more` are parameters beside `m` and `tile`."""
    tuning = Tuning(by=("m",), over=("tile",), rows=rows, **{"buckets": {"m": "pow2"}, **tune})
    made_one = artifact(m, tile, target, outputs)
    return Item("add", {"m": m, "tile": tile, **(more or {})}, made_one, tuning=tuning)


def kernel(path: Path, items: Iterable[Item]) -> Kernel:
    """Return the kernel of a bundle of these variants."""
    file = path / "tuned.pallasc"
    file.write_bytes(build_bundle(items, level=1))
    return open_bundle(file)["add"]
