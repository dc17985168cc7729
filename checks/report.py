"""The findings of a check for each variant, and the exit code of the command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pallasc.checks.findings import LevelResult
from pallasc.errors import Location, PallascError, ToolError
from pallasc.specs.spec import Variant

if TYPE_CHECKING:
    from pallasc.compiler.builds.report import VariantResult


@dataclass(frozen=True, slots=True)
class VariantCheck:
    """The results of one variant.

    Attributes:
        id: its display name.
        variant: the variant it was compiled from, None if there is no source.
        action_key: its action key, None if unknown.
        digest: the digest of its artifact, None if it has none.
        results: a result for each requested level; empty if it did not compile.
        from_store: the levels whose results came from the store.
        errors: by level, why the check itself failed.
        built: the result of building it, None if nothing was built.
        origin: the bundle that contains it, None for others.
    """

    id: str
    variant: Variant | None
    action_key: str | None
    digest: str | None
    results: tuple[LevelResult, ...] = ()
    from_store: frozenset[str] = frozenset()
    errors: Mapping[str, PallascError] = field(default_factory=dict)
    built: VariantResult | None = None
    origin: Location | None = None

    @property
    def place(self) -> Location | None:
        """Its kernel's location in the spec, or its bundle; None if only its key is known."""
        return self.variant.location if self.variant is not None else self.origin

    @property
    def exit_codes(self) -> list[int]:
        """The exit codes that its results call for."""
        built = self.built.error if self.built is not None else None
        codes = [error.exit_code for error in (built, *self.errors.values()) if error is not None]
        return codes + [1 for result in self.results if result.fails and not result.stopped]


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a check.

    Attributes:
        checks: a check for each variant, in the order of the variants.
        seconds: duration in seconds.
        levels: the names of the requested levels.
        notes: warnings.
        interrupted: True if it was interrupted; unfinished variants lack results.
        errors: errors of spec files that could not be executed.
    """

    checks: tuple[VariantCheck, ...]
    seconds: float
    levels: tuple[str, ...]
    notes: tuple[str, ...] = ()
    interrupted: bool = False
    errors: tuple[PallascError, ...] = ()

    @property
    def left(self) -> int:
        """The number of variants that lack results of some level because of an interrupt."""
        return sum(bool(self.missing(check)) for check in self.checks)

    def missing(self, check: VariantCheck) -> tuple[str, ...]:
        """Return the levels that have no result for a variant because of an interrupt."""
        if not self.interrupted or (check.built is not None and check.built.error is not None):
            return ()
        done = {result.level for result in check.results}
        return tuple(level for level in self.levels if level not in done)

    @property
    def exit_code(self) -> int:
        """0 if nothing was found, 1 for a finding, 130 if interrupted, else the first error's code.

        4 if nothing could be checked; see `unchecked`.
        """
        if self.interrupted:
            return 130
        codes = self._exit_codes
        if not codes and (unchecked := self.unchecked) is not None:
            return unchecked.exit_code
        return 1 if 1 in codes else next(iter(codes), 0)

    @property
    def _exit_codes(self) -> list[int]:
        codes = [code for check in self.checks for code in check.exit_codes]
        return codes + [error.exit_code for error in self.errors]

    @property
    def unchecked(self) -> PallascError | None:
        """The error of a check in which no level could check any variant, else None.

        None also if variants have errors, which explain themselves.
        """
        results = [result for check in self.checks for result in check.results]
        if any(r.status != "not checked" for r in results) or not results:
            return None
        if self.interrupted or self._exit_codes:
            return None
        count = len(self.checks)
        which = "the variant" if count == 1 else f"any of the {count:,} variants"
        has_source = any(check.variant is not None for check in self.checks)
        hint = "Each level says why."
        if not has_source:
            hint += " Name specs instead, or bundles made with --keep-ptx."
        return ToolError(f"nothing was checked: no level could check {which}.", hint=hint)
