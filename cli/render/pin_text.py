"""Pins of the store, in lines for a person: key, what the artifact was compiled for, label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pallasc.specs.spelling import plain

if TYPE_CHECKING:
    from pallasc.cache.about import About
    from pallasc.cache.upkeep.pins import Pin

_MOST_NAMED = 3


def pin_lines(found: Sequence[Pin], about: Mapping[str, Sequence[About]], done: str) -> list[str]:
    """Return a line for each pin.

    Args:
        found: the pins.
        about: the variants that led to each artifact, by action key.
        done: what was done with the pins: `pinned`, `removed`; "" where they are only listed.
    """
    lines = []
    for pin in found:
        named = [_variant(one) for one in about.get(pin.key, ())]
        more = [f"and {len(named) - _MOST_NAMED} more"] if len(named) > _MOST_NAMED else []
        words = [done, pin.key, ", ".join([*named[:_MOST_NAMED], *more]), pin.label]
        lines.append("  ".join(filter(None, words)))
    return lines


def _variant(about: About) -> str:
    """Return `matmul (m=1024, n=4096, h100-sxm)`."""
    params = (f"{name}={plain(value)}" for name, value in about.params.items())
    return f"{about.name} ({', '.join(filter(None, [*params, about.target]))})"
