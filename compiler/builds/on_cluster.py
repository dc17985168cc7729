"""A build whose misses are compiled by a dask cluster."""

from __future__ import annotations

from functools import partial

from pallasc.compiler.builds.state import Run
from pallasc.compiler.cluster.address import parse_address
from pallasc.compiler.cluster.outcomes import publish
from pallasc.compiler.cluster.pool import ClusterPool
from pallasc.compiler.cluster.sources import sources_of
from pallasc.compiler.inputs.lookup import Lookup
from pallasc.compiler.toolchain.setup import Setup, counted_values
from pallasc.compiler.workers.capacity import find_capacity
from pallasc.specs.settings.build_settings import SALT

TIMEOUT_S = 3600.0
"""Time limit of a variant without `--timeout`: no worker may keep a variant for ever."""


def open_cluster(run: Run) -> ClusterPool:
    """Return the cluster that a build compiles with.

    Raises:
        SpecError: the executor is not the address of a scheduler.
    """
    jobs = run.options.jobs or find_capacity().jobs(len(run.variants))
    address = parse_address(run.options.executor or "")
    return ClusterPool(address, jobs, partial(run.store.tell_once, "cluster"))


def describe(pool: ClusterPool, run: Run, lookup: Lookup, setup: Setup) -> None:
    """Send a cluster the toolchain and the sources of a build, and have its results verified.

    Raises:
        ToolError: there is too much to send, or the assembler cannot be asked for its version.
    """
    from pallasc.compiler.cluster.worker import BuildPlugin

    requests = [miss.request for miss in run.misses.values()]
    variants = (run.variants[miss.indices[0]] for miss in run.misses.values())
    sent = sources_of(variants, without=[str(run.store.root)])
    salt = {name: value for name, value in lookup.context.variables.items() if name == SALT}
    plugin = BuildPlugin(
        toolchain=setup.components(lookup.context),
        salt=salt,
        environment=counted_values(setup.environment),
        ptxas=run.options.ptxas and setup.toolchain.ptxas,
        timeout_s=run.options.timeout_s or TIMEOUT_S,
        memory_bytes=run.options.memory_bytes,
        sources=sent,
    )
    pool.describe(plugin)
    pool.accept = partial(publish, requests, lookup, run.store, sent)
