"""The kernels of a folder made by `pack.py`: bundles, and `variants.json`, which lists them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Carried:
    """A variant in a bundle.

    Attributes:
        id: `hopper_matmul[m=1024,tile_n=128]@h100-sxm`.
        name: the kernel.
        params: its point of the matrix.
        entry: the function, `module:function`.
        args: the arrays by name, `bf16[1024, 4096]`; None for an argument that is None.
        static: the other arguments, as in the spec.
        tolerance: `rtol` and `atol` of the spec, None if it has none.
        arch: `sm_90a`.
        bundle: the file, relative to the folder.
        is_tuning: True if it is a tuning of one of JAX's kernels.
        folder: the packed folder.
    """

    id: str
    name: str
    params: Mapping[str, Any]
    entry: str
    args: Mapping[str, Any]
    static: Mapping[str, Any]
    tolerance: Mapping[str, float] | None
    arch: str
    bundle: str
    is_tuning: bool
    folder: Path

    def kernel(self) -> Any:
        """Open the kernel, with this variant only."""
        import pallasc

        return pallasc.open_bundle(self.folder / self.bundle)[self.name].variant(**self.params)

    def arrays(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return dtype and shape of each array by name."""
        from pallasc.specs.arrays import resolve_array

        made = {name: resolve_array(text) for name, text in self.args.items() if text is not None}
        return {name: (array.dtype, array.shape) for name, array in made.items()}


@cache
def read_variants(folder: Path) -> list[Carried]:
    """Return all variants of a packed folder."""
    rows = json.loads((folder / "variants.json").read_text())
    return [Carried(**{**row, "params": dict(row["params"])}, folder=folder) for row in rows]


def why_not(variant: Carried, capability: Sequence[int]) -> str | None:
    """Return why a variant cannot be launched on a GPU of this capability, None if it can."""
    from pallasc.runtime.matching.selection import arch_refusal

    return arch_refusal(variant.arch, *capability)


def chosen(folder: Path, options: Mapping[str, Any]) -> list[Carried]:
    """Return the variants that -k selects, the first one of each kernel before the others."""
    only = options["only"] or [""]
    variants = [one for one in read_variants(folder) if any(text in one.id for text in only)]
    firsts = {one.name: one.id for one in reversed(variants)}
    return sorted(variants, key=lambda one: (one.is_tuning, one.id != firsts[one.name]))
