"""What a folder made by `pack.py` holds: kernels with their artifacts, and who they are.

`kernels/variants.json` lists the variants of the library, `tunings/variants.json` those of JAX's
kernels over their tunings; records and blobs lie beside them under their digests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Carried:
    """A variant with its artifact.

    Attributes:
        id: `hopper_matmul[m=1024,tile_n=128]@h100-sxm`.
        name: the kernel.
        params: its point of the matrix.
        entry: where the function is, `module:function`.
        args: the arrays by name, `bf16[1024, 4096]`; None for what is passed as None, a list for
            several under one name.
        static: the other arguments, as in the spec.
        tolerance: `rtol` and `atol` of the spec, None where it has none.
        arch: `sm_90a`.
        devices: how many GPUs it is for.
        artifact: digest of the record.
        folder: where records and blobs lie.
    """

    id: str
    name: str
    params: Mapping[str, Any]
    entry: str
    args: Mapping[str, Any]
    static: Mapping[str, Any]
    tolerance: Mapping[str, float] | None
    arch: str
    devices: int
    artifact: str
    folder: Path

    @cached_property
    def record(self) -> Mapping[str, Any]:
        """Return the artifact's record."""
        record: Mapping[str, Any] = json.loads((self.folder / self.artifact).read_text())
        return record

    def opened(self) -> Any:
        """Return the artifact."""
        from pallasc.specs.artifacts.artifact import Artifact

        return Artifact(self.record, read_blobs(self.folder))

    def kernel(self) -> Any:
        """Return the kernel with this variant only."""
        from pallasc.runtime.opening import Kernels

        return Kernels([(self.name, self.params, self.opened())])[self.name]

    def arrays(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return dtype and shape of each array by name, in the function's order."""
        from pallasc.specs.arrays import resolve_array

        made = {name: resolve_array(text) for name, text in _flat(self.args) if text is not None}
        return {name: (array.dtype, array.shape) for name, array in made.items()}


def read_blobs(folder: Path) -> Callable[[str], bytes]:
    """Return the function that reads a blob of a folder of kernels."""
    return lambda key: (folder / "blobs" / key).read_bytes()


def _flat(args: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """Yield each array with its name; those of a list are `name[0]`, `name[1]` and so on."""
    for name, tree in args.items():
        if isinstance(tree, list):
            yield from ((f"{name}[{number}]", text) for number, text in enumerate(tree))
        else:
            yield name, tree


@cache
def read_variants(folder: Path, kind: str = "kernels") -> list[Carried]:
    """Return the variants that a packed folder holds: `kernels`, or `tunings`."""
    place = folder / kind
    rows = json.loads((place / "variants.json").read_text())
    return [Carried(**{**row, "params": dict(row["params"])}, folder=place) for row in rows]


def write_artifact(folder: Path, artifact: Any) -> str:
    """Write record and blobs of an artifact into a folder; return its digest."""
    from pallasc.specs.canonical import canonical_json

    (folder / "blobs").mkdir(parents=True, exist_ok=True)
    (folder / artifact.digest).write_bytes(canonical_json(artifact.record))
    for key, data in artifact.blobs().items():
        (folder / "blobs" / key).write_bytes(data)
    digest: str = artifact.digest
    return digest


def read_artifact(folder: Path, digest: str) -> Any:
    """Return an artifact that `write_artifact` wrote."""
    from pallasc.specs.artifacts.artifact import Artifact

    return Artifact(json.loads((folder / digest).read_text()), read_blobs(folder))


def is_asked(variant: Carried, options: Mapping[str, Any]) -> bool:
    """Tell whether a variant was asked for with -k, or nothing was."""
    only = options["only"]
    return not only or any(text in variant.id for text in only)


def why_not(variant: Carried, major: int, minor: int) -> str | None:
    """Return why a variant cannot be launched on such a GPU, None where it can."""
    from pallasc.runtime.matching.selection import arch_refusal

    if variant.devices > 1:
        return f"it is for {variant.devices} GPUs, and such kernels are compiled, not launched"
    return arch_refusal(variant.arch, major, minor)


def firsts(variants: Iterable[Carried]) -> list[Carried]:
    """Return the first variant of each kernel."""
    found: dict[str, Carried] = {}
    for variant in variants:
        found.setdefault(variant.name, variant)
    return list(found.values())
