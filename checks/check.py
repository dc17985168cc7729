"""Check variants: reuse the results in the store, and run the remaining levels in workers.

If nothing has changed since the last check, no worker is started and JAX is not imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pallasc.checks.candidate import Candidate, Events
from pallasc.checks.jobs import Asking, Job, run_jobs
from pallasc.checks.levels import Level
from pallasc.checks.locate import Locator
from pallasc.checks.report import VariantCheck
from pallasc.checks.rules import RACE
from pallasc.checks.small_sizes import sizes_note, with_sizes
from pallasc.checks.stored_results import Checkable, StoredResults
from pallasc.checks.subject import Options
from pallasc.errors import PallascError

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.checks.findings import Finding, LevelResult
    from pallasc.checks.messages import Checked
    from pallasc.compiler.builds.options import Options as BuildOptions
    from pallasc.compiler.toolchain.setup import Context
    from pallasc.compiler.workers.messages import Reply
    from pallasc.specs.artifacts.artifact import Artifact


_DECIDES = "artifact"
"""The level that executes the compiled code; it decides if a race from another level is real."""
_ORDERED = "The artifact level executed the kernel and found these accesses ordered."


class _Unlocated(NamedTuple):
    """A result whose findings still lack source lines, and the variants that asked for it."""

    level: Level
    result: LevelResult
    artifact: Artifact
    checkable: Checkable
    asking: Sequence[Asking]
    from_store: bool = False


class Checking:
    """The state of one check.

    Args:
        store: the store for results.
        levels: the levels to run.
        options: the check's options.
        limits: jobs, time and memory of the workers, as for a build.
        context: the toolchain's identity; None if nothing was built.
        events: callbacks.
    """

    def __init__(
        self,
        store: Store,
        levels: Sequence[Level],
        options: Options,
        *,
        limits: BuildOptions,
        context: Context | None,
        events: Events,
    ) -> None:
        self._store = store
        self._levels = levels
        self._options = options
        self._limits = limits
        self._events = events
        self._context = context or _own_context(store)
        self._stored = StoredResults(store, self._context)
        self._jobs: dict[tuple[str, str], Job] = {}
        self._results: dict[tuple[int, str], tuple[LevelResult, bool]] = {}
        self._errors: dict[tuple[int, str], PallascError] = {}
        self._locator = Locator(store, limits.timeout_s, limits.jobs)
        self._unlocated: list[_Unlocated] = []
        self._undecided: list[tuple[Candidate, Level]] = []
        self.notes: list[str] = []

    def look_up(self, asking: Candidate, small: Candidate | None = None) -> None:
        """Take the results that the store has, and queue the rest.

        Args:
            asking: the variant that the user asked about.
            small: the variant with the spec's small sizes, which is checked instead.

        Raises:
            SpecError, ArgumentError: input files do not fit the variant.
        """
        if small is None:
            self._look_up(Asking(asking), asking, self._options)
        else:
            self._look_up(Asking(asking, sizes_note(asking, small)), small, self._seeded(asking))

    def _look_up(self, asking: Asking, subject: Candidate, options: Options) -> None:
        if options.inputs:
            from pallasc.checks.inputs import check_plan

            check_plan(options.inputs, subject.artifact.plan, subject.id)
        try:
            checkable = self._stored.subject(
                options,
                action=subject.action_key,
                artifact=subject.artifact.digest,
                variant=subject.variant,
                request=subject.request,
            )
            found = self._stored.find(checkable, self._levels)
        except PallascError as error:
            for level in self._levels:
                self._settle(asking.candidate, level, _stopped(level, error), error=error)
            return
        for level in self._levels:
            stored = found.get(level.name)
            if stored is None:
                job = Job(level, subject, checkable, options)
                self._jobs.setdefault((checkable.key, level.name), job).asking.append(asking)
            else:
                found_in = (subject.artifact, checkable)
                held = _Unlocated(level, stored.result, *found_in, [asking], True)
                self._locate(held, is_located=stored.is_located)

    def _seeded(self, asking: Candidate) -> Options:
        """Return the options with the seed of the spec, unless the command line sets one."""
        check = asking.variant.check if asking.variant is not None else None
        if check is None or check.seed is None or self._options.seed_given:
            return self._options
        return replace(self._options, seed=check.seed)

    def run(self) -> None:
        """Run the levels whose results the store did not have.

        Raises:
            ToolError: a worker cannot be started.
        """
        try:
            if self._jobs:
                run_jobs(
                    list(self._jobs.values()),
                    self._finish,
                    store=self._store,
                    limits=self._limits,
                    events=self._events,
                )
            self._find_lines()
        except KeyboardInterrupt:
            self.take_stored()
            raise

    def take_stored(self) -> None:
        """Report the results from the store, with the lines they already have, and run nothing."""
        for found in self._unlocated:
            self._settle_located(found, found.result)
        self._unlocated = []
        self._report_undecided()

    def check_of(self, candidate: Candidate) -> VariantCheck:
        """Return the results of a variant so far."""
        names = [level.name for level in self._levels]
        found = {
            name: self._judged(candidate, name)
            for name in names
            if (id(candidate), name) in self._results
        }
        errors = {
            name: self._errors[id(candidate), name]
            for name in names
            if (id(candidate), name) in self._errors
        }
        return VariantCheck(
            candidate.id,
            candidate.variant,
            candidate.action_key or None,
            candidate.artifact.digest,
            tuple(result for result, _ in found.values()),
            frozenset(name for name, (_, from_store) in found.items() if from_store),
            errors,
            origin=candidate.origin,
        )

    def finish(self) -> None:
        """Signal the end of the check, and save the digests of files read during it."""
        self._events.on_end()
        self._context.digests.save()

    def _finish(self, job: Job, reply: Reply) -> None:
        from pallasc.checks.messages import Checked
        from pallasc.compiler.workers.messages import Failed

        if isinstance(reply, Failed):
            error = reply.error
            if reply.place is not None:
                error.location = error.location or reply.place
            for asking, notes in job.asking:
                shown = error
                if asking.variant is not None:
                    shown = with_sizes(error, asking.variant)
                result = _noted(_stopped(job.level, shown), notes)
                self._settle(asking, job.level, result, error=shown)
            return
        checked = reply.require(Checked)
        self._keep(job, checked)
        found_in = (job.subject.artifact, job.checkable)
        self._locate(_Unlocated(job.level, checked.result, *found_in, job.asking))

    def _locate(self, found: _Unlocated, *, is_located: bool = False) -> None:
        """Settle a result, or queue it if its findings still need source lines."""
        if found.result.findings and not is_located:
            self._unlocated.append(found)
        else:
            self._settle_located(found, found.result)

    def _settle_located(self, found: _Unlocated, result: LevelResult) -> None:
        for asking, notes in found.asking:
            noted = _noted(result, notes)
            self._settle(asking, found.level, noted, from_store=found.from_store)

    def _find_lines(self) -> None:
        results = [(each.result, each.artifact, each.checkable.variant) for each in self._unlocated]
        for found, result in zip(self._unlocated, self._locator.located(results), strict=True):
            self._keep_lines(found, result)
            self._settle_located(found, result)
        self._unlocated = []
        self._report_undecided()

    def _keep_lines(self, found: _Unlocated, located: LevelResult) -> None:
        """Store the lines that were found, so that the next check need not compile for them."""
        variant = found.checkable.variant
        if variant is None or not self._locator.has_lines(variant):
            return
        try:
            self._stored.put_located(found.checkable, found.level, found.result, located)
        except PallascError as error:
            self.notes.append(f"the lines of {variant.id} are not stored: {error.message}")

    def _keep(self, job: Job, reply: Checked) -> None:
        if reply.result.stopped:
            return
        if reply.uncached:
            self.notes.append(f"{job.subject.id} will be checked again: {reply.uncached}")
            return
        try:
            self._stored.put(job.checkable, job.level, reply.result, reply.sources)
        except PallascError as error:
            self.notes.append(f"the result of {job.subject.id} is not stored: {error.message}")

    def _settle(
        self,
        asking: Candidate,
        level: Level,
        result: LevelResult,
        *,
        from_store: bool = False,
        error: PallascError | None = None,
    ) -> None:
        if asking.wrong_in_jax and level.name == _DECIDES:
            result = _explained(result, asking.wrong_in_jax)
        self._results[id(asking), level.name] = (result, from_store)
        if error is not None:
            self._errors[id(asking), level.name] = error
        if level.name != _DECIDES and any(map(_is_race, result.findings)):
            self._undecided.append((asking, level))
        else:
            self._events.on_result(asking, result, from_store)

    def _report_undecided(self) -> None:
        for asking, level in self._undecided:
            self._events.on_result(asking, *self._judged(asking, level.name))
        self._undecided = []

    def _judged(self, asking: Candidate, name: str) -> tuple[LevelResult, bool]:
        """Return a result; its races become notes if the artifact level passed."""
        result, from_store = self._results[id(asking), name]
        decided = self._results.get((id(asking), _DECIDES))
        if not any(map(_is_race, result.findings)) or decided is None:
            return result, from_store
        if decided[0].status == "not checked" or decided[0].fails:
            return result, from_store
        from pallasc.checks.findings import status_of

        findings = tuple(
            replace(each, severity="note", hint=_ORDERED) if _is_race(each) else each
            for each in result.findings
        )
        return replace(result, findings=findings, status=status_of(findings)), from_store


def _own_context(store: Store) -> Context:
    """Return a context without a toolchain: the keys of results then need only file digests."""
    from pallasc.cache.stat_digest import FileDigests
    from pallasc.compiler.toolchain.setup import Context

    return Context({}, {}, FileDigests(store.root, trust=store.trust))


def _is_race(finding: Finding) -> bool:
    return finding.rule == RACE.name


def _noted(result: LevelResult, notes: tuple[str, ...]) -> LevelResult:
    return replace(result, notes=(*notes, *result.notes)) if notes else result


def _explained(result: LevelResult, wrong_in_jax: str) -> LevelResult:
    """Return a result whose findings of wrong numbers name the JAX bug that explains them."""
    from pallasc.checks.findings import CONSEQUENCES

    findings = tuple(
        replace(each, hint=f"JAX compiles this kernel wrongly: {wrong_in_jax}")
        if each.rule in CONSEQUENCES and each.severity != "note"
        else each
        for each in result.findings
    )
    return replace(result, findings=findings)


def _stopped(level: Level, error: PallascError) -> LevelResult:
    from pallasc.checks.findings import not_checked

    return not_checked(level.name, error.message.rstrip("."), stopped=True)
