"""Build variants: look each up in the store, compile the misses in workers, report.

Where nothing has changed this is all that runs: no worker, no JAX, no SQLite, and of this package
only what looks things up is imported.
"""

from __future__ import annotations

import importlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from pallasc.cache.manifests import Manifest
from pallasc.cache.store import Store
from pallasc.cache.uses import Session
from pallasc.compiler.builds.options import DEFAULTS, Options
from pallasc.compiler.builds.report import OnEvent, Report, VariantResult
from pallasc.compiler.builds.state import Miss, Run, ticking
from pallasc.compiler.inputs.lookup import Lookup, LookupResult, untrusted_entry
from pallasc.compiler.inputs.request import Request, about
from pallasc.compiler.toolchain.setup import Setup, prepare
from pallasc.compiler.toolchain.toolchain import INSTALL, is_compiler_installed
from pallasc.errors import NotCachedError, PallascError, ToolError
from pallasc.specs.garbage import collector_paused
from pallasc.specs.spec import Variant

if TYPE_CHECKING:
    from pallasc.cache.upkeep.limits import Limits
    from pallasc.compiler.inputs.remembered_toolchain import RememberedToolchain
    from pallasc.compiler.workers.diagnostics import Diagnostic
    from pallasc.compiler.workers.pool import Pool

_A_PATH = re.compile(r"/[^\s:']+")
_MANY = 50
"""Looking up fewer variants takes no time."""
_MADE = ("compiled", "lowered")
"""What becomes of a variant whose manifest is written."""
_NO_TOOLCHAIN = (
    "the store does not say with which compiler it was filled, and none is installed here"
)
_LIMITS = ("PALLASC_CACHE_SIZE", "PALLASC_CACHE_AGE")


def build(
    variants: Sequence[Variant],
    *,
    store: Store,
    options: Options = DEFAULTS,
    on_event: OnEvent = lambda event: None,
) -> Report:
    """Build `variants`; what the store has is not compiled again.

    An interrupt (Ctrl-C) stops the workers at once; what was finished stays in the store and in the
    report, which says that it was interrupted.

    Args:
        variants: what to build.
        store: where artifacts lie and will lie.
        options: how.
        on_event: is told of each variant as it goes on, and of the time that passes.

    Returns:
        The report; failures are in it, not raised.

    Raises:
        ToolError: the toolchain is not complete; or something has to be compiled, `require_store`
            is given, and the store cannot be written.
        NotCachedError: the lock was made with another toolchain.
        CorruptError: not all folders of the store are its own.
        SpecError: `$PALLASC_CACHE_SIZE` or `$PALLASC_CACHE_AGE` is none.
    """
    started = time.monotonic()
    run = Run(variants, store, options, on_event)
    interrupted = False
    try:
        _run(run)
    except KeyboardInterrupt:
        interrupted = True
    seconds = time.monotonic() - started
    held = run.locked.notes() if run.locked else []
    notes = tuple(_distinct([*store.warnings, *run.notes, *held, *run.withheld.notes()]))
    return Report(run.finished(), seconds, notes, interrupted)


def _run(run: Run) -> None:
    options = run.options
    limits = _limits() if any(name in os.environ for name in _LIMITS) else None
    run.store.folders.check()
    _ = run.store.trust  # what is wrong with its keys is told before anything is done
    with ExitStack() as stack:
        setup = _prepared(run)
        if setup is None:
            _nothing_known(run)
            return
        stack.enter_context(setup)
        workers = Workers(run, setup, stack)
        if not run.store.folder.exists():
            workers.start(len(run.variants))  # while the toolchain's files are read
            with ticking(run):
                context = setup.context(run.store)
        else:
            context = setup.context(run.store)
        stack.callback(context.digests.save)
        lookup = Lookup(context, run.store)
        run.hold(lookup, setup)
        session = stack.enter_context(Session(run.store))
        with collector_paused():
            if _has_misses(run.variants, lookup):
                workers.start(1)  # while the others are looked up
            look_up(run, lookup, session, workers)
        if run.misses and options.explain:
            _explain(run, lookup, setup)
        if isinstance(setup, Setup):
            if run.misses and run.may_compile():
                workers.compile(lookup, session)
            if any(result.status in _MADE for result in run.results.values()):
                from pallasc.compiler.inputs.remembered_toolchain import remember

                remember(run.store, context.identity, setup.versions_now())
        run.notes += setup.notes(context)
    if any(result.status == "compiled" for result in run.results.values()):
        from pallasc.cache.upkeep.prune import tidy

        tidy(run.store, limits=limits or _limits())


