"""Build variants: look each up in the store, compile the misses in workers, and report.

If all variants are hits, no worker is started, and JAX, SQLite, and modules that only compiling
needs are not imported.

A variant that is not in the store becomes a `Miss`, then a `Compile` request to a worker, whose
reply, `Compiled`, becomes the `VariantResult`. To settle a variant is to record its result.
"""

from __future__ import annotations

import importlib
import os
import shlex
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from pallasc.cache.store import Store
from pallasc.cache.uses import Session
from pallasc.compiler.builds import report as reports
from pallasc.compiler.builds.options import DEFAULTS, Options
from pallasc.compiler.builds.report import Event, OnEvent, Report, Status, Tick, VariantResult
from pallasc.compiler.inputs.lookup import (
    Hit,
    Lookup,
    Miss,
    data_digests,
    request_fields,
    stored_artifact,
)
from pallasc.compiler.toolchain.setup import counted_values, declared_values, prepare
from pallasc.compiler.toolchain.toolchain import INSTALL, is_compiler_installed
from pallasc.errors import CorruptError, NotCachedError, PallascError, SpecError, ToolError
from pallasc.specs.artifacts.artifact import Artifact, check_budget
from pallasc.specs.spec import Variant

if TYPE_CHECKING:
    from pallasc.compiler.builds.locked import LockedLookup
    from pallasc.compiler.builds.remote_tier import RemoteTier
    from pallasc.compiler.inputs.manifest import RememberedToolchain
    from pallasc.compiler.toolchain.modules import Place
    from pallasc.compiler.toolchain.setup import Context, Setup
    from pallasc.compiler.workers.cluster import ClusterPool
    from pallasc.compiler.workers.messages import Compiled, Failed, Reply, Task
    from pallasc.compiler.workers.pool import Pool

_WRITES_MANIFEST = ("compiled", "lowered")
_LIMITS = ("PALLASC_CACHE_SIZE", "PALLASC_CACHE_AGE")
_TICK_S = 0.5
_POOL_TICK_S = 0.25
_CLUSTER_TIMEOUT_S = 3600.0
"""Default time limit of a variant on a cluster, so that none occupies a worker forever."""


def build(
    variants: Sequence[Variant],
    *,
    store: Store,
    options: Options = DEFAULTS,
    on_event: OnEvent = lambda event: None,
    compiler: tuple[Setup, Pool] | None = None,
) -> Report:
    """Build `variants`, and compile those that are not in the store.

    An interrupt (Ctrl-C) stops the workers at once. Finished variants stay in the store and in the
    report, which is marked as interrupted.

    Args:
        variants: the variants.
        store: the store to read from and add to.
        options: options of the build.
        on_event: callback for the progress of variants, and for periodic ticks.
        compiler: a toolchain and workers to reuse; None to start workers for this build.

    Returns:
        The report, which includes failures.

    Raises:
        ToolError: the toolchain is incomplete; or, with `require_store`, a variant must be compiled
            but the store cannot be written.
        NotCachedError: the lock file was made with another toolchain.
        CorruptError: a folder of the store is a link or belongs to another user.
        SpecError: `$PALLASC_CACHE_SIZE` or `$PALLASC_CACHE_AGE` is invalid.
    """
    started_s = time.monotonic()
    run = _Build(list(variants), store, options, on_event, compiler, Session(store))
    interrupted = False
    try:
        run.run()
    except KeyboardInterrupt:
        interrupted = True
    except BaseException:
        if run.remote is not None:
            run.remote.finish()
        raise
    return run.report(started_s, interrupted=interrupted)


