"""Compile in the caller's process with a store.

The function is always traced and lowered: the reads of the caller's process were not recorded, and
its modules may have been modified, so there is no manifest. Compiling is skipped if the store has
the action key. That is a worker's key (`compile.action_fields`) with all of JAX's settings in this
process, as some act after lowering.

If the store signs entries or accepts only signed ones, the artifact has a manifest of its own,
`{"action": key, "record": digest of the record}`, under a key derived from the action key.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

from pallasc.cache.about import About
from pallasc.cache.format import KINDS, MANIFESTS
from pallasc.cache.manifests import Manifest
from pallasc.cache.store import Store
from pallasc.cache.uses import Session
from pallasc.compiler.inputs.lookup import stored_artifact
from pallasc.compiler.lowering import compile as compiling
from pallasc.compiler.lowering.compile import Job, Tools, action_fields, lower_job
from pallasc.compiler.toolchain.context import Context
from pallasc.compiler.toolchain.setup import Setup
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.canonical import labelled_key

_contexts: dict[tuple[Path, Path], Context] = {}
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_CACHES = ("jax_compilation_cache", "jax_persistent_cache", "jax_enable_compilation_cache")


def compile_with_store(job: Job, setup: Setup, store: Store, tools: Tools) -> Artifact:
    """Return the artifact of a job from the store, or compile and store it.

    Raises:
        CompileError: it does not compile.
    """
    context = _contexts.get((setup.toolchain.ptxas, store.root)) or _identified(setup, store)
    tools = replace(tools, identity=context.for_actions(), variables=context.variables)
    lowered = lower_job(job, tools.process)
    key = labelled_key(action_fields(job, lowered, tools) | _settings())
    about = About(str(getattr(job.function, "__name__", "function")), job.target.name, {})
    with Session(store) as session, store.single_flight(key):
        stored = _trusted_artifact(store, key)
        if stored is not None:
            session.hit(key, about=about)
            return stored
        began_s = time.monotonic()
        result, blobs = compiling.compile_job(job, lowered, tools)
        put = store.put_artifact(key, result, blobs, replace=store.trust.strict)
        if store.trust.signs and put.stored:
            store.put_manifest(_voucher_key(key), Manifest(action=key, record=put.digest))
        session.miss(about=about)
        session.made(key, seconds=time.monotonic() - began_s, about=about)
        return Artifact(result, blobs.__getitem__)


def _trusted_artifact(store: Store, key: str) -> Artifact | None:
    """Return the artifact under an action key, if its signature is trusted where required."""
    if not store.trust.strict:
        return stored_artifact(store, key, record=None)
    name = _voucher_key(key)
    manifest = store.find_manifest(name)
    if manifest is None or not store.trust.vouches(KINDS[MANIFESTS], name, manifest.body):
        return None
    if manifest.action != key:
        return None
    return stored_artifact(store, key, record=manifest.record)


def _voucher_key(key: str) -> str:
    """Return the key of the manifest that vouches for an artifact of a caller's process."""
    return labelled_key({"compiled in the caller's process": key})


def _identified(setup: Setup, store: Store) -> Context:
    """Identify the toolchain once per process: later installs do not change what it has loaded."""
    context = setup.context(store)
    context.digests.save()
    _contexts[setup.toolchain.ptxas, store.root] = context
    return context


def _settings() -> dict[str, str]:
    """Return JAX's settings in this process as a labelled field, without locations of caches."""
    import jax

    values = {n: repr(v) for n, v in jax.config.values.items() if not n.startswith(_CACHES)}
    text = "\n".join(f"{name}={values[name]}" for name in sorted(values))
    return {"settings": _ADDRESS.sub("", text)}
