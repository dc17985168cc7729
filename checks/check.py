"""Checks variants: reuses the results in the store, and runs the remaining levels in workers.

If nothing has changed since the last check, no worker is started and JAX is not imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pallasc.checks.findings import CONSEQUENCES, RACE, Finding, LevelResult, not_checked, status_of
from pallasc.checks.levels import Level, Options
from pallasc.checks.locate import Locator
from pallasc.checks.stored_results import Checkable, StoredResults
from pallasc.compiler.arrays import check_input, named_with_devices
from pallasc.errors import ArgumentError, Location, PallascError
from pallasc.specs.canonical import plain
from pallasc.specs.spelling import suggestion

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.checks.worker import Check, Checked
    from pallasc.compiler.builds.options import Options as BuildOptions
    from pallasc.compiler.inputs.lookup import Request
    from pallasc.compiler.toolchain.setup import Context
    from pallasc.compiler.workers.messages import Reply, Task
    from pallasc.specs.artifacts.artifact import Artifact
    from pallasc.specs.artifacts.plan import LaunchPlan
    from pallasc.specs.spec import Args, ArgTree, Variant


@dataclass(frozen=True, slots=True)
class Candidate:
    """A compiled variant to check.

    Attributes:
        id: its display name.
        artifact: the compiled artifact.
        action_key: its action key, "" if unknown.
        variant: the variant it was compiled from, None without source.
        request: the look-up keys of that variant, None if not known yet.
        origin: the bundle that contains it, None if there is none.
        wrong_in_jax: the part that the installed JAX miscompiles, with its line; "" if none.
    """

    id: str
    artifact: Artifact
    action_key: str = ""
    variant: Variant | None = None
    request: Request | None = None
    origin: Location | None = None
    wrong_in_jax: str = ""


OnResult = Callable[["Candidate", "LevelResult", bool], None]
"""Called with each result, and True if it came from the store."""

OnUnbuilt = Callable[["Variant", "PallascError"], None]
"""Called with each variant that did not compile, and the error."""

OnTick = Callable[[Sequence[tuple[str, float]], int, int], None]
"""Called with the running jobs and their seconds, the number done, and the total."""


@dataclass(frozen=True, slots=True)
class Events:
    """Callbacks of a check: for each result, at regular ticks, and at the end."""

    on_result: OnResult = lambda candidate, result, from_store: None
    on_unbuilt: OnUnbuilt = lambda variant, error: None
    on_tick: OnTick = lambda running, done, total: None
    on_end: Callable[[], None] = lambda: None


_HINT = "Change these sizes to sizes that the kernel and its reference accept, or remove them."


def sizes_note(asking: Candidate, small: Candidate) -> tuple[str, ...]:
    """Return a note with the sizes for which a result holds.

    Args:
        asking: the variant that the user asked about.
        small: the variant checked in its place.
    """
    if asking.variant is None or asking.variant.check is None or small.variant is None:
        return ()
    if asking.variant.check.names_args:
        return (f"for {small.id} with {_arrays(small.variant)}",)
    return (f"for {small.id}",) if small.id != asking.id else ()


def with_sizes(error: PallascError, variant: Variant) -> PallascError:
    """Return a copy of an error that names the small sizes and their place in the spec.

    Args:
        error: the error of the variant with small sizes; it is not modified.
        variant: the variant that the user asked about.
    """
    sizes = _named_sizes(variant)
    if not sizes:
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


class Input(NamedTuple):
    """An input of a kernel: its path, such as `cache.0`, its short dtype name, and its shape."""

    path: str
    dtype: str
    shape: tuple[int, ...]


def _inputs_of_plan(plan: LaunchPlan) -> list[Input]:
    """Return the inputs of a plan; with several devices, the first dimension is the device."""
    front = (plan.device_count,) if plan.device_count > 1 else ()
    return [Input(b.path, b.dtype, (*front, *b.shape)) for b in plan.inputs]


def _inputs_of_variant(variant: Variant) -> list[Input] | None:
    """Return the inputs that a spec names, None if they are known only after compiling."""
    if not isinstance(variant.args, dict) or variant.mesh or _has_calls(variant.args):
        return None
    return [Input(path, array.dtype, array.shape) for path, array in variant.arrays()]


def _has_calls(tree: Args | ArgTree) -> bool:
    if isinstance(tree, dict):
        return "$call" in tree or any(map(_has_calls, tree.values()))
    return isinstance(tree, list) and any(map(_has_calls, tree))


def _check(files: Mapping[str, Path], inputs: Sequence[Input], name: str) -> None:
    known = {each.path: each for each in inputs}
    for path, file in files.items():
        if path not in known:
            hint = suggestion(path, known, otherwise="Its arrays")
            raise ArgumentError(f"{name} has no input {path!r} for {file}.", hint=hint)
        try:
            check_input(file, path, known[path].dtype, known[path].shape, name)
        except ArgumentError as error:
            error.hint = f"{error.hint}\n  {_CHOOSE}" if error.hint else _CHOOSE
            raise


def check_plan(files: Mapping[str, Path], plan: LaunchPlan, name: str) -> None:
    """Check that files hold inputs of a compiled kernel.

    Args:
        files: the file of each given input, by its path.
        plan: the kernel's launch plan.
        name: the kernel's name in messages.

    Raises:
        SpecError: a file cannot be read.
        ArgumentError: the kernel has no such input, or its shape or dtype differs.
    """
    _check(files, _inputs_of_plan(plan), named_with_devices(name, plan.device_count))


def check_variants(files: Mapping[str, Path], variants: Iterable[Variant]) -> None:
    """Check that files hold inputs of variants, as far as their specs name the inputs.

    Raises:
        SpecError, ArgumentError: as for `check_plan`.
    """
    for variant in variants if files else ():
        inputs = _inputs_of_variant(variant)
        if inputs is not None:
            _check(files, inputs, variant.id)


_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_GRACE_S = 5.0
"""Extra time before a level is stopped, so that levels with their own time limit can report their
progress."""


class Asking(NamedTuple):
    """A variant that needs a result; `notes` has the sizes if the result holds only for some."""

    candidate: Candidate
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Job:
    """A level to run on one artifact, shared by the variants that need the result."""

    level: Level
    subject: Candidate
    checkable: Checkable
    options: Options
    asking: list[Asking] = field(default_factory=list)
    xla_ptx: Mapping[str, str] = field(default_factory=dict)
    why_no_ptx: str = ""


def run_jobs(
    jobs: Sequence[Job],
    finish: Callable[[Job, Reply], None],
    *,
    store: Store,
    limits: BuildOptions,
    events: Events,
) -> None:
    """Run each job in a worker.

    Args:
        jobs: the jobs to run.
        finish: called with each finished job and its worker's reply.
        store: the store with the PTX of XLA's kernels.
        limits: jobs, time and memory of the workers.
        events: callbacks for progress.

    Raises:
        ToolError: a worker cannot be started, or numpy or ml_dtypes is not installed.
    """
    from pallasc.checks.emulate import check_installed
    from pallasc.compiler.toolchain.setup import settled
    from pallasc.compiler.workers.pool import Pool, find_capacity

    check_installed()
    capacity = find_capacity()
    count = limits.jobs or capacity.jobs(len(jobs))
    memory = limits.memory_bytes
    if memory is None:
        memory = capacity.memory_bytes(count)
    _find_ptx(jobs, store, limits, count)
    tasks = [_task(number, job, limits.timeout_s, memory) for number, job in enumerate(jobs)]
    done = 0
    with Pool(
        count,
        {**settled(os.environ), **_ONE_THREAD},
        timeout_s=limits.timeout_s,
        memory_bytes=memory,
        grace_s=_GRACE_S,
        program="pallasc.checks.worker",
    ) as pool:
        for _, task, reply in pool.run(tasks):
            if task is not None and reply is not None:
                done += 1
                finish(jobs[task.label], reply)
            else:
                running = [(jobs[task.label], seconds) for task, seconds in pool.running()]
                named = [(f"{job.subject.id} ({job.level.name})", s) for job, s in running]
                events.on_tick(named, done, len(jobs))


def _find_ptx(jobs: Sequence[Job], store: Store, limits: BuildOptions, count: int) -> None:
    """Set the PTX of XLA's kernels on the jobs that take it, or the reason why there is none."""
    from pallasc.compiler.toolchain.setup import prepare
    from pallasc.compiler.workers.pool import find_ptx, without_ptx

    lacking = [
        (job, job.subject.variant)
        for job in jobs
        if job.level.takes_ptx and job.subject.variant and without_ptx(job.subject.artifact)
    ]
    if not lacking:
        return
    compiled = [(variant, job.subject.artifact) for job, variant in lacking]
    try:
        with prepare(limits.ptxas) as setup:
            found = find_ptx(compiled, setup, store, jobs=count, timeout_s=limits.timeout_s)
    except PallascError as error:  # no compiler is installed
        found = [error] * len(lacking)
    for (job, _), texts in zip(lacking, found, strict=True):
        if isinstance(texts, PallascError):
            job.why_no_ptx = texts.message
        else:
            job.xla_ptx = texts


