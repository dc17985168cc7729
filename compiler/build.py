"""Build variants: look each up in the store, compile the misses in workers, report."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pallasc.cache.limits import limits_from_environment
from pallasc.cache.prune import tidy
from pallasc.cache.store import Store
from pallasc.cache.uses import Session
from pallasc.compiler.manifest import (
    Context,
    about,
    data_digests,
    find,
    folder_key,
    import_folders,
    request_fields,
    request_key,
    stored_artifact,
)
from pallasc.compiler.messages import blobs_from_json, error_from_json
from pallasc.compiler.pool import Answer, Pool, Task
from pallasc.compiler.report import Event, OnEvent, Report, Status, VariantResult, check_budget
from pallasc.compiler.setup import prepare
from pallasc.errors import CompileError, PallascError
from pallasc.specs.artifact import Artifact
from pallasc.specs.spec import Variant
from pallasc.specs.wire import variant_to_json

_WORKER_BYTES = 700_000_000
"""What a compiling process may hold: about 480 MB after JAX is imported, and room to compile."""


def build(
    variants: Sequence[Variant],
    *,
    store: Store,
    jobs: int | None = None,
    keep_going: bool = True,
    ptxas: Path | None = None,
    on_event: OnEvent = lambda event: None,
) -> Report:
    """Build `variants`; what the store has is not compiled again.

    Args:
        variants: what to build.
        store: where artifacts lie and will lie.
        jobs: how many processes compile at a time; as many as cores and memory allow by default.
        keep_going: go on with the others when a variant fails.
        ptxas: an assembler to use instead of the installed wheel's.
        on_event: is told of each variant as it goes on.

    Returns:
        The report; failures are in it, not raised.

    Raises:
        ToolError: the toolchain is not complete.
        SpecError: `$PALLASC_CACHE_SIZE` or `$PALLASC_CACHE_AGE` is none.
    """
    started = time.monotonic()
    limits = limits_from_environment()  # a wrong one is said before anything is compiled
    setup = prepare(ptxas)
    count = jobs or default_jobs(len(variants))
    with setup, Pool(count, setup.environment) as pool:
        if variants and not store.folder.exists():
            pool.warm(min(count, len(variants)))
        context = setup.context(store)
        with Session(store) as session:
            run = _Build(list(variants), store, context, on_event, session)
            run.look_up()
            if run.misses and (keep_going or not run.failed()):
                pool.context = setup.message(context, store)
                run.compile(pool, keep_going=keep_going)
            context.digests.save()
    if any(result.status == "compiled" for result in run.finished()):
        tidy(store, limits=limits)
    notes = _distinct([*store.warnings, *run.notes])
    return Report(run.finished(), time.monotonic() - started, tuple(notes))


def _distinct(notes: Iterable[str]) -> Iterator[str]:
    """Yield notes without those that differ from an earlier one in the name of a file only."""
    seen = set()
    for note in notes:
        kind = note.partition("'")[0]
        if kind not in seen:
            seen.add(kind)
            yield note


def default_jobs(tasks: int) -> int:
    """Return how many workers the cores and the free memory of this process allow."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, _free_bytes() // _WORKER_BYTES, tasks))


