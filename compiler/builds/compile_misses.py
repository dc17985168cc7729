"""Compile the misses of a build in workers, and record their results."""

from __future__ import annotations

import os
import shlex
import time
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pallasc.cache.manifests import manifest_from_json
from pallasc.cache.store import default_root
from pallasc.compiler.builds.options import Options
from pallasc.compiler.builds.report import Status, Tick, VariantResult
from pallasc.compiler.builds.state import Miss, Run
from pallasc.compiler.inputs.lookup import stored_artifact
from pallasc.compiler.inputs.request import data_digests, request_fields
from pallasc.compiler.toolchain.setup import Setup, counted_values, declared_values
from pallasc.compiler.workers.messages import (
    Compile,
    Compiled,
    Failed,
    Introduction,
    Reply,
    Request,
    Task,
)
from pallasc.compiler.workers.pool import Pool, find_capacity
from pallasc.errors import CompileError, CorruptError, PallascError, SpecError, ToolError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.settings import SALT
from pallasc.specs.spec import Variant

if TYPE_CHECKING:
    from pallasc.compiler.cluster.pool import ClusterPool


_TICK_S = 0.25


def compile_misses(run: Run) -> None:
    """Compile the misses of a build in its workers, each request once per folder.

    Raises:
        ToolError: a compiling process cannot be started, or the sources cannot be sent.
    """
    pool = run.pool
    if pool is None or run.setup is None:
        return
    if isinstance(pool, Pool):
        pool.context = Introduction.of(run.setup, run.lookup.context, run.store)
    else:
        _describe(pool, run, run.setup)
    misses = list(run.misses.values())
    compiled_s: list[float] = []
    began_s: dict[int, float] = {}
    tasks = [_task(number, miss, run) for number, miss in enumerate(misses)]
    for kind, task, reply in pool.run(tasks):
        if kind == "tick" or task is None:
            run.on_event(_tick(run, misses, pool, compiled_s))
            continue
        miss = misses[task.label]
        if reply is None:
            began_s[task.label] = time.monotonic()
            run.emit("started", run.variants[miss.indices[0]], None)
            continue
        for position, index in enumerate(miss.indices):
            result = _result(run, miss, index, reply, first=position == 0)
            if result.status == "failed" and position == 0 and task.label in began_s:
                result = replace(result, seconds=time.monotonic() - began_s[task.label])
            if result.status == "compiled":
                compiled_s.append(result.seconds)
            run.settle(index, result)
        if run.stops():
            return


def open_workers(run: Run, setup: Setup) -> Pool | ClusterPool:
    """Return the workers of a build: local processes or a cluster.

    Raises:
        SpecError: the executor is not a scheduler's address.
    """
    options, tasks = run.options, len(run.variants)
    if run.warm is not None:
        return run.warm.pool(tasks)
    if not options.executor:
        return open_pool(options, setup, tasks)
    from pallasc.compiler.cluster.pool import ClusterPool

    jobs = options.jobs or find_capacity().jobs(tasks)
    warn = partial(run.store.tell_once, "cluster")
    return ClusterPool(options.executor, jobs, warn)


def open_pool(options: Options, setup: Setup, tasks: int) -> Pool:
    """Return a pool for a build; its workers start when there is work.

    Args:
        options: options of the build.
        setup: the toolchain.
        tasks: largest number of variants to compile.
    """
    capacity = find_capacity()
    jobs = options.jobs or capacity.jobs(tasks)
    memory = options.memory_bytes
    if memory is None:
        memory = capacity.memory_bytes(jobs)
    return Pool(
        jobs,
        setup.environment,
        timeout_s=options.timeout_s,
        memory_bytes=memory or None,
        tick_s=_TICK_S,
        alone=options.alone,
    )


def _tick(run: Run, misses: list[Miss], pool: Pool | ClusterPool, compiled_s: list[float]) -> Tick:
    running = tuple(
        (run.variants[misses[task.label].indices[0]], seconds) for task, seconds in pool.running()
    )
    total = len(run.variants)
    return Tick(running, len(run.results), total, tuple(compiled_s), pool.jobs)


def _task(label: int, miss: Miss, run: Run) -> Task:
    variant, lookup = run.variants[miss.indices[0]], run.lookup
    folders = os.pathsep.join([variant.base_dir, *miss.request.place.folders])
    declared = declared_values(variant.env)

    def request() -> Request:
        return Compile(
            variant=variant,
            request=miss.request.key,
            fields=request_fields(variant, lookup.context),
            data=data_digests(variant, lookup.context.digests),
            env=declared,
            trusted_records=lookup.trusted_records(miss.request),
        )

    return Task(label, (variant.target.arch, folders, tuple(declared.items())), request)


