"""A build whose misses are compiled by a dask cluster."""

from __future__ import annotations

from functools import partial

from pallasc.compiler.builds.state import Miss, Run
from pallasc.compiler.cluster.address import parse_address, require_dask
from pallasc.compiler.cluster.pool import ClusterPool
from pallasc.compiler.cluster.received import received
from pallasc.compiler.inputs.lookup import Lookup
from pallasc.compiler.toolchain.setup import Setup
from pallasc.compiler.workers.capacity import find_capacity
from pallasc.compiler.workers.messages import Compile, Compiled, Reply, Request, Task

_TICK_S = 0.25


def open_cluster(run: Run, setup: Setup) -> ClusterPool:
    """Return the cluster that a build compiles with.

    Raises:
        SpecError: the executor is not the address of a scheduler.
        ToolError: dask is not installed.
    """
    options = run.options
    address = parse_address(options.executor or "")
    require_dask()
    jobs = options.jobs or find_capacity().jobs(len(run.variants))
    return ClusterPool(
        address,
        jobs,
        setup.environment,
        ptxas="" if options.ptxas is None else str(setup.toolchain.ptxas),
        timeout_s=options.timeout_s,
        memory_bytes=options.memory_bytes,
        tick_s=_TICK_S,
        tell=partial(run.store.tell_once, "cluster"),
    )


def describe(pool: object, run: Run, lookup: Lookup, setup: Setup) -> None:
    """Tell a cluster what the misses of a build are compiled with, and how results are taken in.

    Raises:
        ToolError: there is too much to send, or the assembler cannot be asked for its version.
    """
    if not isinstance(pool, ClusterPool):
        return
    misses = list(run.misses.values())
    variants = [run.variants[miss.indices[0]] for miss in misses]
    without = [str(run.store.root)]
    pool.describe(lookup.context, setup.versions_now(), variants, without)
    pool.accept = partial(_accept, pool, run, lookup, misses)


def _accept(
    pool: ClusterPool,
    run: Run,
    lookup: Lookup,
    misses: list[Miss],
    task: Task,
    asked: Request,
    reply: Compiled,
) -> Reply | str:
    if not isinstance(asked, Compile):
        return reply
    keys = misses[task.label].request
    return received(reply, asked=asked, keys=keys, lookup=lookup, store=run.store, sent=pool.sent)
