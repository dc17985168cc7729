"""The state of one build: options, results, misses.

A miss goes through a build in three forms: a `Miss` with the variants, their request, and the
look-up result; a `Task` with the message to a worker; and the worker's `Reply`, from which each
variant gets its `VariantResult`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field, structs

from pallasc.cache.store import Store
from pallasc.cache.uses import Session
from pallasc.compiler.builds.options import Options
from pallasc.compiler.builds.report import (
    Event,
    OnEvent,
    Report,
    Tick,
    VariantResult,
    diagnostics_of,
    hidden_notes,
    padding_error,
    stale_row_notes,
)
from pallasc.compiler.inputs.lookup import Lookup, LookupResult
from pallasc.compiler.inputs.request import Request
from pallasc.compiler.toolchain.setup import Context, Setup
from pallasc.errors import PallascError
from pallasc.specs.artifacts.resources import check_budget
from pallasc.specs.spec import Variant

if TYPE_CHECKING:
    from pallasc.compiler.builds.locked import LockedLookup
    from pallasc.compiler.builds.remote_tier import RemoteTier
    from pallasc.compiler.cluster.pool import ClusterPool
    from pallasc.compiler.inputs.why import Explanation
    from pallasc.compiler.workers.pool import Pool


class Miss(Struct):
    """Variants of one request that are not in the store.

    Attributes:
        request: their request.
        found: the result of looking it up.
        indices: positions of the variants.
        explanation: the differences from the nearest entry of the store, with `explain`.
    """

    request: Request
    found: LookupResult
    indices: list[int] = field(default_factory=list)
    explanation: Explanation | None = None

    @property
    def reason(self) -> str:
        """The reason of the miss in words."""
        return self.explanation.reason if self.explanation else self.found.reason


class LastingWorkers(Protocol):
    """A toolchain and workers that stay between builds (`watch`)."""

    def setup(self) -> Setup:
        """Return the installed toolchain."""

    def pool(self, tasks: int) -> Pool:
        """Return the workers for a build with this number of variants."""


_TICK_S = 0.5


@contextmanager
def ticking(run: Run) -> Iterator[None]:
    """Send ticks from another thread while this thread reads files."""
    done = threading.Event()

    def tick() -> None:
        while not done.wait(_TICK_S):
            run.on_event(Tick((), len(run.results), len(run.variants)))

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class Run:
    """The state of one build: a result for each variant, by its position.

    Attributes:
        variants: variants to build.
        store: the store.
        options: options of the build.
        warm: workers that stay between builds, None for workers of this build alone.
        results: finished results by position.
        misses: misses by request.
        notes: warnings about compilations.
        stack: closes everything that the build has opened.
        setup: the installed compiler, None if there is none.
        context: the toolchain's identity, None until it is known.
        lookup: looks up in the local store, once the toolchain is known.
        session: records the entries of the store that are used.
        locked: looks up with a lock, None without one.
        remote: the remote store, None if there is none.
        pool: the workers, None until the first one is needed.
    """

    lookup: Lookup
    session: Session

    def __init__(
        self,
        variants: Sequence[Variant],
        store: Store,
        options: Options,
        on_event: OnEvent,
        warm: LastingWorkers | None = None,
    ) -> None:
        self.variants = list(variants)
        self.store = store
        self.options = options
        self.on_event = on_event
        self.warm = warm
        self.results: dict[int, VariantResult] = {}
        self.misses: dict[Request, Miss] = {}
        self.notes: list[str] = []
        self.stack = ExitStack()
        self.setup: Setup | None = None
        self.context: Context | None = None
        self.locked: LockedLookup | None = None
        self.remote: RemoteTier | None = None
        self.pool: Pool | ClusterPool | None = None
        self._failed = False

    def identify(self, context: Context) -> None:
        """Set up the look-up of variants with this toolchain.

        Raises:
            NotCachedError: the build's lock is for another toolchain.
        """
        self.context, self.lookup = context, Lookup(context, self.store)
        locked = self.options.locked
        if locked is not None and locked.lock is not None:
            from pallasc.compiler.builds.locked import LockedLookup

            self.locked = LockedLookup(
                locked.file,
                locked.lock,
                self.lookup,
                self.variants,
                frozen_by=self.options.frozen_by if self.options.frozen else "",
            )
        elif locked is not None:
            self.notes.append(
                f"there is no {locked.file} here: variants were only looked up in the store"
            )

    def settle(self, index: int, result: VariantResult) -> None:
        """Record a result; an artifact that exceeds its budget or differs from the lock fails."""
        if result.artifact is not None:
            variant, baseline = result.variant, self.options.baseline
            error: PallascError | None = (
                baseline.check(result.artifact, variant)
                if baseline is not None
                else check_budget(result.artifact, variant.budget)
            )
            if error is None and self.locked is not None:
                error = self.locked.check(result)
            if error is None and self.options.fail_on_warning:
                error = self._fatal_warning(result)
            if error is None and result.variant.tuning and result.variant.tuning.pad:
                error = padding_error(result)
            if error is not None:
                error.location = error.location or variant.location
                result = structs.replace(result, status="failed", error=error)
        self._failed = self._failed or result.status == "failed"
        self.results[index] = result
        self.emit(result.status, result.variant, result)

    def fail(self, index: int, error: PallascError) -> None:
        """Record that a variant failed."""
        variant = self.variants[index]
        error.location = error.location or variant.location
        self.settle(index, VariantResult(variant, "failed", error=error))

    def _fatal_warning(self, result: VariantResult) -> PallascError | None:
        from pallasc.compiler.workers.diagnostics import NO_KERNEL, check_diagnostics

        kernels = result.artifact.kernels if result.artifact else ()
        is_whole = result.variant.program is not None
        own = () if is_whole or any(k.origin == "mosaic" for k in kernels) else (NO_KERNEL,)
        diagnostics = (*result.diagnostics, *own, *diagnostics_of(result))
        return check_diagnostics(diagnostics, self.options.fail_on_warning, result.variant.base_dir)

    def emit(self, kind: str, variant: Variant, result: VariantResult | None) -> None:
        """Report an event of a variant to the listener."""
        event = Event(kind, variant, result, len(self.results), len(self.variants))  # type: ignore[arg-type]
        self.on_event(event)

    def may_compile(self) -> bool:
        """Return True if misses are compiled; not after a failure, unless `keep_going`."""
        return self.options.compiles and self.setup is not None and not self.stops()

    def stops(self) -> bool:
        """Return True if a failure ends the build."""
        return self._failed and not self.options.keep_going

    def report(self, started: float, *, interrupted: bool) -> Report:
        """Send the rest to the remote store, and return the report of the build.

        Variants without a result are `skipped`. `started` is a `time.monotonic` time.
        """
        results = tuple(
            self.results.get(index) or VariantResult(variant, "skipped")
            for index, variant in enumerate(self.variants)
        )
        stats = self.remote.finish() if self.remote else None
        seconds = time.monotonic() - started
        baseline = self.options.baseline
        notes = [
            *self.store.warnings,
            *self.notes,
            *(self.remote.notes if self.remote else ()),
            *(self.locked.notes() if self.locked else ()),
            *(baseline.notes() if baseline else ()),
            *hidden_notes((result.variant.name, result.missed) for result in self.results.values()),
            *stale_row_notes(self.results.values()),
        ]
        unique = tuple(dict.fromkeys(notes))
        return Report(results, seconds, unique, interrupted, context=self.context, remote=stats)
