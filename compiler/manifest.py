"""The request key, and the manifest that it leads to: a hit without importing JAX.

A manifest says which files and packages the last compilation of a request read, with their digests,
and which action key came out (as ccache's direct mode does). Where all of them still match, the
record under that action key is the answer.

Manifest, schema 1:

* `action`: the action key
* `files`: label -> digest, `packages`: name -> digest
* `opened`: label -> digest of another file or the names in a folder that was read, null for none
* `variables`: name -> digest of the value of an environment variable that was looked up, or null
* `absent`: modules that were asked for in vain; `hidden`: modules of Python that others hide
* `current_folder`: digest of its path, where something was opened relative to it, or ""
* `about`: name, target and parameters of the variant that was compiled last, and its seconds
* `name`, `variant`: its kernel and its id
* `request`, `fields`: the labelled fields of both keys, long ones as `sha256:` digests, so that a
  miss can be explained
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pallasc.cache.about import About, seconds_of
from pallasc.cache.stat_digest import FileDigests
from pallasc.cache.store import Store
from pallasc.compiler.closure import hidden, locate, locate_module
from pallasc.compiler.identity import package_digest
from pallasc.compiler.reads import (
    FOLDER,
    current_folder,
    listing_digest,
    path_of,
    values_now,
)
from pallasc.compiler.sources import Sources
from pallasc.errors import PallascError
from pallasc.specs.artifact import Artifact
from pallasc.specs.canonical import canonical_json, digest, labelled_key
from pallasc.specs.entries import Entry, parse_entry
from pallasc.specs.spec import Variant

MANIFEST_SCHEMA = 1
_LONGEST_FIELD = 400
_RECORD_GONE = "the store no longer has its record"


@dataclass(frozen=True, slots=True)
class Context:
    """What all variants of a build share: the toolchain's identity and the digests of files."""

    identity: Mapping[str, str]
    variables: Mapping[str, str]
    digests: FileDigests


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to a request: an artifact and its action key, or the reason why there is none.

    `cost_s` is what compiling it once took.
    """

    action_key: str | None
    artifact: Artifact | None
    reason: str = ""
    cost_s: float = 0.0


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


def folder_key(request: str, base_dir: str) -> str:
    """Return the key of the manifest of a request from one folder.

    Two folders may ask for the same with other sources. Each finds its own manifest under this
    key; the one under the request key alone is for a folder that was moved or copied.
    """
    return labelled_key({"request": request, "folder": base_dir})


def about(variant: Variant) -> About:
    """Return what the store is told of who asked."""
    return About(variant.name, variant.target.name, dict(variant.params))


def data_digests(variant: Variant, digests: FileDigests) -> dict[str, str]:
    """Return the digests of the data files that a variant declares.

    Raises:
        ToolError: one cannot be read.
    """
    return {name: digests.digest(Path(variant.base_dir) / name) for name in variant.files}


def find(variant: Variant, context: Context, store: Store) -> Found:
    """Look a variant up without compiling or importing anything."""
    request = request_key(variant, context)
    reason = ""
    for name in (folder_key(request, variant.base_dir), request):
        manifest = store.get_manifest(name)
        if manifest is None:
            continue
        found = _follow(manifest, variant, context, store)
        if found.artifact is not None:
            return found
        reason = reason or found.reason
    return Found(None, None, reason or "never compiled with this spec and toolchain")


def _follow(manifest: Mapping[str, Any], variant: Variant, context: Context, store: Store) -> Found:
    folders = import_folders(variant)
    changed = changed_source(manifest, variant.base_dir, context.digests, folders)
    if changed:
        return Found(None, None, changed)
    artifact = stored_artifact(store, manifest["action"])
    told = manifest.get("about")
    cost_s = seconds_of(told.get("seconds")) if isinstance(told, Mapping) else 0.0
    return Found(manifest["action"], artifact, "" if artifact else _RECORD_GONE, cost_s)


def changed_source(
    manifest: Mapping[str, Any],
    base_dir: str,
    digests: FileDigests,
    folders: Sequence[str] | None = None,
) -> str | None:
    """Return which source of a manifest is no longer what it was, None if all are."""
    return next(changed_sources(manifest, base_dir, digests, folders), None)


def changed_sources(
    manifest: Mapping[str, Any],
    base_dir: str,
    digests: FileDigests,
    folders: Sequence[str] | None = None,
) -> Iterator[str]:
    """Yield a sentence for each source of a manifest that is no longer what it was.

    Modules are looked for in `folders` first, in `base_dir` by default.
    """
    for label, wanted in sorted(manifest.get("files", {}).items()):
        path = locate(label, base_dir, folders)
        now = None if path is None else _digest(path, digests)
        if now != wanted:
            yield f"{label.partition(':')[2]} {'is gone' if now is None else 'has changed'}"
    places = folders or (base_dir,)
    for name, wanted in sorted(manifest.get("packages", {}).items()):
        if package_digest(name, digests.digest, places) != wanted:
            yield f"the installed package {name} has changed"
    yield from _changed_surroundings(manifest, base_dir, digests, places)


def _changed_surroundings(
    manifest: Mapping[str, Any], base_dir: str, digests: FileDigests, places: Sequence[str]
) -> Iterator[str]:
    """Yield a sentence for each thing beside modules that is no longer what it was."""
    for label, wanted in sorted(manifest.get("opened", {}).items()):
        if _opened_digest(label, path_of(label, base_dir), digests) != wanted:
            yield f"{label.partition(':')[2]}, which was read, has changed"
    variables = manifest.get("variables", {})
    now = values_now(variables) if variables else {}
    for name, wanted in sorted(variables.items()):
        if now[name] != wanted:
            yield f"the environment variable {name} has changed"
    for name in manifest.get("absent", ()):
        if locate_module(name, places) is not None:
            yield f"{name}, which was missing, can be imported now"
    if manifest.get("hidden") not in (None, hidden(places)):
        yield "other modules of Python are hidden by files of the same names"
    if manifest.get("current_folder") not in (None, "", current_folder()):
        yield "a file was opened relative to another current folder"


def _opened_digest(label: str, path: Path, digests: FileDigests) -> str | None:
    """Return the digest of a file or of the names in a folder, None if there is no such thing."""
    listed = label.startswith(FOLDER) or label.endswith(os.sep)
    return listing_digest(path) if listed else _digest(path, digests)


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
        "packages": {
            name: package_digest(name, digests.digest, read.folders)
            for name in sorted(read.packages)
        },
        "opened": {
            label: _opened_digest(label, path, digests)
            for label, path in sorted(read.opened.items())
        },
        "variables": dict(sorted(read.variables.items())),
        "absent": sorted(read.absent),
        "hidden": read.hidden,
        "current_folder": read.current_folder,
    }


def short_fields(fields: Mapping[str, str]) -> dict[str, str]:
    """Return labelled fields with the digest in place of every long value."""
    return {
        label: value if len(value) <= _LONGEST_FIELD else f"sha256:{digest(value.encode())}"
        for label, value in fields.items()
    }


def named_entries(variant: Variant) -> list[Entry]:
    """Return the entry points that a compilation imports: its own, of `$call` and of `$ref`."""
    return [parse_entry(entry) for entry in (variant.entry, *_named(variant.static))]


def _named(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _named(item)
    elif isinstance(value, Mapping):
        yield from (value[key] for key in ("$call", "$ref") if key in value)
        for item in value.values():
            yield from _named(item)


def import_folders(variant: Variant) -> tuple[str, ...]:
    """Return the folders that a compilation can import from: the spec's, or that of a file."""
    base = Path(variant.base_dir)
    places = (
        str((base / entry.source).resolve().parent) if entry.is_file else variant.base_dir
        for entry in named_entries(variant)
    )
    return tuple(dict.fromkeys(places))


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
