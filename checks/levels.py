"""The levels of `pallasc check`, each a package of its own.

To add a level, write a package `checks/NAME` with

* a module `level` with `run(subject: Subject, options: Options) -> LevelResult`. It is called in a
  worker process of its own, with the build's limits on time and memory: it may import what it
  likes, hang, crash or eat memory, and only this variant's result is lost. It raises nothing but
  `PallascError`, which is a mistake of the user's (a reference that fails, inputs that do not fit);
* a module `rules` with `RULES: tuple[Rule, ...]`, which imports neither numpy nor JAX;

and a row here, and its name in `LEVELS` of `cli/check.py`. Results are stored under the action
key; what the package imports of pallasc counts (`stored_results`), so that a changed level checks
again. What the user's code reads in the worker counts where the level has `needs_source` or
`calls_reference`.

The packages are named here and imported when they run: none of them is imported by the command.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass

from pallasc.checks.findings import LevelResult, Rule
from pallasc.checks.subject import Options, Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A level.

    Attributes:
        name: as in `--level`.
        package: of pallasc, without `pallasc.` in front.
        needs_source: it calls the user's function or reference, which bundles do not have.
        calls_reference: it calls the user's reference where there is source, and goes without.
        takes_ptx: it is given the PTX of XLA's kernels, where that can be had.
        takes_schedules: `--schedules` decides its result.
    """

    name: str
    package: str
    needs_source: bool = False
    calls_reference: bool = False
    takes_ptx: bool = False
    takes_schedules: bool = False

    @property
    def calls_user(self) -> bool:
        """Tell whether it calls code of the user's, where there is source."""
        return self.needs_source or self.calls_reference

    @property
    def own_parts(self) -> tuple[str, ...]:
        """The parts of pallasc that decide its result, with all that they import."""
        return (self.package, "checks.worker")


_LEVELS = (
    Level(name="interpreter", package="checks.interpreter", needs_source=True),
    Level(
        name="artifact",
        package="checks.artifact",
        calls_reference=True,
        takes_ptx=True,
        takes_schedules=True,
    ),
)
LEVELS = {level.name: level for level in _LEVELS}
"""By name, in the order in which they are shown: the cheapest first."""

ALL = "all"


def chosen_levels(name: str) -> tuple[Level, ...]:
    """Return the levels of `--level NAME`."""
    return tuple(LEVELS.values()) if name == ALL else (LEVELS[name],)


def run_level(level: Level, subject: Subject, options: Options) -> LevelResult:
    """Run a level in this process.

    Raises:
        PallascError: a mistake of the user's.
    """
    module = importlib.import_module(f"pallasc.{level.package}.level")
    result: LevelResult = module.run(subject, options)
    return result


def rules_of(levels: Iterable[Level]) -> dict[str, Rule]:
    """Return the rules of levels by their names."""
    return {
        rule.name: rule
        for level in levels
        for rule in importlib.import_module(f"pallasc.{level.package}.rules").RULES
    }
