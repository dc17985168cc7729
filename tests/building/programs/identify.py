"""Identify the toolchain and print it as JSON: identify.py STORE."""

from __future__ import annotations

import json
import sys

from pallasc.cache.store import Store
from pallasc.compiler.toolchain.setup import prepare

HEAVY = ("jax", "jaxlib", "numpy", "llvmlite", "google.protobuf", "torch")

with prepare() as setup:
    context = setup.context(Store(sys.argv[1]))
loaded = [name for name in HEAVY if name in sys.modules]
answer = {"identity": context.identity, "hashed": context.digests.hashed, "loaded": loaded}
print(json.dumps(answer))
