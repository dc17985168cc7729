"""Checks variants: reuses the results in the store, and runs the remaining levels in workers.

If nothing has changed since the last check, no worker is started and JAX is not imported.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from pallasc.checks.findings import RACE, Finding, LevelResult, not_checked, status_of
from pallasc.checks.levels import Options, Subject
from pallasc.checks.locate import with_source_lines
from pallasc.checks.report import Job, Report, Settings, VariantCheck
from pallasc.checks.stored_results import StoredResults
from pallasc.compiler.arrays import check_input, named_with_devices
from pallasc.errors import ArgumentError, PallascError
from pallasc.specs.canonical import plain
from pallasc.specs.spelling import suggestion

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.checks.worker import Checked
    from pallasc.compiler.builds.report import Report as BuildReport
    from pallasc.compiler.builds.report import VariantResult
    from pallasc.compiler.toolchain.setup import Context
    from pallasc.compiler.workers.messages import Reply
    from pallasc.specs.artifacts.plan import LaunchPlan
    from pallasc.specs.spec import Variant


Demand = tuple["Variant", int]
"""A variant to check, and the index of the built variant that is run for it: the variant itself, or
a variant with the small sizes that the spec lists under `check`."""


def demands(variants: Sequence[Variant]) -> tuple[list[Variant], list[Demand]]:
    """Return the variants to build for a check, and a demand for each variant.

    If the spec lists small sizes, all points of a matrix may share one built variant.
    """
    building: list[Variant] = []
    numbers: dict[object, int] = {}
    needed = []
    for variant in variants:
        checked = variant.for_check()
        key = (checked.id, checked.base_dir, checked.location, checked.params)
        if variant.check is None or key not in numbers:
            numbers[key] = len(building)
            building.append(checked)
        needed.append((variant, numbers[key]))
    return building, needed


def check_built(report: BuildReport, needed: Sequence[Demand], settings: Settings) -> Report:
    """Check the variants of a build.

    Args:
        report: the report of building the variants that `demands` returned.
        needed: a demand for each variant.
        settings: settings of the check.

    Raises:
        PallascError: the store or a worker cannot be used.
    """
    checks = []
    for variant, number in needed:
        built = report.results[number]
        if built.error is not None:
            built = structs.replace(built, error=with_sizes(built.error, variant))
        checks.append(VariantCheck(variant.id, variant, built))
    done = _Checking(checks, settings, report.context).run(interrupted=report.interrupted)
    return replace(
        done,
        seconds=done.seconds + report.seconds,
        notes=(*report.notes, *done.notes),
        errors=report.errors,
    )


def check_compiled(results: Sequence[VariantResult], settings: Settings) -> Report:
    """Check compiled variants without source, such as the variants of a bundle.

    Raises:
        PallascError: the store or a worker cannot be used.
    """
    checks = [
        VariantCheck(each.variant.id, built=each, origin=each.variant.location)
        if each.action_key is None
        else VariantCheck(each.action_key, built=each)
        for each in results
        if each.artifact is not None
    ]
    return _Checking(checks, settings, None).run()


_HINT = "Change these sizes to sizes that the kernel and its reference accept, or remove them."


def sizes_note(check: VariantCheck) -> tuple[str, ...]:
    """Return a note with the sizes that were checked, if they are not the variant's own sizes."""
    asked, built = check.variant, check.built
    if asked is None or asked.check is None or built is None:
        return ()
    if asked.check.names_args:
        return (f"for {built.variant.id} with {_arrays(built.variant)}",)
    return (f"for {built.variant.id}",) if built.variant.id != asked.id else ()


def with_sizes(error: PallascError, variant: Variant | None) -> PallascError:
    """Return a copy of an error that names the small sizes and their place in the spec.

    Args:
        error: the error of the variant with small sizes; it is not modified.
        variant: the variant that the user asked about, None without source.
    """
    sizes = _named_sizes(variant) if variant is not None else ""
    if variant is None or not sizes:
        return error
    named = copy(error)
    named.message = f"with {sizes} from check: in {variant.where('check')}: {error.message}"
    named.hint = f"{error.hint}\n  {_HINT}" if error.hint else _HINT
    return named


