"""Workers that stay between builds: what they compile is remembered as after any build."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.compiler.builds.watch import WarmWorkers
from pallasc.compiler.workers.pool import Pool

KERNEL = """
from pallasc.specs.library.elementwise import add

def twice(x):
    return add(x, x, block_size=1024)
"""
_DEADLINE_S = 600
_GRAIN_NS = 50_000_000
"""How long a watch waits for a file to rest."""


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def wait_for_worker(pool: Pool) -> None:
    """Wait until the worker that gets ready is."""
    (worker,) = pool._workers
    wait_for(lambda: worker.is_fit() and bool(worker.ready_s))


def test_what_a_worker_compiles_that_was_ready_before_the_edit_is_remembered(
    project: Any, results: Callable[[Any], dict[str, Any]]
) -> None:
    project.write("kernels.py", KERNEL)
    project.spec({"name": "twice", "entry": "kernels.py:twice"})
    options = Options(jobs=1)
    with WarmWorkers(options) as warm:
        first = build(project.variants(), store=project.store, options=options, warm=warm)
        assert first.exit_code == 0, first.failed
        warm.keep_ready(project.variants(), first.context, project.store)
        wait_for_worker(warm.pool(1))
        edited = project.write("kernels.py", f"{KERNEL}# edited")
        wait_for(lambda: time.time_ns() > edited.stat().st_ctime_ns + _GRAIN_NS)
        second = build(project.variants(), store=project.store, options=options, warm=warm)
    result = results(second)["twice"]
    assert (result.status, second.notes) == ("lowered", ())
    assert project.build().results[0].status == "hit"
