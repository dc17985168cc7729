"""The results of every kernel, with arrays of every framework, against numpy."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from carried import chosen, why_not
from desk import Desk
from schedule import Unit

TITLE = "numbers of every kernel, in every framework"
SHARE = 0.4
AT_ONCE = 4


def units(folder: Path, machine: Mapping[str, Any], options: Mapping[str, Any]) -> list[Unit]:
    """Return a unit for each variant with a reference; `tune run` compares the others."""
    from references import REFERENCES

    return [
        Unit("numbers", one.id, 120, 12, reason=why_not(one, machine["capability"]))
        for one in chosen(folder, options)
        if one.name in REFERENCES
    ]


def run(desk: Desk) -> None:
    """Compare the results of a variant; a tuning is called with numpy arrays only."""
    from arrays import ADAPTERS
    from references import Judge, make_inputs

    variant = desk.variant()
    inputs = make_inputs(variant)
    judge, kernel = Judge(variant, inputs, desk.options["rows"]), variant.kernel()
    for what, call in ADAPTERS.items():
        if what == "numpy" or not variant.is_tuning:
            desk.ask(what, lambda call=call: judge.compare(call(kernel, inputs)))
