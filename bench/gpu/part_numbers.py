"""The numbers of every kernel of the library, with arrays of every framework, against numpy's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from carried import is_asked, read_variants, why_not
from desk import Desk
from units import Unit

TITLE = "numbers of every kernel, in every framework"
SHARE = 0.26
AT_ONCE = 4


def units(folder: Path, machine: Mapping[str, Any], options: Mapping[str, Any]) -> list[Unit]:
    """Return a unit for each kernel that runs here."""
    return [
        Unit("numbers", variant.id, limit_s=120, needs_s=12)
        for variant in read_variants(folder)
        if is_asked(variant, options) and why_not(variant, *machine["capability"]) is None
    ]


def run(desk: Desk) -> None:
    """Compare a kernel's numbers in all frameworks."""
    from arrays import ADAPTERS
    from judge import Judge
    from references import make_inputs

    variant = desk.variant(desk.name)
    inputs = make_inputs(variant)
    judge = Judge(variant, inputs, desk.options["rows"])
    kernel = variant.kernel()
    for what, call in ADAPTERS.items():
        if what in desk.options["adapters"] or not desk.options["adapters"]:
            desk.ask(what, lambda call=call: judge.compare(call(kernel, inputs)))
