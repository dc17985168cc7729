"""Say which variables of this environment kernels asked for and did not get to see.

Kernels see the variables that their specs declare (`environment`). One that asks for another gets
none, wherever it is built; where that variable is set here, somebody may have meant it to count.
The same for a file of the home folder, in whose place workers have an empty one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pallasc.specs.variables import why_not_declared

if TYPE_CHECKING:
    from pallasc.compiler.builds.report import VariantResult
    from pallasc.compiler.workers.diagnostics import Diagnostic

_HOME = f"~{os.sep}"


@dataclass(slots=True)
class HiddenInputs:
    """What kernels asked for: who, by the name of a variable or of a file in the home folder."""

    asked: dict[str, dict[str, str]] = field(default_factory=dict)

    def add(self, kernel: str, missed: Mapping[str, str]) -> None:
        """Take down what a kernel asked for: `missed` of its manifest."""
        for name, place in missed.items() if isinstance(missed, Mapping) else ():
            self.asked.setdefault(name, {}).setdefault(kernel, place)

    def notes(self) -> list[str]:
        """Return a sentence for each that is set, or lies, here."""
        return [
            _note(name, askers) for name, askers in sorted(self.asked.items()) if _is_here(name)
        ]


def diagnostics_of(result: VariantResult) -> list[Diagnostic]:
    """Return the same of one variant, for who fails builds that say too much."""
    from pallasc.compiler.workers.diagnostics import Diagnostic

    kernel, missed = result.variant.name, result.missed
    return [
        Diagnostic("lower", "pallasc", str(place), _note(name, {kernel: ""}))
        for name, place in (missed.items() if isinstance(missed, Mapping) else ())
        if _is_here(name)
    ]


def _is_here(name: str) -> bool:
    if name.startswith(_HOME):
        return os.path.isfile(os.path.expanduser(name))
    return name in os.environ


def _note(name: str, askers: Mapping[str, str]) -> str:
    (first, place), *others = askers.items()
    who = first if not others else f"{first} and {_more(others)}"
    where = f" ({place})" if place else ""
    if name.startswith(_HOME):
        return (
            f"{who} looked for {name}{where}, which is there, and does not get to see it: kernels "
            'have a home that is empty. To let them see yours, write env: ["HOME"] in the spec.'
        )
    asks = "asks" if not others else "ask"
    why = why_not_declared(name)
    if why:
        return f"{who} {asks} for {name}{where}, which is set here and not let through: it {why}."
    return (
        f"{who} {asks} for {name}{where}, which is set here and not let through, so none is seen. "
        f'To let it through, write env: ["{name}"] in the spec, or env = ["{name}"] under '
        "[tool.pallasc] in pyproject.toml."
    )


def _more(others: Iterable[object]) -> str:
    count = len(list(others))
    return f"{count} other kernel{'s' if count > 1 else ''}"