def _named_sizes(variant: Variant) -> str:
    if variant.check is None:
        return ""
    own = dict(variant.params)
    named = [f"{name}={plain(v)}" for name, v in variant.check.params if own.get(name) != v]
    if variant.check.names_args:
        named.append(_arrays(variant.for_check()))
    return ", ".join(named)


def _arrays(variant: Variant) -> str:
    return ", ".join(f"{path}: {array}" for path, array in variant.arrays())


_CHOOSE = "Or choose other variants with -k."


def check_plan(files: Mapping[str, Path], plan: LaunchPlan, name: str) -> None:
    """Check that input files fit the inputs of a compiled kernel.

    Args:
        files: input files by array path.
        plan: the kernel's launch plan; with several devices, the first dimension of an array is the
            device.
        name: the kernel's name in messages.

    Raises:
        SpecError: a file cannot be read.
        ArgumentError: the kernel has no such input, or its shape or dtype differs.
    """
    name = named_with_devices(name, plan.device_count)
    front = (plan.device_count,) if plan.device_count > 1 else ()
    known = {binding.path: binding for binding in plan.inputs}
    for path, file in files.items():
        if path not in known:
            hint = suggestion(path, known, otherwise="Its arrays")
            raise ArgumentError(f"{name} has no input {path!r} for {file}.", hint=hint)
        try:
            check_input(file, path, known[path].dtype, (*front, *known[path].shape), name)
        except ArgumentError as error:
            error.hint = f"{error.hint}\n  {_CHOOSE}" if error.hint else _CHOOSE
            raise


_DECIDES = "artifact"
"""The level that decides if a race found by the interpreter level is real."""
_ORDERED = "The artifact level executed the kernel and found these accesses ordered."