def _free_bytes() -> int:
    """Return how much memory can be had; what the kernel keeps files in can."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        kibibytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
        return int(kibibytes) * 1024
    except (OSError, StopIteration, ValueError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class _Build:
    """The state of one build: a result for each variant, by its position."""

    variants: list[Variant]
    store: Store
    context: Context
    on_event: OnEvent
    session: Session
    results: dict[int, VariantResult] = field(default_factory=dict)
    misses: dict[str, list[int]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def look_up(self) -> None:
        """Settle the variants that the store has; group the others by request and folder."""
        importlib.invalidate_caches()
        for index, variant in enumerate(self.variants):
            began = time.monotonic()
            try:
                key = folder_key(request_key(variant, self.context), variant.base_dir)
                found = find(variant, self.context, self.store)
            except PallascError as error:
                error.location = error.location or variant.location
                self._settle(index, VariantResult(variant, "failed", error=error))
                continue
            if found.artifact is None:
                self.misses.setdefault(key, []).append(index)
                self.reasons[key] = found.reason
                continue
            if found.action_key is not None:
                self.session.hit(found.action_key, about=about(variant), seconds=found.cost_s)
            seconds = time.monotonic() - began
            self._settle(
                index,
                VariantResult(variant, "hit", seconds, found.action_key, found.artifact),
            )

    def compile(self, pool: Pool, *, keep_going: bool) -> None:
        """Have the misses compiled, each request of a folder once."""
        requests = list(self.misses)
        tasks = [self._task(number, requests[number]) for number in range(len(requests))]
        for kind, task, answer in pool.run(tasks):
            request = requests[task.label]
            if kind == "started" or answer is None:
                variant = self.variants[self.misses[request][0]]
                self._tell("started", variant, None)
                continue
            for position, index in enumerate(self.misses[request]):
                self._settle(index, self._result(index, request, answer, first=position == 0))
            if not keep_going and self.failed():
                return

    def failed(self) -> bool:
        """Tell whether a variant has failed so far."""
        return any(result.status == "failed" for result in self.results.values())

    def _task(self, label: int, request: str) -> Task:
        variant = self.variants[self.misses[request][0]]
        message = {
            "op": "compile",
            "variant": variant_to_json(variant),
            "request": request_key(variant, self.context),
            "fields": request_fields(variant, self.context),
            "data": data_digests(variant, self.context.digests),
        }
        folders = os.pathsep.join([variant.base_dir, *import_folders(variant)])
        return Task(label, (variant.target.arch, folders), message)

    def _result(self, index: int, request: str, answer: Answer, *, first: bool) -> VariantResult:
        variant = self.variants[index]
        result = VariantResult(variant, "failed", reason=self.reasons[request])
        if answer.message is None:
            error: PallascError = answer.error or CompileError("the worker gave no answer")
            error.location = error.location or variant.location
            return replace(result, error=error, output=answer.output)
        message = answer.message
        if not message["ok"]:
            error = error_from_json(message["error"])
            error.location = error.location or variant.location
            return replace(result, error=error, output=answer.output)
        self.notes += message["warnings"]
        if "conflict" in message and first:
            self.notes.append(f"{variant.id} is not deterministic: {message['conflict']}")
        if message["uncached"] and first:
            self.notes.append(f"{variant.id} will be lowered again: {message['uncached']}")
        artifact = self._artifact(message)
        if artifact is None:
            return replace(result, error=CompileError("the store lost what was just compiled"))
        status: Status = message["status"] if first else "hit"
        if status == "compiled":
            self.session.miss(about=about(variant))
            self.session.made(message["action"], seconds=message["seconds"], about=about(variant))
        else:
            self.session.hit(message["action"], about=about(variant))
        return replace(
            result, status=status, seconds=message["seconds"] if first else 0.0,
            action_key=message["action"], artifact=artifact,
        )  # fmt: skip

    def _artifact(self, message: dict[str, object]) -> Artifact | None:
        if "record" not in message:
            return stored_artifact(self.store, str(message["action"]))
        blobs = blobs_from_json(message["blobs"])  # type: ignore[arg-type]
        return Artifact(message["record"], blobs.__getitem__)  # type: ignore[arg-type]

    def _settle(self, index: int, result: VariantResult) -> None:
        if result.artifact is not None:
            over = check_budget(result.artifact, result.variant.budget)
            if over is not None:
                over.location = result.variant.location
                result = replace(result, status="failed", error=over)
        self.results[index] = result
        self._tell(result.status, result.variant, result)

    def _tell(self, kind: str, variant: Variant, result: VariantResult | None) -> None:
        self.on_event(
            Event(kind, variant, result, len(self.results), len(self.variants))  # type: ignore[arg-type]
        )

    def finished(self) -> tuple[VariantResult, ...]:
        """Return all results; what was never begun is skipped."""
        return tuple(
            self.results.get(index) or VariantResult(variant, "skipped")
            for index, variant in enumerate(self.variants)
        )
