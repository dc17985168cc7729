"""The codes that the stand-in driver only models, provoked on the real one, beside its answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from desk import Desk
from units import Unit

TITLE = "result codes against the stand-in's"
SHARE = 0.08
AT_ONCE = 1
ABSENT = "no answer"


def units(folder: Path, machine: Mapping[str, Any], options: Mapping[str, Any]) -> list[Unit]:
    """Return a unit for each case that was packed with the stand-in's answers."""
    cases = json.loads((folder / "codes" / "cases.json").read_text())
    return [Unit("codes", name, environment=more) for name, more in cases.items()]


def run(desk: Desk) -> None:
    """Run one case; tell each answer with the stand-in's, as soon as it is there."""
    from cases import CASES
    from error_codes import load_cases
    from ground import Ground

    load_cases()
    codes = desk.folder / "codes"
    known = json.loads((codes / "standin.json").read_text()).get(desk.name, {})
    case, ground = CASES[desk.name], Ground(codes)
    if case.starts:
        ground.start()
    for label, answer in case.run(ground):
        real = json.loads(json.dumps(answer, default=str))
        standin = known.pop(label, ABSENT)
        desk.tell(label, real=real, standin=standin, same=real == standin)
    for label, standin in known.items():
        desk.tell(label, real=ABSENT, standin=standin, same=False)
