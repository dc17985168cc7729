"""Preloaded into a dask worker: it answers without compiling, as a file says.

The file is `$BEHAVIOR`; without it, the worker is honest. Each variant adds a line to
`$BEHAVIOR.log`.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path

from pallasc.compiler.workers import cluster_worker as worker
from pallasc.compiler.workers.cluster import LONGEST_BYTES
from pallasc.compiler.workers.cluster_worker import reply_bytes
from pallasc.compiler.workers.messages import Group, Reply, Request

GOOD = reply_bytes(Reply())
ANSWERS: Mapping[str, object] = {
    "is cut": GOOD[:-5],
    "is too large": bytes(LONGEST_BYTES + 1),
    "swells when it is parsed": b'{"type": "Reply", "x": {"y": [' + b"[]," * 1_000_000 + b"[]]}}",
    "is of another type": 3,
}


def behave(build: str, group: Group, request: Request) -> object:
    place = Path(os.environ["BEHAVIOR"])
    behavior = place.read_text() if place.exists() else ""
    with Path(f"{place}.log").open("a") as log:
        log.write(f"{behavior}\n")
    if behavior == "is death":
        os._exit(1)
    if behavior == "never comes":
        time.sleep(3600)
    if behavior == "is an error":
        raise RuntimeError("no such luck")
    if behavior == "is a refusal":
        return worker._refusal("compiled with jax 0.1, but 0.2 is installed")
    if not behavior:
        time.sleep(0.02)  # so that the other worker gets its share
    return ANSWERS.get(behavior, GOOD)


def dask_setup(preloaded: object) -> None:
    """Called by dask when it preloads this file."""
    worker.compile_variant = behave  # type: ignore[assignment]