def _prepared(run: Run) -> Setup | RememberedToolchain | None:
    """Return the toolchain; where none is installed, one that the store was filled with.

    There is None of both where nothing is to be compiled, and nothing can be found either.

    Raises:
        ToolError: it is not complete, or there is none to compile with.
        NotCachedError: there is none, and the store was filled by another Python or pallasc.
    """
    options = run.options
    if options.ptxas is not None or is_compiler_installed():
        return prepare(options.ptxas)
    from pallasc.compiler.inputs.remembered_toolchain import (
        choose_remembered,
        remembered_toolchains,
    )

    known = remembered_toolchains(run.store)
    if options.compiles and not known:
        return prepare()
    run.has_compiler = False
    if not known:
        return None
    return choose_remembered(run.store, options.locked.lock if options.locked else None)


class Workers:
    """The workers of a build, started when the first one is needed.

    Args:
        run: the build.
        setup: what compiles.
        stack: ends them.
    """

    def __init__(self, run: Run, setup: Setup | RememberedToolchain, stack: ExitStack) -> None:
        self._run, self._setup, self._stack = run, setup, stack
        self._pool: Pool | None = None

    def start(self, tasks: int) -> Pool | None:
        """Have workers import JAX while other things go on; does nothing the second time.

        Raises:
            ToolError: what they compile cannot be stored, and must be.
        """
        setup = self._setup
        if self._pool is None and tasks and self._run.may_compile() and isinstance(setup, Setup):
            _check_store(self._run)
            from pallasc.compiler.builds.compile_misses import open_pool

            self._pool = self._stack.enter_context(
                open_pool(self._run.options, setup, len(self._run.variants))
            )
            self._pool.warm(tasks)
        return self._pool

    def compile(self, lookup: Lookup, session: Session) -> None:
        """Compile what is missing.

        Raises:
            ToolError: a compiling process cannot be started.
        """
        pool = self.start(len(self._run.misses))
        if pool is not None and isinstance(self._setup, Setup):
            from pallasc.compiler.builds.compile_misses import compile_misses
            from pallasc.compiler.workers.messages import Introduction

            pool.context = Introduction.of(self._setup, lookup.context, self._run.store)
            compile_misses(self._run, lookup, pool, session)


def _check_store(run: Run) -> None:
    """Check that what will be compiled can be stored, where it must be.

    Raises:
        ToolError: it cannot.
    """
    reason = run.store.why_not_writable() if run.options.require_store else ""
    if reason:
        raise ToolError(
            f"the store {run.store.root} cannot be written: {reason}.",
            hint="Name another folder with --store or PALLASC_CACHE_DIR; --no-require-store "
            "compiles without keeping anything.",
        )


def _limits() -> Limits:
    """Return the store's limits; imported only where there are any, or something was compiled."""
    from pallasc.cache.upkeep.limits import read_limits

    return read_limits()


def _distinct(notes: Iterable[str]) -> Iterator[str]:
    """Yield notes without those that differ from an earlier one in the name of a file only."""
    seen = set()
    for note in notes:
        kind = _A_PATH.sub("", note)
        if kind not in seen:
            seen.add(kind)
            yield note


