"""Load spec files: YAML in this process, Python in a worker.

What a Python file declares is remembered in the store, under the digests of all files that were
read to find out, so that an unchanged one is not executed again.

Manifest of a Python spec file: that of a compilation (`manifest`) with `specs`, a text of JSON
whose mappings keep their order.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pallasc.cache.stat_digest import FileDigests
from pallasc.cache.store import Store
from pallasc.compiler.environment import compiler_variables, settled
from pallasc.compiler.identity import own_digest, recorded
from pallasc.compiler.manifest import changed_source, make_manifest
from pallasc.compiler.messages import error_from_json
from pallasc.compiler.pool import Pool, Task
from pallasc.compiler.sources import sources_from_json
from pallasc.errors import Location, SpecError
from pallasc.specs.canonical import labelled_key
from pallasc.specs.spec import Spec
from pallasc.specs.wire import spec_from_json
from pallasc.specs.yaml_loader import load_specs

_SCHEMA = "1"
_JAX = ("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin")
"""Packages that closures leave out."""


def collect(paths: Sequence[str], *, store: Store) -> list[Spec]:
    """Return the specs that the files and folders `paths` declare.

    Python files run in a process of their own each.

    Raises:
        SpecError: one is missing or wrong.
    """
    return load_specs(paths, collect_python=lambda path: _collect_python(path, store))


def _collect_python(path: str, store: Store) -> list[Spec]:
    digests = FileDigests(store.root)
    folder = str(Path(path).resolve().parent)
    key = labelled_key(
        {
            "collect": _SCHEMA,
            "file": str(Path(path).resolve()),
            "path": path,
            "python": sys.version,
            "jax": recorded(_JAX),
            "pallasc": own_digest(digests.digest),
            **{f"variable {n}": v for n, v in compiler_variables(settled(os.environ)).items()},
        }
    )
    manifest = store.get_manifest(key)
    if manifest is not None and changed_source(manifest, folder, digests) is None:
        return _specs(json.loads(manifest["specs"]))
    answer = _ask_worker(path)
    if not answer["uncached"]:
        manifest = make_manifest("", sources_from_json(answer["sources"]), digests)
        store.put_manifest(key, {**manifest, "specs": json.dumps(answer["specs"])})
        digests.save()
    return _specs(answer["specs"])


def _specs(data: Sequence[Mapping[str, Any]]) -> list[Spec]:
    return [spec_from_json(dict(item)) for item in data]


def _ask_worker(path: str) -> dict[str, Any]:
    message = {"op": "collect", "path": path}
    task = Task(0, ("", ""), message, "the process that executes this file")
    with Pool(1, settled(os.environ)) as pool:
        for kind, _, answer in pool.run([task]):
            if kind == "done" and answer is not None:
                if answer.error is not None:
                    where = answer.error.location or answer.place or Location(path)
                    raise SpecError(answer.error.message, location=where, hint=answer.error.hint)
                if answer.message is not None and not answer.message["ok"]:
                    raise error_from_json(answer.message["error"])
                return answer.message or {}
    return {}