class _Checking:
    """The state of one check.

    Args:
        checks: the variants to check.
        settings: settings of the check.
        context: the toolchain's identity; None if nothing was built.
    """

    def __init__(
        self, checks: Sequence[VariantCheck], settings: Settings, context: Context | None
    ) -> None:
        self._checks, self._settings = checks, settings
        self._context = context or _own_context(settings.store)
        self._stored = StoredResults(settings.store, self._context)
        self._jobs: dict[tuple[str, str], Job] = {}
        self._unlocated: list[tuple[Job, Checked]] = []
        """Results whose findings still lack source lines."""
        self._undecided: list[tuple[VariantCheck, str]] = []
        """Results with races, until the artifact level shows whether the accesses are ordered."""
        self._notes: list[str] = []

    def run(self, *, interrupted: bool = False) -> Report:
        """Use the results that are in the store, run the other levels, and return the report.

        Nothing is checked if the build was interrupted.

        Raises:
            SpecError, ArgumentError: input files do not fit a variant.
            ToolError: see `run_jobs`.
        """
        began_s = time.monotonic()
        try:
            for check in () if interrupted else self._checks:
                self._look_up(check)
            if self._jobs and not self._settings.only_stored:
                self._run_jobs()
        except KeyboardInterrupt:
            interrupted = True
        for job, checked in self._unlocated:
            self._settle_all(job, checked.result)
        self._decide()
        self._settings.events.on_end()
        self._context.digests.save()
        seconds, notes = time.monotonic() - began_s, tuple(dict.fromkeys(self._notes))
        return Report(
            tuple(self._checks), seconds, tuple(self._settings.levels), notes, interrupted
        )

    def _look_up(self, check: VariantCheck) -> None:
        """Use the stored results of a variant, and queue jobs for the other levels."""
        artifact, built = check.artifact, check.built
        if artifact is None or built is None:
            if built is not None and built.error is not None and check.variant is not None:
                self._settings.events.on_unbuilt(check.variant, built.error)
            return
        variant = built.variant if check.variant is not None else None
        subject = Subject(check.id if variant is None else variant.id, artifact, variant)
        options = self._seeded(check)
        if options.inputs:
            check_plan(options.inputs, artifact.plan, subject.id)
        try:
            checkable = self._stored.subject(options, built, variant)
            found = self._stored.find(checkable, self._settings.levels)
        except PallascError as error:
            for level in self._settings.levels:
                self._stop(check, level, error)
            return
        for level in self._settings.levels:
            if level in found:
                self._settle(check, found[level], from_store=True)
            else:
                job = Job(level, subject, checkable, options)
                self._jobs.setdefault((checkable.key, level), job).asking.append(check)

    def _seeded(self, check: VariantCheck) -> Options:
        """Return the options with the seed of the spec, unless the command line sets one."""
        sizes = check.variant.check if check.variant is not None else None
        if sizes is None or sizes.seed is None or self._settings.options.seed_given:
            return self._settings.options
        return replace(self._settings.options, seed=sizes.seed)

    def _run_jobs(self) -> None:
        from pallasc.checks.run import run_jobs

        run_jobs(list(self._jobs.values()), self._finish, self._settings)
        found = [(checked.result, job.subject) for job, checked in self._unlocated]
        located = [*with_source_lines(found, self._settings.store, self._settings.limits)]
        waiting, self._unlocated = self._unlocated, []
        for (job, checked), (result, is_complete) in zip(waiting, located, strict=True):
            if is_complete:
                self._keep(job, structs.replace(checked, result=result))
            self._settle_all(job, result)

    def _finish(self, job: Job, reply: Reply) -> None:
        from pallasc.checks.worker import Checked
        from pallasc.compiler.workers.messages import Failed

        if isinstance(reply, Failed):
            error = reply.error
            error.location = error.location or reply.place
            for check in job.asking:
                self._stop(check, job.level, with_sizes(error, check.variant))
            return
        checked = reply.require(Checked)
        if checked.result.findings:
            self._unlocated.append((job, checked))
        else:
            self._keep(job, checked)
            self._settle_all(job, checked.result)

    def _keep(self, job: Job, checked: Checked) -> None:
        if checked.result.stopped:
            return
        if checked.uncached:
            self._notes.append(f"{job.subject.id} will be checked again: {checked.uncached}")
            return
        try:
            self._stored.put(job.checkable, checked.result, checked.sources)
        except PallascError as error:
            self._notes.append(f"the result of {job.subject.id} is not stored: {error.message}")

    def _stop(self, check: VariantCheck, level: str, error: PallascError) -> None:
        """Record that an error stopped a level."""
        check.errors[level] = error
        self._settle(check, not_checked(level, error.message.rstrip("."), stopped=True))

    def _settle_all(self, job: Job, result: LevelResult) -> None:
        for check in job.asking:
            self._settle(check, result)

    def _settle(
        self, check: VariantCheck, result: LevelResult, *, from_store: bool = False
    ) -> None:
        result = replace(result, notes=(*sizes_note(check), *result.notes))
        check.found[result.level] = result
        if from_store:
            check.from_store.add(result.level)
        if result.level != _DECIDES and any(map(_is_race, result.findings)):
            self._undecided.append((check, result.level))
        else:
            self._settings.events.on_result(check, result, from_store)

    def _decide(self) -> None:
        """Turn races into notes if the artifact level passed, and report them."""
        for check, level in self._undecided:
            decided = check.found.get(_DECIDES)
            if decided is not None and decided.status != "not checked" and not decided.fails:
                check.found[level] = _with_ordered_races(check.found[level])
            self._settings.events.on_result(check, check.found[level], level in check.from_store)


def _with_ordered_races(result: LevelResult) -> LevelResult:
    findings = tuple(
        replace(each, severity="note", hint=_ORDERED) if _is_race(each) else each
        for each in result.findings
    )
    return replace(result, findings=findings, status=status_of(findings))


def _own_context(store: Store) -> Context:
    """Return a context without a toolchain, for result keys that need only file digests."""
    from pallasc.cache.stat_digest import FileDigests
    from pallasc.compiler.toolchain.setup import Context

    return Context({}, {}, FileDigests(store.root, trust=store.trust))


def _is_race(finding: Finding) -> bool:
    return finding.rule == RACE.name