def _has_misses(variants: Sequence[Variant], lookup: Lookup) -> bool:
    """Tell, from one variant of each kernel, whether something has surely changed.

    Variants of one kernel share their sources, so a changed one is seen at the first of them.
    """
    if len(variants) < _MANY:
        return False
    first = {(variant.name, variant.base_dir): variant for variant in reversed(variants)}
    with suppress(PallascError):  # is reported where it is looked up for good
        requests = map(lookup.requests.of, first.values())
        return any(lookup.find(request).artifact is None for request in requests)
    return False


def look_up(run: Run, lookup: Lookup, session: Session, workers: Workers) -> None:
    """Settle the variants that the store has; group the others by request and folder."""
    importlib.invalidate_caches()
    for index, variant in enumerate(run.variants):
        began = time.monotonic()
        try:
            request = lookup.requests.of(variant)
            found = run.locked.find(variant, request) if run.locked else lookup.find(request)
        except PallascError as error:
            error.location = error.location or variant.location
            run.settle(index, VariantResult(variant, "failed", error=error))
            continue
        if found.artifact is None or found.action_key is None:
            _missing(run, index, request, found)
            workers.start(1)
            continue
        manifest = found.manifest
        session.hit(found.action_key, about=about(variant), seconds=manifest.cost_s)
        seconds = time.monotonic() - began
        run.settle(
            index,
            VariantResult(
                variant,
                "hit",
                seconds,
                found.action_key,
                found.artifact,
                saved_s=manifest.cost_s,
                printed=manifest.printed,
                diagnostics=_diagnostics(manifest),
                manifest_key=found.manifest_key,
                missed=manifest.missed,
            ),
        )


def _diagnostics(manifest: Manifest) -> tuple[Diagnostic, ...]:
    """Return the diagnostics of a manifest, which hardly any has."""
    if not manifest.diagnostics:
        return ()
    from pallasc.compiler.workers.diagnostics import from_json

    return from_json(manifest.diagnostics)


def _missing(run: Run, index: int, request: Request, found: LookupResult) -> None:
    """Note a miss; settle it where nothing may be compiled."""
    miss = run.misses.setdefault(request.folder_key, Miss(request, found.reason, []))
    miss.indices.append(index)
    _not_compiled(run, index, found)


def _nothing_known(run: Run) -> None:
    """Settle all variants of a build that compiles nothing, where no key can be told."""
    for index in range(len(run.variants)):
        _not_compiled(run, index, LookupResult(why=_NO_TOOLCHAIN))


def _not_compiled(run: Run, index: int, found: LookupResult) -> None:
    """Settle a miss where nothing may be compiled, or nothing can be."""
    variant, reason = run.variants[index], found.reason
    if run.options.frozen:
        error: PallascError = NotCachedError(
            f"{variant.id} is not in the store: {reason}.",
            location=variant.location,
            hint="--frozen compiles nothing: build it without, or restore the store.",
        )
        if found.untrusted:
            error = untrusted_entry(variant, reason)
        run.settle(index, VariantResult(variant, "failed", reason=reason, error=error))
    elif not run.options.compiles:
        run.settle(index, VariantResult(variant, "missing", reason=reason))
    elif not run.has_compiler:
        missing = ToolError(
            f"{variant.id} has to be compiled, and no compiler is installed here: {reason}.",
            location=variant.location,
            hint=f"Install it with: {INSTALL}",
        )
        run.settle(index, VariantResult(variant, "failed", reason=reason, error=missing))


def _explain(run: Run, lookup: Lookup, setup: Setup | RememberedToolchain) -> None:
    """Put what has changed since the nearest entry of the store into the reasons of the misses."""
    from pallasc.compiler.inputs.why import explain_variants

    first = [run.variants[miss.indices[0]] for miss in run.misses.values()]
    explanations = explain_variants(first, lookup.context, run.store, setup.versions_now)
    for miss, explanation in zip(run.misses.values(), explanations, strict=True):
        miss.reason = explanation.reason
        for index in miss.indices:
            if index in run.results:
                own = replace(explanation, variant=run.variants[index].id)
                held = run.results[index]
                run.results[index] = replace(held, reason=miss.reason, explanation=own)
        run.explanations[miss.request.folder_key] = explanation
