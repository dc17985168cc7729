"""Compile with a store in this process and print what became of it: kept.py STORE FACTOR MODE."""

from __future__ import annotations

import json
import sys
from typing import Any

import jax

import pallasc
import pallasc.compiler.lowering.compile as compiling
from pallasc.cache.store import Store

FACTOR = 1.0
compiled: list[str] = []
plain = compiling.compile_job


def triple(x: Any) -> Any:
    return x * FACTOR


def counted(job: Any, lowered: Any, tools: Any) -> Any:
    compiled.append(job.function.__name__)
    return plain(job, lowered, tools)


_, store, factor, mode = sys.argv
FACTOR = float(factor)
compiling.compile_job = counted
if mode == "precise":
    jax.config.update("jax_disable_most_optimizations", True)
found = pallasc.compile(triple, "f32[128, 128]", store=Store(store))
print(json.dumps([compiled, found.digest, len(found.cubin())]))