class _Build(Struct, eq=False):
    """The state of one build: a result for each variant, by its position.

    Attributes:
        variants: variants to build.
        store: the store.
        options: options of the build.
        on_event: callback for progress.
        compiler: see `build`.
        session: notes which entries of the store are used.
        results: finished results by position.
        misses: misses by key and place.
        compiled: digests of the records that this build has compiled, by action key.
        notes: warnings about compilations.
        stack: closes everything that the build has opened.
        setup: the installed compiler, None if there is none.
        context: the toolchain's identity, None until it is known.
        locked: look-up that checks the lock file, None without one.
        remote: the remote store, None if there is none.
        pool: the workers, None until the first one is needed.
        failed: whether a variant has failed.
    """

    variants: list[Variant]
    store: Store
    options: Options
    on_event: OnEvent
    compiler: tuple[Setup, Pool] | None
    session: Session
    results: dict[int, VariantResult] = field(default_factory=dict)
    misses: dict[tuple[str, Place], Miss] = field(default_factory=dict)
    compiled: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    stack: ExitStack = field(default_factory=ExitStack)
    setup: Setup | None = None
    context: Context | None = None
    locked: LockedLookup | None = None
    remote: RemoteTier | None = None
    pool: Pool | ClusterPool | None = None
    failed: bool = False

    def run(self) -> None:
        """Look up all variants, and compile the misses."""
        if any(name in os.environ for name in _LIMITS):
            from pallasc.cache.evict import read_limits

            read_limits()  # raises for invalid settings
        self.store.folders.check()
        _ = self.store.trust  # raises for invalid settings, too
        with self.stack:
            toolchain = self._toolchain()
            if self.compiler is None:
                self.stack.enter_context(toolchain)
            context, lookup = self._open(toolchain)
            self._look_up(lookup)
            if self.misses and self.options.explain:
                self._explain(lookup)
            if self.misses and self._may_compile():
                self._compile(lookup)
            statuses = {result.status for result in self.results.values()}
            came = any(result.remote for result in self.results.values())
            if self.setup is not None and (came or not statuses.isdisjoint(_WRITES_MANIFEST)):
                from pallasc.compiler.inputs.manifest import remember

                remember(self.store, context.identity, context.versions())
            self.notes += context.notes()
        if came or "compiled" in statuses:
            from pallasc.cache.prune import tidy

            # The artifacts of this build stay.
            tidy(self.store, keep=frozenset(r.action_key or "" for r in self.results.values()))

    def report(self, started_s: float, *, interrupted: bool) -> Report:
        """Send the remaining variants to the remote store, and return the build's report.

        Variants without a result are `skipped`. `started_s` is a `time.monotonic` time.
        """
        results = tuple(
            self.results.get(index) or VariantResult(variant, "skipped")
            for index, variant in enumerate(self.variants)
        )
        stats = self.remote.finish() if self.remote else None
        seconds = time.monotonic() - started_s
        baseline = self.options.baseline
        notes = [
            *self.store.warnings,
            *self.notes,
            *(self.remote.notes if self.remote else ()),
            *(baseline.notes() if baseline else ()),
            *reports.hidden_notes(
                (result.variant.name, result.missed) for result in self.results.values()
            ),
            *reports.stale_row_notes(self.results.values()),
        ]
        unique = tuple(dict.fromkeys(notes))
        return Report(results, seconds, unique, interrupted, context=self.context, remote=stats)

    # ---- the toolchain

    def _toolchain(self) -> Setup | RememberedToolchain:
        """Return the installed toolchain, or if there is none, one that is recorded in the store.

        Raises:
            ToolError: the toolchain is incomplete, or none is installed or recorded in the store.
            NotCachedError: no toolchain is installed, and another Python or pallasc filled the
                store.
        """
        options = self.options
        if self.compiler is not None:
            self.setup = self.compiler[0]
        elif options.ptxas is not None or is_compiler_installed():
            base = os.environ if options.environment is None else options.environment
            self.setup = prepare(options.ptxas, base=base)
        if self.setup is not None:
            return self.setup
        from pallasc.compiler.inputs.manifest import choose_remembered, remembered_toolchains

        if options.compiles and not remembered_toolchains(self.store):
            return prepare()  # raises an error that says what to install
        return choose_remembered(self.store, options.locked.lock if options.locked else None)

    def _open(self, toolchain: Setup | RememberedToolchain) -> tuple[Context, Lookup]:
        """Open the stores and the lock for look-ups with this toolchain.

        Raises:
            NotCachedError: the lock file was made with another toolchain.
        """
        if self.options.remote is not None:
            from pallasc.compiler.builds.remote_tier import RemoteTier

            self.remote = RemoteTier(self.options.remote, self.store, toolchain)
        if self.store.folder.exists():
            context = toolchain.context(self.store)
        else:
            # In parallel with reading the toolchain. A remote store may have all variants.
            if self.remote is not None:
                self.remote.open()
            else:
                self._start_workers(len(self.variants))
            with self._ticking():
                context = toolchain.context(self.store)
        self.stack.callback(context.digests.save)
        self.context, lookup, locked = context, Lookup(context, self.store), self.options.locked
        if locked is not None:
            self.locked = locked.look_up(lookup, self.variants, frozen=self.options.frozen)
        if locked is not None and self.locked is None:
            self.notes.append(
                f"{locked.file} does not exist: variants were looked up without a lock file"
            )
        self.stack.enter_context(self.session)
        return context, lookup

    @contextmanager
    def _ticking(self) -> Iterator[None]:
        """Send ticks from another thread while this thread reads files."""
        done = threading.Event()

        def tick() -> None:
            while not done.wait(_TICK_S):
                self.on_event(Tick((), len(self.results), len(self.variants)))

        thread = threading.Thread(target=tick, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    # ---- look-up

    def _look_up(self, lookup: Lookup) -> None:
        """Settle the hits in the local and the remote store; group the misses by key and place.

        Workers are started at the first miss.
        """
        # The import system caches folder listings, but files may have been added since.
        importlib.invalidate_caches()
        waiting: list[tuple[int, Miss]] = []
        for index, variant in enumerate(self.variants):
            began_s = time.monotonic()
            try:
                found = self._find(lookup, variant)
            except PallascError as error:
                self._settle(index, VariantResult(variant, "failed", error=error))
                continue
            if self.remote is not None and isinstance(found, Miss):
                self.remote.open()
                waiting.append((index, found))
            else:
                self._settle_found(index, found, began_s)
                self._start_workers(len(self.misses))
        if self.remote is None or not waiting:
            return
        with self._ticking():
            fetched = self.remote.fetch(lookup, [miss for _, miss in waiting])
        for index, miss in waiting:
            began_s, came = time.monotonic(), miss.key in fetched
            found = self._find(lookup, miss.variant) if came else miss
            self._settle_found(index, found, began_s, remote=came)
        self._start_workers(len(self.misses))

    def _find(self, lookup: Lookup, variant: Variant) -> Hit | Miss:
        """Look up a variant; return an error, such as a rejection by the lock, in a miss.

        Raises:
            ToolError: the request key cannot be computed.
        """
        try:
            return (self.locked or lookup).find(variant)
        except PallascError as error:
            return Miss(variant, lookup.key(variant), lookup.place(variant), error=error)

    def _settle_found(
        self, index: int, found: Hit | Miss, began_s: float, *, remote: bool = False
    ) -> None:
        """Settle a hit or an error; add a miss to the first one with its key and place."""
        variant = self.variants[index]
        if isinstance(found, Hit):
            manifest = found.manifest
            self.session.hit(manifest.action, seconds=manifest.cost_s)
            result = VariantResult(
                variant, "hit", time.monotonic() - began_s, manifest.action, found.artifact,
                saved_s=manifest.cost_s, printed=manifest.printed,
                diagnostics=manifest.diagnostics,
                manifest_key=found.manifest_key,
                missed=manifest.missed, request_key=found.key, remote=remote,
            )  # fmt: skip
            self._settle(index, result)
        elif found.error is not None:
            self._settle(index, VariantResult(variant, "failed", error=found.error))
        else:
            miss = self.misses.setdefault((found.key, found.place), found)
            miss.indices.append(index)
            if not self.options.explain:  # `_explain` settles it with a better reason
                self._settle_uncompiled(index, miss)

    def _explain(self, lookup: Lookup) -> None:
        """Settle the misses, with explanations."""
        from pallasc.compiler.inputs.manifest import Explainer

        explainer = Explainer(lookup)
        for miss in self.misses.values():
            miss.explanation = explainer.explain(miss)
            for index in miss.indices:
                self._settle_uncompiled(index, miss)

    def _settle_uncompiled(self, index: int, miss: Miss) -> None:
        """Settle a miss if it must not, or cannot, be compiled."""
        variant, options = self.variants[index], self.options
        if options.compiles and self.setup is not None:
            return
        error: PallascError | None = None
        reason = miss.reason
        if options.frozen and miss.untrusted:
            error = CorruptError(
                f"{variant.id}: {reason}.",
                hint=f"Build it without {options.frozen_by}, or trust the key that signed the "
                "store.",
                reason=reason,
            )
        elif options.frozen:
            error = NotCachedError(
                f"{variant.id} is not in the store: {reason}.",
                hint=f"{options.frozen_by} compiles nothing: build without it, or restore the "
                f"store{' that the lock was made with' if self.locked else ''}.",
                reason=reason,
            )
        elif options.compiles:
            error = ToolError(
                f"{variant.id} has to be compiled, but no compiler is installed here: {reason}.",
                hint=f"Install it with: {INSTALL}",
                reason=reason,
            )
        status: Status = "missing" if error is None else "failed"
        explanation = miss.explanation
        result = VariantResult(variant, status, error=error, reason=reason, explanation=explanation)
        self._settle(index, result)

    # ---- results

    def _settle(self, index: int, result: VariantResult) -> None:
        """Record a result; it fails if the artifact exceeds its budget or differs from the lock."""
        if result.artifact is not None:
            error = self._rejection(result, result.artifact)
            if error is not None:
                result = replace(result, status="failed", error=error)
        if result.error is not None:
            result.error.location = result.error.location or result.variant.location
        self.failed = self.failed or result.status == "failed"
        self.results[index] = result
        self._emit(result.status, result.variant, result)

    def _rejection(self, result: VariantResult, artifact: Artifact) -> PallascError | None:
        variant, options = result.variant, self.options
        error: PallascError | None = None
        if options.baseline is not None:
            error = options.baseline.check(artifact, variant)
        else:
            error = check_budget(artifact, variant.budget)
        if error is not None:
            error.location = variant.where(f"budget.{error.kind}")
        if self.locked is not None:
            error = error or self.locked.check(result)
        if options.fail_on_warning:
            error = error or reports.fatal_warning(result, options.fail_on_warning)
        return error or reports.padding_error(result)

    def _emit(self, kind: str, variant: Variant, result: VariantResult | None) -> None:
        event = Event(kind, variant, result, len(self.results), len(self.variants))  # type: ignore[arg-type]
        self.on_event(event)

    # ---- misses

    def _may_compile(self) -> bool:
        return self.options.compiles and self.setup is not None and not self._stops()

    def _stops(self) -> bool:
        return self.failed and not self.options.keep_going

    def _start_workers(self, tasks: int) -> None:
        """Start the workers if they are not running; they import JAX in the background.

        Raises:
            ToolError: the store cannot be written, and `require_store` is set.
            SpecError: the executor is not a scheduler's address.
        """
        if self.pool is not None or not tasks or self.setup is None or not self._may_compile():
            return
        options, count = self.options, len(self.variants)
        reason = self.store.why_not_writable() if options.require_store else ""
        if reason:
            raise ToolError(
                f"the store {self.store.root} cannot be written: {reason}.",
                hint="Name another folder with --store or PALLASC_CACHE_DIR; "
                "PALLASC_REQUIRE_STORE=0 compiles without storing anything.",
            )
        if self.compiler is not None:
            self.pool = self.compiler[1]
        elif options.executor:
            from pallasc.compiler.workers.cluster import ClusterPool
            from pallasc.compiler.workers.pool import find_capacity

            jobs = options.jobs or find_capacity().jobs(count)
            warn = partial(self.store.tell_once, "cluster")
            self.pool = self.stack.enter_context(ClusterPool(options.executor, jobs, warn))
        else:
            self.pool = self.stack.enter_context(open_pool(options, self.setup, count))
        self.pool.warm(tasks)

    def _compile(self, lookup: Lookup) -> None:
        """Compile the misses in workers; variants with equal keys and source folders only once.

        Raises:
            ToolError: a compiling process cannot be started, or the sources cannot be sent.
        """
        self._start_workers(len(self.misses))
        pool, misses = self.pool, list(self.misses.values())
        if pool is None or self.setup is None:
            return
        self._introduce(pool, self.setup, lookup, [miss.variant for miss in misses])
        compiled_s: list[float] = []
        began_s: dict[int, float] = {}
        tasks = [_task(label, miss, lookup) for label, miss in enumerate(misses)]
        for _, task, reply in pool.run(tasks):
            if task is None:
                running = tuple((misses[each.label].variant, s) for each, s in pool.running())
                done, total = len(self.results), len(self.variants)
                self.on_event(Tick(running, done, total, tuple(compiled_s), pool.jobs))
                continue
            if reply is None:
                began_s[task.label] = time.monotonic()
                self._emit("started", misses[task.label].variant, None)
                continue
            miss = misses[task.label]
            result = self._result(miss, reply)
            if result.status == "failed" and task.label in began_s:
                result = replace(result, seconds=time.monotonic() - began_s[task.label])
            if result.status == "compiled":
                compiled_s.append(result.seconds)
            self._settle(miss.indices[0], result)
            again: Status = "failed" if result.artifact is None else "shared"
            for index in miss.indices[1:]:
                if result.action_key is not None:
                    self.session.hit(result.action_key)
                own = replace(result, variant=self.variants[index], status=again, seconds=0.0)
                self._settle(index, own)
            if self._stops():
                return

    def _introduce(
        self, pool: Pool | ClusterPool, setup: Setup, lookup: Lookup, firsts: Sequence[Variant]
    ) -> None:
        """Send the toolchain to the workers, and the sources of `firsts` to a cluster's workers.

        Raises:
            ToolError: the sources are too large, or the assembler does not report its version.
        """
        from pallasc.compiler.workers.messages import Introduction
        from pallasc.compiler.workers.pool import Pool

        if isinstance(pool, Pool):
            pool.context = Introduction.of(setup, lookup.context, self.store)
            return
        from pallasc.compiler.workers.cluster import publish
        from pallasc.compiler.workers.cluster_worker import BuildPlugin, sources_of

        context, options = lookup.context, self.options
        plugin = BuildPlugin(
            toolchain=context.components(),
            variables=context.variables,
            environment=counted_values(setup.environment),
            ptxas=options.ptxas and setup.toolchain.ptxas,
            timeout_s=options.timeout_s or _CLUSTER_TIMEOUT_S,
            memory_bytes=options.memory_bytes,
            sources=sources_of(firsts, without=[str(self.store.root)]),
        )
        pool.describe(plugin)
        pool.accept = partial(publish, lookup)

    def _result(self, miss: Miss, reply: Reply) -> VariantResult:
        """Return the result of a miss's first variant, and publish the worker's manifest."""
        from pallasc.compiler.workers.messages import Compiled, Failed

        variant = miss.variant
        result = VariantResult(
            variant, "failed", reason=miss.reason, explanation=miss.explanation,
            request_key=miss.key,
        )  # fmt: skip
        if isinstance(reply, Failed):
            return replace(
                result, error=self._error(variant, reply), output=reply.output, died=reply.died,
                missed=reply.missed, compiling=reply.compiling,
            )  # fmt: skip
        reply = reply.require(Compiled)
        for topic, warning in reply.warnings.items():
            self.store.tell_once(topic, warning)
        put, self.store.not_stored = reply.put, ""
        if put.conflict:
            self.notes.append(f"{variant.id} is not deterministic: {put.reason}")
        if reply.uncached:
            self.notes.append(f"{variant.id} will be lowered again: {reply.uncached}")
        name = self._publish(variant, miss.key, reply)
        if self.remote is not None and put.stored and name:
            self.remote.offer(name, variant.id)
        artifact = None
        if put.stored:  # read on demand instead of kept in memory
            artifact = stored_artifact(self.store, reply.action, record=reply.digest)
        if artifact is None and reply.record is not None:
            artifact = Artifact(reply.record, reply.blobs.__getitem__)
        if artifact is None:
            return replace(result, error=ToolError("the store lost the new artifact"))
        not_stored = self.store.not_stored or ("" if put.conflict else put.reason)
        if self.options.require_store and not_stored:
            error = ToolError(
                f"the artifact was compiled, but the store {self.store.root} could not keep it: "
                f"{not_stored}.",
                hint="Make room, or name another folder with --store; PALLASC_REQUIRE_STORE=0 "
                "continues without storing.",
            )
            return replace(result, error=error)
        if reply.status == "compiled":
            self.session.miss()
            self.session.made(reply.action, seconds=reply.seconds)
        else:
            self.session.hit(reply.action)
        return replace(
            result, status="compiled" if reply.status == "compiled" else "lowered",
            seconds=reply.seconds, action_key=reply.action, artifact=artifact,
            printed=reply.printed, diagnostics=reply.diagnostics, missed=reply.missed,
            manifest_key=name,
        )  # fmt: skip

    def _publish(self, variant: Variant, key: str, reply: Compiled) -> str:
        """Sign and publish a worker's manifest; return its name, "" if there is none.

        The manifest must name the artifact that the worker reported. If signatures are not
        required, the worker may have found an unsigned artifact in the store. So the manifest is
        signed only if this build compiled the artifact, or an earlier signed manifest of the
        request names it.
        """
        from pallasc.cache.manifests import manifest_from_json

        if reply.status == "compiled" and not reply.put.conflict:
            self.compiled[reply.action] = reply.digest
        body = reply.manifest
        if body is None:
            return ""
        if (body.get("action"), body.get("record")) != (reply.action, reply.digest):
            note = "the worker's manifest names a different artifact and was not stored"
            self.notes.append(f"{variant.id}: {note}")
            return ""
        try:
            sign = (
                self.store.trust.required
                or not self.store.trust.signers
                or self.compiled.get(reply.action) == reply.digest
                or self.store.signed_records(key).get(reply.action) == reply.digest
            )
            return self.store.put_set(key, manifest_from_json(key, body), sign=sign)
        except PallascError as error:
            self.notes.append(f"{variant.id} was not signed: {error.message}")
            return ""

    def _error(self, variant: Variant, failed: Failed) -> PallascError:
        """Return a variant's error, with a command to reproduce it if the process died."""
        error = failed.error
        if failed.died:
            command = "warm" if variant.program else "build"
            target = () if variant.program else ("--target", variant.target.name)
            words = ("pallasc", command, variant.location.file, "-k", variant.id, *target)
            alone = f"To build only this variant: {shlex.join(words)}"
            error.hint = f"{error.hint} {alone}" if error.hint else alone
        if isinstance(error, SpecError) and error.field:
            error.location = error.location or variant.where(error.field)
        error.location = error.location or failed.place
        return error


def open_pool(options: Options, setup: Setup, tasks: int) -> Pool:
    """Return a pool for a build; its workers start when there is work.

    Args:
        options: options of the build.
        setup: the toolchain.
        tasks: maximum number of variants to compile.
    """
    from pallasc.compiler.workers.pool import Pool, find_capacity

    return Pool(
        options.jobs or find_capacity().jobs(tasks),
        setup.environment,
        timeout_s=options.timeout_s,
        memory_bytes=options.memory_bytes,
        tick_s=_POOL_TICK_S,
        alone=options.alone,
    )


def _task(label: int, miss: Miss, lookup: Lookup) -> Task:
    from pallasc.compiler.workers.messages import Compile, Task

    variant = miss.variant
    folders = os.pathsep.join([variant.base_dir, *miss.place.folders])
    declared = declared_values(variant.env)

    def message() -> Compile:
        return Compile(
            variant=replace(variant, tuning=None),
            request=miss.key,
            fields=request_fields(variant, lookup.context),
            data=data_digests(variant, lookup.context.digests),
            env=declared,
            trusted_records=lookup.trusted_records(miss.key),
        )

    return Task(label, (variant.target.arch, folders, tuple(declared.items())), message)
