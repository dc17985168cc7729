"""Compile in the caller's process with a store: what it has under the action key is not compiled.

The function is traced and lowered each time: nobody recorded what the caller's process has read, or
what it has made of its modules since, so no manifest can stand for it. The key is that of a worker
(`compile.action_fields`), with all of JAX's settings in this process, of which some act after
lowering.

Where the store signs, or only signed entries count, what was compiled has a manifest of its own:
`{"action": key, "record": digest of the record}`, under a key made of the action key.
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

_known: dict[tuple[Path, Path], Context] = {}
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_CACHES = ("jax_compilation_cache", "jax_persistent_cache", "jax_enable_compilation_cache")


def compile_with_store(job: Job, setup: Setup, store: Store, tools: Tools) -> Artifact:
    """Return the artifact of a job from a store, which has it from then on.

    Raises:
        CompileError: it does not compile.
    """
    context = _known.get((setup.toolchain.ptxas, store.root)) or _identified(setup, store)
    tools = replace(tools, identity=context.for_actions(), variables=context.variables)
    lowered = lower_job(job, tools.process)
    key = labelled_key(action_fields(job, lowered, tools) | _settings())
    about = About(str(getattr(job.function, "__name__", "function")), job.target.name, {})
    with Session(store) as session, store.single_flight(key):
        found = _held(store, key)
        if found is not None:
            session.hit(key, about=about)
            return found
        began_s = time.monotonic()
        result, blobs = compiling.compile_job(job, lowered, tools)
        put = store.put_artifact(key, result, blobs, replace=store.trust.strict)
        if store.trust.signs and put.stored:
            store.put_manifest(_vouching(key), Manifest(action=key, record=put.digest))
        session.miss(about=about)
        session.made(key, seconds=time.monotonic() - began_s, about=about)
        return Artifact(result, blobs.__getitem__)


def _held(store: Store, key: str) -> Artifact | None:
    """Return what the store has under an action key, if it may be believed."""
    if not store.trust.strict:
        return stored_artifact(store, key, record=None)
    name = _vouching(key)
    manifest = store.find_manifest(name)
    if manifest is None or not store.trust.vouches(KINDS[MANIFESTS], name, manifest.body):
        return None
    if manifest.action != key:
        return None
    return stored_artifact(store, key, record=manifest.record)


def _vouching(key: str) -> str:
    """Return the request key of the manifest that vouches for an action of a caller's process."""
    return labelled_key({"compiled in the caller's process": key})


def _identified(setup: Setup, store: Store) -> Context:
    """Identify the toolchain, once a process: what is installed later is not what it loaded."""
    context = setup.context(store)
    context.digests.save()
    _known[setup.toolchain.ptxas, store.root] = context
    return context


def _settings() -> dict[str, str]:
    """Return JAX's settings in this process as a labelled field; where caches lie is left out."""
    import jax

    values = {n: repr(v) for n, v in jax.config.values.items() if not n.startswith(_CACHES)}
    text = "\n".join(f"{name}={values[name]}" for name in sorted(values))
    return {"settings": _ADDRESS.sub("", text)}
