"""The state of one build: its options, what is settled, what is missing."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pallasc.cache.store import Store
from pallasc.compiler.builds.hidden_inputs import HiddenInputs, diagnostics_of
from pallasc.compiler.builds.options import Options
from pallasc.compiler.builds.report import Event, OnEvent, Tick, VariantResult
from pallasc.compiler.inputs.lookup import Lookup
from pallasc.compiler.inputs.request import Request
from pallasc.errors import PallascError
from pallasc.specs.artifacts.budgets import check_budget
from pallasc.specs.spec import Variant

if TYPE_CHECKING:
    from pallasc.compiler.builds.locked import LockedLookup
    from pallasc.compiler.inputs.remembered_toolchain import RememberedToolchain
    from pallasc.compiler.inputs.why import Explanation
    from pallasc.compiler.toolchain.setup import Setup


@dataclass(slots=True)
class Miss:
    """A request that the store could not answer, and the positions of the variants that ask it."""

    request: Request
    reason: str
    indices: list[int]


@contextmanager
def ticking(run: Run, *, tick_s: float = 0.5) -> Iterator[None]:
    """Tell that time passes while this thread reads files, and says nothing itself."""
    done = threading.Event()

    def tick() -> None:
        while not done.wait(tick_s):
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
        variants: what is built.
        store: where artifacts lie.
        options: how they are built.
        results: what is finished.
        misses: what the store does not have, by the key of its folder.
        notes: warnings about what was compiled.
        withheld: what kernels asked for and did not get to see.
        has_compiler: whether anything can be compiled here.
        explanations: why misses were misses, where that was asked for.
    """

    def __init__(
        self, variants: Sequence[Variant], store: Store, options: Options, on_event: OnEvent
    ) -> None:
        self.variants = list(variants)
        self.store = store
        self.options = options
        self.on_event = on_event
        self.results: dict[int, VariantResult] = {}
        self.misses: dict[str, Miss] = {}
        self.notes: list[str] = []
        self.withheld = HiddenInputs()
        self.explanations: dict[str, Explanation] = {}
        self.locked: LockedLookup | None = None
        self.has_compiler = True
        self._failed = False

    def hold(self, lookup: Lookup, setup: Setup | RememberedToolchain) -> None:
        """Hold the build to its lock, if it has one.

        Raises:
            NotCachedError: the lock was made with another toolchain.
        """
        if self.options.locked is not None:
            from pallasc.compiler.builds.locked import LockedLookup, require_toolchain

            require_toolchain(self.options.locked, setup, lookup.context)
            self.locked = LockedLookup(self.options.locked, lookup, self.store)

    def settle(self, index: int, result: VariantResult) -> None:
        """Take a result; an artifact over its budget, or not as locked, is a failure."""
        self.withheld.add(result.variant.name, result.missed)
        if result.artifact is not None:
            wrong: PallascError | None = check_budget(result.artifact, result.variant.budget)
            if wrong is None and self.locked is not None:
                wrong = self.locked.check(result)
            if wrong is None and self.options.fail_on_warning:
                wrong = self._said_too_much(result)
            if wrong is not None:
                wrong.location = wrong.location or result.variant.location
                result = replace(result, status="failed", error=wrong)
        self._failed = self._failed or result.status == "failed"
        self.results[index] = result
        self.tell(result.status, result.variant, result)

    def _said_too_much(self, result: VariantResult) -> PallascError | None:
        from pallasc.compiler.workers.diagnostics import NO_KERNEL, check_diagnostics

        kernels = result.artifact.kernels if result.artifact else ()
        own = () if any(kernel.origin == "mosaic" for kernel in kernels) else (NO_KERNEL,)
        said = (*result.diagnostics, *own, *diagnostics_of(result))
        return check_diagnostics(said, self.options.fail_on_warning, result.variant.base_dir)

    def tell(self, kind: str, variant: Variant, result: VariantResult | None) -> None:
        """Tell whoever listens what happened to a variant."""
        event = Event(kind, variant, result, len(self.results), len(self.variants))  # type: ignore[arg-type]
        self.on_event(event)

    def may_compile(self) -> bool:
        """Tell whether misses are to be compiled, after what has happened so far."""
        return (
            self.options.compiles
            and self.has_compiler
            and (self.options.keep_going or not self._failed)
        )

    def stops(self) -> bool:
        """Tell whether a failure ends the build."""
        return self._failed and not self.options.keep_going

    def finished(self) -> tuple[VariantResult, ...]:
        """Return all results; what was never begun is skipped."""
        return tuple(
            self.results.get(index) or VariantResult(variant, "skipped")
            for index, variant in enumerate(self.variants)
        )
