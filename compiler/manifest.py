"""The request key, and the manifest that it leads to: a hit without importing JAX.

A manifest says which files and packages the last compilation of a request read, with their digests,
and which action key came out (as ccache's direct mode does). Where all of them still match, the
record under that action key is the answer.

Manifest, schema 1:

* `action`: the action key
* `files`: label -> digest, `packages`: top-level name -> digest
* `name`, `variant`: the kernel and the id of the variant that was compiled last
* `request`, `fields`: the labelled fields of both keys, long ones as `sha256:` digests, so that a
  miss can be explained
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pallasc.cache.stat_digest import FileDigests
from pallasc.cache.store import Store
from pallasc.compiler.closure import Sources, locate
from pallasc.compiler.identity import package_digest
from pallasc.errors import PallascError
from pallasc.specs.artifact import Artifact
from pallasc.specs.canonical import canonical_json, digest, labelled_key
from pallasc.specs.spec import Variant

MANIFEST_SCHEMA = 1
_LONGEST_FIELD = 400


@dataclass(frozen=True, slots=True)
class Context:
    """What all variants of a build share: the toolchain's identity and the digests of files."""

    identity: Mapping[str, str]
    variables: Mapping[str, str]
    digests: FileDigests


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to a request: an artifact and its action key, or the reason why there is none."""

    action_key: str | None
    artifact: Artifact | None
    reason: str = ""


def request_key(variant: Variant, context: Context) -> str:
    """Return the key of what was asked: the variant, its data files, the toolchain.

    Raises:
        ToolError: a declared data file cannot be read.
    """
    return labelled_key(request_fields(variant, context))


def request_fields(variant: Variant, context: Context) -> dict[str, str]:
    """Return the labelled fields that a request key is made of, as text.

    Raises:
        ToolError: a declared data file cannot be read.
    """
    data = data_digests(variant, context.digests)
    return {
        "manifest": str(MANIFEST_SCHEMA),
        **{label: canonical_json(value).decode() for label, value in variant.request().items()},
        "target name": variant.target.name,
        **{f"data {name}": value for name, value in data.items()},
        **{f"tool {label}": value for label, value in context.identity.items()},
        **{f"variable {name}": value for name, value in context.variables.items()},
    }


def data_digests(variant: Variant, digests: FileDigests) -> dict[str, str]:
    """Return the digests of the data files that a variant declares.

    Raises:
        ToolError: one cannot be read.
    """
    return {name: digests.digest(Path(variant.base_dir) / name) for name in variant.files}


def find(variant: Variant, context: Context, store: Store) -> Found:
    """Look a variant up without compiling or importing anything."""
    manifest = store.get_manifest(request_key(variant, context))
    if manifest is None:
        return Found(None, None, "never compiled with this spec and toolchain")
    changed = changed_source(manifest, variant.base_dir, context.digests)
    if changed:
        return Found(None, None, changed)
    key = str(manifest.get("action"))
    artifact = stored_artifact(store, key)
    return Found(key, artifact, "" if artifact else "the store no longer has its record")


def changed_source(manifest: Mapping[str, Any], base_dir: str, digests: FileDigests) -> str | None:
    """Return which source of a manifest is no longer what it was, None if all are."""
    return next(changed_sources(manifest, base_dir, digests), None)


def changed_sources(
    manifest: Mapping[str, Any], base_dir: str, digests: FileDigests
) -> Iterator[str]:
    """Yield a sentence for each source of a manifest that is no longer what it was."""
    for label, wanted in sorted(manifest.get("files", {}).items()):
        path = locate(label, base_dir)
        now = None if path is None else _digest(path, digests)
        if now != wanted:
            yield f"{label.partition(':')[2]} {'is gone' if now is None else 'has changed'}"
    for name, wanted in sorted(manifest.get("packages", {}).items()):
        if package_digest(name, digests.digest) != wanted:
            yield f"the installed package {name} has changed"


def _digest(path: Path, digests: FileDigests) -> str | None:
    try:
        return digests.digest(path)
    except PallascError:
        return None


def make_manifest(
    action_key: str, read: Sources, digests: FileDigests, **more: Any
) -> dict[str, Any]:
    """Return the manifest of a compilation that read these sources, with `more` fields."""
    return {
        **more,
        "schema": MANIFEST_SCHEMA,
        "action": action_key,
        "files": {label: digests.digest(path) for label, path in sorted(read.files.items())},
        "packages": {name: package_digest(name, digests.digest) for name in sorted(read.packages)},
    }


def short_fields(fields: Mapping[str, str]) -> dict[str, str]:
    """Return labelled fields with the digest in place of every long value."""
    return {
        label: value if len(value) <= _LONGEST_FIELD else f"sha256:{digest(value.encode())}"
        for label, value in fields.items()
    }


def stored_artifact(store: Store, action_key: str) -> Artifact | None:
    """Return the artifact under an action key, all its blobs verified, or None."""
    stored = store.get_artifact(action_key, verify=True)
    if stored is None:
        return None
    try:
        return Artifact(stored.artifact, blob_reader(stored.blob))
    except PallascError:
        return None


def blob_reader(read: Callable[[str], bytes | None]) -> Callable[[str], bytes]:
    """Return a reader of blobs that answers b"" where the store has lost one: no digest fits it."""
    return lambda key: read(key) or b""
