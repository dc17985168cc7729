"""From the start of a process to its first result: the carried cubin against JAX's own way."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from carried import firsts, is_asked, read_variants, why_not
from desk import Desk, MissingError
from units import Unit

TITLE = "from the start of a process to its first result"
SHARE = 0.04
AT_ONCE = 1

_STARTED = ("jax_hopper_matmul", "jax_blackwell_matmul", "rms_norm", "add")


def units(folder: Path, machine: Mapping[str, Any], options: Mapping[str, Any]) -> list[Unit]:
    """Return a unit for one variant of some kernels."""
    chosen = [
        variant
        for variant in read_variants(folder)
        if is_asked(variant, options) and why_not(variant, *machine["capability"]) is None
    ]
    return [
        Unit("starts", variant.id, 240, 20)
        for variant in firsts(chosen)
        if variant.name in _STARTED
    ]


def run(desk: Desk) -> None:
    """Start processes in both ways; the first of each reads from the disk and is not counted."""
    from first_result import timed

    variant = desk.variant(desk.name)

    def starts(way: str) -> dict[str, Any]:
        found = [timed(desk.folder, variant, way) for _ in range(desk.options["rounds"] + 1)]
        seconds = [second for second, _ in found if second is not None][1:]
        if len(seconds) < len(found) - 1:
            raise MissingError(next(said for second, said in found if second is None))
        return {"seconds": statistics.median(seconds), "result": found[-1][1]}

    for way in ("pallasc", "jax"):
        desk.ask(way, lambda way=way: starts(way))
