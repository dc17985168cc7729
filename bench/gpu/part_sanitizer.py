"""compute-sanitizer over one small variant of each kernel: memory, races, barriers, uninitialized.

`sanitized.py` is what runs under it: one launch with arrays of numpy.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from carried import Carried, is_asked, read_variants, why_not
from desk import Desk
from machine import find_tool
from units import Unit

TITLE = "compute-sanitizer over small kernels"
SHARE = 0.06
AT_ONCE = 4

_TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
_SUMMARY = re.compile(r"(?:ERROR SUMMARY|RACECHECK SUMMARY): (\d+) (?:error|hazard)")
_MOST_LINES = 40


def units(folder: Path, machine: Mapping[str, Any], options: Mapping[str, Any]) -> list[Unit]:
    """Return a unit for each tool and kernel, each tool once over all before the next."""
    reason = None if machine["tools"]["compute-sanitizer"] else "compute-sanitizer is not here"
    chosen = [
        variant
        for variant in read_variants(folder)
        if is_asked(variant, options) and why_not(variant, *machine["capability"]) is None
    ]
    return [
        Unit("sanitizer", f"{tool} {variant.id}", 90, 10, reason=reason)
        for tool in _TOOLS
        for variant in smallest(chosen)
    ]


def smallest(variants: list[Carried]) -> list[Carried]:
    """Return of each kernel the variant with the smallest arrays, those with less work first."""
    from math import prod

    sizes = {
        variant.id: sum(prod(shape) for _, shape in variant.arrays().values())
        for variant in variants
    }
    ordered = sorted(variants, key=lambda variant: sizes[variant.id])
    return list({variant.name: variant for variant in reversed(ordered)}.values())[::-1]


def run(desk: Desk) -> None:
    """Run one kernel under one tool; tell what it has found."""
    tool, _, name = desk.name.partition(" ")
    desk.ask("findings", lambda: sanitize(desk, tool, name))


def sanitize(desk: Desk, tool: str, name: str) -> dict[str, Any]:
    """Return how many findings a tool has, and its first lines where it has any."""
    with tempfile.NamedTemporaryFile("r", suffix=".log") as log:
        command = [find_tool("compute-sanitizer") or "", "--tool", tool, "--log-file", log.name]
        script = [sys.executable, "-P", str(Path(__file__).with_name("sanitized.py"))]
        done = subprocess.run(
            [*command, *script, str(desk.folder), name],
            capture_output=True,
            text=True,
            check=False,
        )
        text = log.read()
    found = _SUMMARY.search(text)
    ran = "launched" in done.stdout
    if not ran or found is None:
        said = [*text.splitlines(), *done.stderr.splitlines()][-_MOST_LINES:]
        return {"right": False, "findings": None, "launched": ran, "said": said}
    count = int(found[1])
    said = {"said": text.splitlines()[:_MOST_LINES]} if count else {}
    return {"right": count == 0, "findings": count, "launched": True, **said}
