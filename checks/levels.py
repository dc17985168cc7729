"""The levels of `pallasc check`, each in a separate package.

To add a level, write a package `checks/NAME` with

* a module `level` with `run(subject: Subject, options: Options) -> LevelResult`. It is called in a
  separate worker process, with the build's limits on time and memory: it may import anything, hang,
  crash or run out of memory, and only this variant's result is lost. It raises only `PallascError`,
  for a mistake of the user (a reference that fails, inputs that do not fit);
* a module `rules` with `RULES: tuple[Rule, ...]`, which imports neither numpy nor JAX;

and add a row here, and its name to `LEVELS` in `cli/check.py`. Results are stored under the action
key and the digest of the pallasc modules that the package imports (`stored_results`), so that a
changed level checks again. Files that the user's code reads in the worker count if the level has
`needs_source` or `calls_reference`.

The packages are only named here and imported when they run: the command imports none of them.
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
        package: its package in pallasc, without the `pallasc.` prefix.
        needs_source: it calls the user's function or reference, which bundles do not have.
        calls_reference: it calls the user's reference if there is source, and also runs without.
        takes_ptx: it uses the PTX of XLA's kernels, if available.
        takes_schedules: its result depends on `--schedules`.
    """

    name: str
    package: str
    needs_source: bool = False
    calls_reference: bool = False
    takes_ptx: bool = False
    takes_schedules: bool = False

    @property
    def calls_user(self) -> bool:
        """True if it calls the user's code when there is source."""
        return self.needs_source or self.calls_reference

    @property
    def own_parts(self) -> tuple[str, ...]:
        """The parts of pallasc that decide its result, including everything they import."""
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
"""By name, in display order: the cheapest first."""

ALL = "all"


def chosen_levels(name: str) -> tuple[Level, ...]:
    """Return the levels of `--level NAME`."""
    return tuple(LEVELS.values()) if name == ALL else (LEVELS[name],)


def run_level(level: Level, subject: Subject, options: Options) -> LevelResult:
    """Run a level in this process.

    Raises:
        PallascError: for a mistake of the user.
    """
    module = importlib.import_module(f"pallasc.{level.package}.level")
    result: LevelResult = module.run(subject, options)
    return result


def rules_of(levels: Iterable[Level]) -> dict[str, Rule]:
    """Return the rules of levels by name."""
    return {
        rule.name: rule
        for level in levels
        for rule in importlib.import_module(f"pallasc.{level.package}.rules").RULES
    }
