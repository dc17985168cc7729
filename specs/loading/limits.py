"""How much specs may expand to: counted from their sizes, before anything is expanded.

Every count is a product or a sum over lengths, and takes no longer than reading the specs did.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

from pallasc.errors import SpecError
from pallasc.specs.spec import Spec
from pallasc.specs.templates import is_template

VARIABLE = "PALLASC_MAX_VARIANTS"
MOST_VARIANTS = 100_000
"""Variants that specs expand to, where `$PALLASC_MAX_VARIANTS` says nothing else."""

VALUES_PER_VARIANT = 100
"""Values that specs may take to fill in, for each variant that is allowed."""

MOST_EXCLUDED_SETS = 100
"""Different sets of parameters that the points of one `exclude` have."""


def most_variants() -> int:
    """Return the most variants that specs may expand to.

    Raises:
        SpecError: `$PALLASC_MAX_VARIANTS` is not a positive whole number.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return MOST_VARIANTS
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) > 0):
        raise SpecError(f"{VARIABLE} must be a whole number from 1 to 999999999, got {text!r}.")
    return int(text)


def check_expansion(specs: Iterable[Spec]) -> None:
    """Check that specs do not expand to more than is allowed.

    Raises:
        SpecError: they do; the message counts.
    """
    most = most_variants()
    most_values = most * VALUES_PER_VARIANT
    sizes: dict[int, tuple[int, int]] = {}
    variants = values = 0
    for spec in specs:
        points = count_points(spec)
        own = points * max(1, len(spec.targets))
        variants += own
        if variants > most:
            before = f", with {variants - own} before it," if variants > own else ""
            raise SpecError(
                f"{spec.name}: {own} variants{before} are more than the {most} that specs may "
                "expand to.",
                location=spec.where("matrix"),
                hint=f"Make the matrix smaller, or allow more: {VARIABLE}={variants}.",
            )
        values += _values(spec, points, sizes)
        if values > most_values:
            raise SpecError(
                f"{spec.name}: filling in its {own} variants takes more than {most_values} values.",
                location=spec.where("matrix"),
                hint=f"Make the matrix, or what it is filled into, smaller, or raise {VARIABLE}.",
            )


def count_points(spec: Spec) -> int:
    """Return how many points a spec has before any is excluded."""
    axes = [len(values) for values in spec.axes.values()]
    product = max(1, len(spec.rows)) * math.prod(axes)
    return len(spec.include) + (product if spec.matrix or spec.rows or not spec.include else 0)


def _values(spec: Spec, points: int, sizes: dict[int, tuple[int, int]]) -> int:
    """Return how many values are read or made to expand a spec."""
    total = filled = 0
    for tree in (spec.args, spec.static):
        size, anew = _size(tree, sizes)
        total, filled = total + size, filled + anew
    names = len(spec.axes) + (len(spec.rows[0].values) if spec.rows else 0)
    names = names or (len(spec.include[0]) if spec.include else 0)
    # Fewer sets than this are held against each point.
    sets = min(len(spec.exclude), MOST_EXCLUDED_SETS)
    lists = sum(map(len, spec.axes.values())) + len(spec.exclude) + len(spec.include)
    return total + lists + points * (len(spec.targets) + names + filled + sets)


def _size(tree: Any, sizes: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Return how many values a tree has, and how many of them are made again for each point.

    Kernels of one file share the trees of its defaults: `sizes` holds those that were counted.
    """
    if isinstance(tree, str):
        return 1, int(is_template(tree))
    if not isinstance(tree, list | Mapping):
        return 1, 0
    if id(tree) not in sizes:
        items = tree.values() if isinstance(tree, Mapping) else tree
        counted = [_size(item, sizes) for item in items]
        anew = sum(filled for _, filled in counted)
        sizes[id(tree)] = (
            1 + sum(size for size, _ in counted),
            anew + len(counted) if anew else 0,
        )
    return sizes[id(tree)]
