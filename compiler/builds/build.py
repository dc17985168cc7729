"""Build variants: look each up in the store, compile the misses in workers, and report.

If all variants are hits, no worker is started, and neither JAX nor SQLite nor any module that only
compiling needs is imported.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pallasc.cache.store import Store
from pallasc.cache.uses import Session
from pallasc.compiler.builds.options import DEFAULTS, Options
from pallasc.compiler.builds.report import (
    OnEvent,
    Report,
    Status,
    VariantResult,
    stored_diagnostics,
)
from pallasc.compiler.builds.state import LastingWorkers, Miss, Run, ticking
from pallasc.compiler.inputs.lookup import LookupResult, attempt, untrusted_entry
from pallasc.compiler.inputs.request import Request
from pallasc.compiler.toolchain.setup import Setup, prepare
from pallasc.compiler.toolchain.toolchain import INSTALL, is_compiler_installed
from pallasc.errors import NotCachedError, PallascError, ToolError
from pallasc.specs.spec import Variant

if TYPE_CHECKING:
    from pallasc.cache.evict import Limits
    from pallasc.compiler.inputs.manifest import RememberedToolchain

_WRITES_MANIFEST = ("compiled", "lowered")
_NO_TOOLCHAIN = "no compiler is installed, and the store does not record which one filled it"
_LIMITS = ("PALLASC_CACHE_SIZE", "PALLASC_CACHE_AGE")


def build(
    variants: Sequence[Variant],
    *,
    store: Store,
    options: Options = DEFAULTS,
    on_event: OnEvent = lambda event: None,
    warm: LastingWorkers | None = None,
) -> Report:
    """Build `variants`, and compile those that are not in the store.

    An interrupt (Ctrl-C) stops the workers at once. Finished variants stay in the store and in the
    report, which is marked as interrupted.

    Args:
        variants: the variants.
        store: the store to read from and add to.
        options: options of the build.
        on_event: callback for the progress of variants, and for periodic ticks.
        warm: workers that stay between builds, None for workers of this build alone.

    Returns:
        The report, which includes failures.

    Raises:
        ToolError: the toolchain is incomplete; or a variant must be compiled with `require_store`,
            and the store cannot be written.
        NotCachedError: the lock is for another toolchain.
        CorruptError: a folder of the store is a link or belongs to another user.
        SpecError: `$PALLASC_CACHE_SIZE` or `$PALLASC_CACHE_AGE` is invalid.
    """
    started = time.monotonic()
    run = Run(variants, store, options, on_event, warm)
    interrupted = False
    try:
        _run(run)
    except KeyboardInterrupt:
        interrupted = True
    except BaseException:
        if run.remote is not None:
            run.remote.finish()
        raise
    return run.report(started, interrupted=interrupted)


def _run(run: Run) -> None:
    options = run.options
    limits = _limits() if any(name in os.environ for name in _LIMITS) else None
    run.store.folders.check()
    _ = run.store.trust  # reading its keys reports errors in them before anything is done
    with run.stack:
        toolchain = _toolchain(run)
        if toolchain is None:
            for index in range(len(run.variants)):  # without an identity there are no keys
                _settle_uncompiled(run, index, _NO_TOOLCHAIN)
            return
        if run.warm is None:
            run.stack.enter_context(toolchain)
        if options.remote is not None:
            from pallasc.compiler.builds.remote_tier import RemoteTier

            run.remote = RemoteTier(options.remote, run.store, toolchain)
        if run.store.folder.exists():
            context = toolchain.context(run.store)
        else:
            if run.remote is None:  # which may have all
                start_workers(run, len(run.variants))  # while the toolchain's files are read
            with ticking(run):
                context = toolchain.context(run.store)
        run.stack.callback(context.digests.save)
        run.identify(context)
        run.session = run.stack.enter_context(Session(run.store))
        look_up(run)
        if run.misses and options.explain:
            _explain(run)
        if run.misses and run.may_compile():
            from pallasc.compiler.builds.compile_misses import compile_misses

            start_workers(run, len(run.misses))
            compile_misses(run)
        if run.setup is not None and any(
            r.remote or r.status in _WRITES_MANIFEST for r in run.results.values()
        ):
            from pallasc.compiler.inputs.manifest import remember

            remember(run.store, context.identity, context.versions())
        run.notes += context.notes()
    if any(result.status == "compiled" or result.remote for result in run.results.values()):
        from pallasc.cache.prune import tidy

        tidy(run.store, limits=limits or _limits())


def _toolchain(run: Run) -> Setup | RememberedToolchain | None:
    """Return the installed toolchain, else one that the store was filled with.

    None if neither exists and the build compiles nothing.

    Raises:
        ToolError: the toolchain is incomplete, or there is none to compile with.
        NotCachedError: none is installed, and another Python or pallasc filled the store.
    """
    options = run.options
    if run.warm is not None:
        run.setup = run.warm.setup()
    elif options.ptxas is not None or is_compiler_installed():
        base = os.environ if options.environment is None else options.environment
        run.setup = prepare(options.ptxas, base=base)
    if run.setup is not None:
        return run.setup
    from pallasc.compiler.inputs.manifest import choose_remembered, remembered_toolchains

    if not remembered_toolchains(run.store):
        return prepare() if options.compiles else None  # raises, and says what to install
    return choose_remembered(run.store, options.locked.lock if options.locked else None)


def start_workers(run: Run, tasks: int) -> None:
    """Start workers, which import JAX in the background; does nothing the second time.

    Raises:
        ToolError: the store cannot be written, and `require_store` is set.
    """
    if run.pool is None and tasks and run.setup is not None and run.may_compile():
        from pallasc.compiler.builds.compile_misses import open_workers

        if run.options.require_store:
            _check_store(run.store)
        run.pool = open_workers(run, run.setup)
        if run.warm is None:
            run.stack.enter_context(run.pool)
        run.pool.warm(tasks)


def _check_store(store: Store) -> None:
    reason = store.why_not_writable()
    if reason:
        raise ToolError(
            f"the store {store.root} cannot be written: {reason}.",
            hint="Name another folder with --store or PALLASC_CACHE_DIR; PALLASC_REQUIRE_STORE=0 "
            "compiles without storing anything.",
        )


def _limits() -> Limits:
    """Return the store's limits; they are imported only if set, or if a variant was compiled."""
    from pallasc.cache.evict import read_limits

    return read_limits()


