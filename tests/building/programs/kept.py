"""Compile with a store in this process and print what became of it: kept.py STORE FACTOR MODE...

Several factors and modes are compiled one after the other.
"""

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


_, store, *calls = sys.argv
compiling.compile_job = counted
told = []
for factor, mode in zip(calls[::2], calls[1::2], strict=True):
    FACTOR = float(factor)
    jax.config.update("jax_disable_most_optimizations", mode == "precise")
    compiled.clear()
    found = pallasc.compile(triple, "f32[128, 128]", store=Store(store))
    told.append([[*compiled], found.digest, len(found.cubin())])
print(json.dumps(told))
