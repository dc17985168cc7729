"""Check what specs declare of batches: which kernel `jax.vmap` of a kernel calls."""

from __future__ import annotations

from collections.abc import Iterable

from pallasc.errors import SpecError
from pallasc.specs.spec import Spec, Variant
from pallasc.specs.spelling import suggestion

_Ranks = tuple[int, ...]
"""How many dimensions each array of a variant has."""


def check_batch_names(specs: Iterable[Spec]) -> None:
    """Check that `vmap` of each spec names a kernel, and the same in all files.

    Args:
        specs: all specs of a command.

    Raises:
        SpecError: there is no such kernel, or two files name different ones for one kernel.
    """
    specs = list(specs)
    names = list(dict.fromkeys(spec.name for spec in specs))
    known = set(names)
    declared: dict[str, Spec] = {}
    for spec in specs:
        if spec.vmap is None:
            continue
        if spec.vmap not in known:
            raise SpecError(
                f"{spec.name}.vmap: there is no kernel {spec.vmap!r}.",
                location=spec.where("vmap"),
                hint=suggestion(spec.vmap, names, otherwise="Kernels"),
            )
        other = declared.setdefault(spec.name, spec)
        if other.vmap != spec.vmap:
            raise SpecError(
                f"{spec.name}.vmap: vmap is {spec.vmap!r} here and {other.vmap!r} in another file.",
                location=spec.where("vmap"),
                hint=f"The other is at {other.where('vmap')}. Name the same kernel in both.",
            )


def check_batch_arrays(variants: Iterable[Variant]) -> None:
    """Check that a kernel for batches takes arrays with one more dimension.

    A kernel without variants here is not looked at.

    Raises:
        SpecError: it takes another number of arrays, or none with a dimension more.
    """
    variants = list(variants)
    declaring = {own.name: own for own in reversed(variants) if own.vmap is not None}
    if not declaring:
        return
    ranks: dict[str, dict[_Ranks, Variant]] = {}
    for variant in variants:
        own = tuple(len(array.shape) for _, array in variant.arrays())
        ranks.setdefault(variant.name, {}).setdefault(own, variant)
    for name, first in declaring.items():
        batched = ranks.get(first.vmap or "")
        if batched is None or any(
            _is_batch(own, other) for own in ranks[name] for other in batched
        ):
            continue
        other = next(iter(batched.values()))
        raise SpecError(
            f"{name}.vmap: no variant of {first.vmap} takes arrays like those of {name} with one "
            f"more dimension in front: {name} takes {_arrays(first)}, {first.vmap} "
            f"{_arrays(other)}.",
            location=first.where("vmap"),
            hint="The arrays of both are in one order; in each, or in some, the batch comes first.",
        )


def _is_batch(ranks: _Ranks, batched: _Ranks) -> bool:
    """Tell whether arrays of these ranks may be a batch; some may have none."""
    more = [other - own for own, other in zip(ranks, batched, strict=False)]
    return len(ranks) == len(batched) and set(more) <= {0, 1} and 1 in more


def _arrays(variant: Variant) -> str:
    return ", ".join(str(array) for _, array in variant.arrays()) or "no arrays"