def look_up(run: Run) -> None:
    """Settle the variants that are in the stores; group the misses by request and folder.

    Workers are started at the first miss.
    """
    # The import system caches the listings of folders, and files may have been added since.
    importlib.invalidate_caches()
    waiting: list[tuple[int, Request, LookupResult | PallascError]] = []
    find = run.locked.find if run.locked else run.lookup.find_variant
    for index, variant in enumerate(run.variants):
        began = time.monotonic()
        try:
            request = run.lookup.requests.of(variant)
        except PallascError as error:
            run.fail(index, error)
            continue
        found = attempt(find, variant, request)
        if _settle_hit(run, index, request, found, began):
            continue
        if run.remote is not None:
            run.remote.open()
            waiting.append((index, request, found))
        else:
            _settle_miss(run, index, request, found)
            start_workers(run, len(run.misses))
    if run.remote is None or not waiting:
        return
    with ticking(run):
        fetched = run.remote.fetch(run.lookup, [request for _, request, _ in waiting])
    for index, request, found in waiting:
        began, came = time.monotonic(), request.key in fetched
        if came:
            found = attempt(find, run.variants[index], request)
        if not _settle_hit(run, index, request, found, began, remote=came):
            _settle_miss(run, index, request, found)
    start_workers(run, len(run.misses))


def _settle_miss(
    run: Run, index: int, request: Request, found: LookupResult | PallascError
) -> None:
    if isinstance(found, PallascError):
        run.fail(index, found)
        return
    miss = run.misses.setdefault(request, Miss(request, found))
    miss.indices.append(index)
    if not run.options.explain:  # which finds a better reason
        _settle_uncompiled(run, index, miss.reason, miss)


def _settle_hit(
    run: Run,
    index: int,
    request: Request,
    found: LookupResult | PallascError,
    began: float,
    *,
    remote: bool = False,
) -> bool:
    """Settle a variant if it was found; return True if it was."""
    if isinstance(found, PallascError) or found.artifact is None:
        return False
    manifest = found.manifest
    run.session.hit(found.action_key or "", seconds=manifest.cost_s)
    run.settle(
        index,
        VariantResult(
            run.variants[index],
            "hit",
            time.monotonic() - began,
            found.action_key,
            found.artifact,
            saved_s=manifest.cost_s,
            printed=manifest.printed,
            diagnostics=stored_diagnostics(manifest) if manifest.diagnostics else (),
            manifest_key=found.manifest_key,
            missed=manifest.missed,
            request=request,
            remote=remote,
        ),
    )
    return True


def _settle_uncompiled(run: Run, index: int, reason: str, miss: Miss | None = None) -> None:
    """Settle a miss if it must not, or cannot, be compiled."""
    variant, options = run.variants[index], run.options
    if options.compiles and run.setup is not None:
        return
    error: PallascError | None = None
    if options.frozen and miss is not None and miss.found.untrusted:
        error = untrusted_entry(variant, reason, options.frozen_by)
    elif options.frozen:
        error = NotCachedError(
            f"{variant.id} is not in the store: {reason}.",
            location=variant.location,
            hint=f"{options.frozen_by} compiles nothing: build without it, or restore the store.",
            reason=reason,
        )
    elif options.compiles:
        error = ToolError(
            f"{variant.id} has to be compiled, and no compiler is installed here: {reason}.",
            location=variant.location,
            hint=f"Install it with: {INSTALL}",
            reason=reason,
        )
    status: Status = "missing" if error is None else "failed"
    explanation = miss.explanation if miss else None
    result = VariantResult(variant, status, error=error, reason=reason, explanation=explanation)
    run.settle(index, result)


def _explain(run: Run) -> None:
    """Settle the misses, with the differences from the nearest entry of the store as reasons."""
    from pallasc.compiler.inputs.why import Explainer

    explainer = Explainer(run.lookup)
    for miss in run.misses.values():
        variant = run.variants[miss.indices[0]]
        miss.explanation = explainer.explain(variant, miss.request, miss.found)
        for index in miss.indices:
            _settle_uncompiled(run, index, miss.reason, miss)