def _task(label: int, job: Job, timeout_s: float | None, memory_bytes: int) -> Task:
    from pallasc.checks.worker import Check
    from pallasc.compiler.toolchain.setup import declared_values
    from pallasc.compiler.workers.messages import Task

    subject, level, options = job.subject, job.level, job.options
    variant = subject.variant if level.calls_user else None
    env = declared_values(variant.env) if variant is not None else {}
    devices = variant.mesh if variant is not None else ()
    folder = variant.base_dir if variant is not None else ""

    def request() -> Check:
        return Check(
            level=level.name,
            id=subject.id,
            variant=subject.variant,
            record=subject.artifact.record,
            blobs=subject.artifact.blobs(),
            options=replace(options, timeout_s=timeout_s, memory_bytes=memory_bytes or None),
            xla_ptx=job.xla_ptx,
            why_no_ptx=job.why_no_ptx,
            env=env,
        )

    group = (f"{level.name} {devices}", folder, tuple(env.items()))
    return Task(label, group, request, f"the process that checks {subject.id}")


_DECIDES = "artifact"
"""The level that executes the compiled code; it decides if a race from another level is real."""
_ORDERED = "The artifact level executed the kernel and found these accesses ordered."


class _Unlocated(NamedTuple):
    """A result whose findings still lack source lines, and its job."""

    job: Job
    result: LevelResult
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
        """Use the results that are in the store, and queue jobs for the others.

        Args:
            asking: the variant that the user asked about.
            small: the variant with the spec's small sizes, to check instead.

        Raises:
            SpecError, ArgumentError: input files do not fit the variant.
        """
        if small is None:
            self._look_up(Asking(asking), asking, self._options)
        else:
            self._look_up(Asking(asking, sizes_note(asking, small)), small, self._seeded(asking))

    def _look_up(self, asking: Asking, subject: Candidate, options: Options) -> None:
        if options.inputs:
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
            job = Job(level, subject, checkable, options)
            if stored is None:
                self._jobs.setdefault((checkable.key, level.name), job).asking.append(asking)
            else:
                job.asking.append(asking)
                held = _Unlocated(job, stored.result, from_store=True)
                self._locate(held, is_located=stored.is_located)

    def _seeded(self, asking: Candidate) -> Options:
        """Return the options with the seed of the spec, unless the command line sets one."""
        check = asking.variant.check if asking.variant is not None else None
        if check is None or check.seed is None or self._options.seed_given:
            return self._options
        return replace(self._options, seed=check.seed)

    def run(self) -> None:
        """Run the levels whose results are not in the store.

        Raises:
            ToolError: as for `run_jobs`.
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
        """Report the results from the store with their stored lines, without running levels."""
        for found in self._unlocated:
            self._settle_located(found, found.result)
        self._unlocated = []
        self._report_undecided()

    def results_of(
        self, candidate: Candidate
    ) -> tuple[tuple[LevelResult, ...], frozenset[str], dict[str, PallascError]]:
        """Return a variant's results, the levels with results from the store, and the errors."""
        names = [level.name for level in self._levels]
        known = [name for name in names if (id(candidate), name) in self._results]
        found = {name: self._judged(candidate, name) for name in known}
        errors = {name: self._errors.get((id(candidate), name)) for name in names}
        return (
            tuple(result for result, _ in found.values()),
            frozenset(name for name, (_, from_store) in found.items() if from_store),
            {name: error for name, error in errors.items() if error is not None},
        )

    def finish(self) -> None:
        """Signal the end of the check, and save the digests of files read during it."""
        self._events.on_end()
        self._context.digests.save()

    def _finish(self, job: Job, reply: Reply) -> None:
        from pallasc.checks.worker import Checked
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
        self._locate(_Unlocated(job, checked.result))

    def _locate(self, found: _Unlocated, *, is_located: bool = False) -> None:
        """Settle a result, or queue it if its findings still need source lines."""
        if found.result.findings and not is_located:
            self._unlocated.append(found)
        else:
            self._settle_located(found, found.result)

    def _settle_located(self, found: _Unlocated, result: LevelResult) -> None:
        for asking, notes in found.job.asking:
            noted = _noted(result, notes)
            self._settle(asking, found.job.level, noted, from_store=found.from_store)

    def _find_lines(self) -> None:
        results = [
            (each.result, each.job.subject.artifact, each.job.checkable.variant)
            for each in self._unlocated
        ]
        for found, result in zip(self._unlocated, self._locator.located(results), strict=True):
            self._keep_lines(found, result)
            self._settle_located(found, result)
        self._unlocated = []
        self._report_undecided()

    def _keep_lines(self, found: _Unlocated, located: LevelResult) -> None:
        """Store the lines that were found, so that the next check does not compile again."""
        job = found.job
        variant = job.checkable.variant
        if variant is None or not self._locator.has_lines(variant):
            return
        try:
            self._stored.put_located(job.checkable, job.level, found.result, located)
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
        findings = tuple(
            replace(each, severity="note", hint=_ORDERED) if _is_race(each) else each
            for each in result.findings
        )
        return replace(result, findings=findings, status=status_of(findings)), from_store


def _own_context(store: Store) -> Context:
    """Return a context without a toolchain, for result keys that need only file digests."""
    from pallasc.cache.stat_digest import FileDigests
    from pallasc.compiler.toolchain.setup import Context

    return Context({}, {}, FileDigests(store.root, trust=store.trust))


def _is_race(finding: Finding) -> bool:
    return finding.rule == RACE.name


def _noted(result: LevelResult, notes: tuple[str, ...]) -> LevelResult:
    return replace(result, notes=(*notes, *result.notes)) if notes else result


def _explained(result: LevelResult, wrong_in_jax: str) -> LevelResult:
    """Return a result with the JAX bug as a hint in its findings of wrong numbers."""
    findings = tuple(
        replace(each, hint=f"JAX compiles this kernel wrongly: {wrong_in_jax}")
        if each.rule in CONSEQUENCES and each.severity != "note"
        else each
        for each in result.findings
    )
    return replace(result, findings=findings)


def _stopped(level: Level, error: PallascError) -> LevelResult:
    return not_checked(level.name, error.message.rstrip("."), stopped=True)