def _result(run: Run, miss: Miss, index: int, reply: Reply, *, first: bool) -> VariantResult:
    variant = run.variants[index]
    result = VariantResult(variant, "failed", reason=miss.reason, explanation=miss.explanation)
    if isinstance(reply, Failed):
        return replace(
            result, error=_error(variant, reply, run), output=reply.output, died=reply.died,
            missed=reply.missed, compiling=reply.compiling,
        )  # fmt: skip
    reply = reply.require(Compiled)
    if first:
        for topic, warning in reply.warnings.items():
            run.store.tell_once(topic, warning)
        if reply.conflict is not None:
            run.notes.append(f"{variant.id} is not deterministic: {reply.conflict}")
        if reply.uncached:
            run.notes.append(f"{variant.id} will be lowered again: {reply.uncached}")
        _sign(run, miss, reply)
        if run.remote is not None and reply.stored and reply.manifest_key:
            run.remote.offer(reply.manifest_key, variant.id)
    artifact = _artifact(run, reply)
    if artifact is None:
        return replace(result, error=CompileError("the store lost the new artifact"))
    if run.options.require_store and reply.not_stored:
        error = ToolError(
            f"it was compiled, but the store {run.store.root} could not keep it: "
            f"{reply.not_stored}.",
            hint="Make room, or name another folder with --store; PALLASC_REQUIRE_STORE=0 goes "
            "on without.",
        )
        return replace(result, error=error)
    status: Status = "shared"
    if first:
        status = "compiled" if reply.status == "compiled" else "lowered"
    if status == "compiled":
        run.session.miss()
        run.session.made(reply.action, seconds=reply.seconds)
    else:
        run.session.hit(reply.action)
    return replace(
        result, status=status, seconds=reply.seconds if first else 0.0,
        action_key=reply.action, artifact=artifact, printed=reply.printed,
        diagnostics=reply.diagnostics, missed=reply.missed,
        manifest_key=reply.manifest_key,
    )  # fmt: skip


def _sign(run: Run, miss: Miss, reply: Compiled) -> None:
    """Sign and publish a worker's manifest; it must name the artifact that the worker reported."""
    body, name = reply.manifest, run.variants[miss.indices[0]].id
    if body is None:
        return
    if (body.get("action"), body.get("record")) != (reply.action, reply.digest):
        run.notes.append(f"{name}: its manifest names another artifact and was not stored")
        return
    try:
        run.store.put_set(miss.request.key, manifest_from_json(miss.request.key, body))
    except CorruptError as error:
        run.notes.append(f"{name} was not signed: {error.message}")


def _error(variant: Variant, failed: Failed, run: Run) -> PallascError:
    """Return a variant's error; if its process died, with a command that reproduces it alone."""
    error = failed.error
    if failed.died:
        alone = f"To see it alone: {reproduction(variant, run)}"
        error.hint = f"{error.hint} {alone}" if error.hint else alone
    if isinstance(error, SpecError) and error.field:
        error.location = error.location or variant.where(error.field)
    error.location = error.location or failed.place or variant.location
    return error


def reproduction(variant: Variant, run: Run) -> str:
    """Return a command that builds only this variant, with the same limits and tools."""
    options = run.options
    command = "warm" if variant.program else "build"
    words = ["pallasc", command, variant.location.file, "-k", variant.id, "--jobs", "1"]
    words += [] if variant.program else ["--target", variant.target.name]
    if options.timeout_s is not None:
        words += ["--timeout", f"{options.timeout_s:g}"]
    if options.memory_bytes is not None:
        words += ["--memory", f"{options.memory_bytes}B" if options.memory_bytes else "none"]
    if run.store.root != default_root():
        words += ["--store", str(run.store.root)]
    setting = f"PALLASC_PTXAS={shlex.quote(str(options.ptxas))} " if options.ptxas else ""
    return setting + shlex.join(words)


def _artifact(run: Run, reply: Compiled) -> Artifact | None:
    artifact = None
    if reply.stored:  # read on demand, so that it need not stay in memory
        artifact = stored_artifact(run.store, reply.action, record=reply.digest or "")
    if artifact is not None or reply.record is None:
        return artifact
    return Artifact(reply.record, reply.blobs.__getitem__)


TIMEOUT_S = 3600.0
"""Default time limit of a variant, so that no variant occupies a worker forever."""


def _describe(pool: ClusterPool, run: Run, setup: Setup) -> None:
    """Send the toolchain and sources of a build to a cluster, and verify its results.

    Raises:
        ToolError: there is too much to send, or the assembler does not report its version.
    """
    from pallasc.compiler.cluster.exchange import publish, sources_of
    from pallasc.compiler.cluster.worker import BuildPlugin

    requests = [miss.request for miss in run.misses.values()]
    variants = (run.variants[miss.indices[0]] for miss in run.misses.values())
    sent = sources_of(variants, without=[str(run.store.root)])
    context = run.lookup.context
    salt = {name: value for name, value in context.variables.items() if name == SALT}
    plugin = BuildPlugin(
        toolchain=context.components(),
        salt=salt,
        environment=counted_values(setup.environment),
        ptxas=run.options.ptxas and setup.toolchain.ptxas,
        timeout_s=run.options.timeout_s or TIMEOUT_S,
        memory_bytes=run.options.memory_bytes,
        sources=sent,
    )
    pool.describe(plugin)
    pool.accept = partial(publish, requests, run.lookup, run.store)
