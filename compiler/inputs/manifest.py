"""The request key, and the manifest that it leads to: a hit without importing JAX.

A manifest says which files and packages the last compilation of a request read, with their digests,
and which action key came out (as ccache's direct mode does). Where all of them still match, the
record under that action key is the answer (`lookup`).

Manifest, schema 3:

* `action`: the action key, `record`: the digest of the record that came out under it
* `files`: label -> digest, `packages`: name -> digest, `package_versions`: name -> version
* `opened`: label -> digest of what else was read or asked for, labels as in `reads`; null for none
* `missed`: environment variable, or file of the user's home, that was asked for and is withheld ->
  `file:line` of who asked; so that the build can say so where it is set
* `absent`: modules that were asked for in vain; `hidden`: modules of Python that others hide
* `read`: digest over all of these, so that variants that read the same are seen to
* `about`: name, target and parameters of the variant that was compiled last, and its seconds
* `name`, `variant`: its kernel and its id
* `printed`: what tracing printed (`kernel_output`), `diagnostics`: what was said (`diagnostics`);
  where there is nothing, neither
* `versions`: label -> version of each part of the toolchain, for people (`components`)
* `request`, `fields`: the labelled fields of both keys, long ones as `sha256:` digests, so that a
  miss can be explained; as a text of JSON, which is read only then

What each field may be is checked by `cache/manifests`, which must know a new one; `signed` is added
by `cache/signing`.

Schema 2 had `variables`, digests of the values that were looked up, and `current_folder`, when
workers still had the environment of the build. Schema 1 had no `read`, and its request key was over
every field of the toolchain one by one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pallasc.cache.about import About
from pallasc.cache.stat_digest import FileDigests
from pallasc.compiler.inputs.reads import change_of, digest_of, package_in, path_of
from pallasc.compiler.inputs.sources import Sources
from pallasc.compiler.toolchain.context import Context
from pallasc.compiler.toolchain.environment import declared_fields
from pallasc.compiler.toolchain.identity import package_digest
from pallasc.compiler.toolchain.installed import version_of
from pallasc.compiler.toolchain.modules import hidden, locate, locate_module
from pallasc.errors import PallascError
from pallasc.specs.arrays import ArraySpec
from pallasc.specs.canonical import canonical_json, canonical_text, digest, labelled_key
from pallasc.specs.entries import Entry, parse_entry
from pallasc.specs.gpus import Target
from pallasc.specs.spec import Variant, plain_args

if TYPE_CHECKING:
    pass

MANIFEST_SCHEMA = 3
_PLAIN = (str, int, float, type(None), ArraySpec)
_LONGEST_FIELD = 400


def request_key(variant: Variant, context: Context) -> str:
    """Return the key of what was asked: the variant, its data files, the toolchain.

    Raises:
        ToolError: a declared data file cannot be read.
    """
    data = data_digests(variant, context.digests)
    return key_of(own_fields(variant, data), toolchain_key(context))


def key_of(own: Mapping[str, str], toolchain: str) -> str:
    """Return the request key of a variant's own fields with a toolchain's key."""
    return labelled_key({**own, "toolchain": toolchain})


def toolchain_key(context: Context) -> str:
    """Return one key over all that variants of a build share."""
    return labelled_key(_shared_fields(context))


def request_fields(variant: Variant, context: Context) -> dict[str, str]:
    """Return the labelled fields that a request key is made of, as text.

    Raises:
        ToolError: a declared data file cannot be read.
    """
    data = data_digests(variant, context.digests)
    return own_fields(variant, data) | _shared_fields(context)


def own_fields(variant: Variant, data: Mapping[str, str]) -> dict[str, str]:
    """Return the labelled fields of a variant, with the digests of its data files."""
    return {
        "manifest": str(MANIFEST_SCHEMA),
        "args": canonical_text(plain_args(variant.args)),
        "entry": _shared_text(variant.entry),
        "files": _shared_text(tuple(sorted(variant.files))),
        "static": canonical_text(variant.static),
        "target": _figures(variant.target),
        "target name": variant.target.name,
        **({"mesh": canonical_text(variant.mesh)} if variant.mesh else {}),
        **{f"data {name}": value for name, value in data.items()},
        **(declared_fields(variant.env) if variant.env else {}),
    }


@lru_cache(maxsize=256)
def _shared_text(value: str | tuple[str, ...]) -> str:
    """Return a value as JSON; the variants of a kernel have it in common."""
    return canonical_text(value)


@lru_cache(maxsize=256)
def _figures(target: Target) -> str:
    return canonical_text(target.figures())


def _shared_fields(context: Context) -> dict[str, str]:
    return {
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


def changed_source(
    manifest: Mapping[str, Any],
    base_dir: str,
    digests: FileDigests,
    folders: Sequence[str] | None = None,
    unchecked: set[str] | None = None,
) -> str | None:
    """Return which source of a manifest is no longer what it was, None if all are."""
    return next(changed_sources(manifest, base_dir, digests, folders, unchecked), None)


def changed_sources(
    manifest: Mapping[str, Any],
    base_dir: str,
    digests: FileDigests,
    folders: Sequence[str] | None = None,
    unchecked: set[str] | None = None,
) -> Iterator[str]:
    """Yield a sentence for each source of a manifest that is no longer what it was.

    Modules are looked for in `folders` first, in `base_dir` by default. Installed packages that are
    missing are added to `unchecked`, where that is given, and are no change then.
    """
    try:
        yield from _changed_sources(manifest, base_dir, digests, folders, unchecked)
    except (OSError, ValueError) as error:  # a stranger's name, which no file or package can have
        yield f"what its manifest names cannot be looked at: {error}"


def _changed_sources(
    manifest: Mapping[str, Any],
    base_dir: str,
    digests: FileDigests,
    folders: Sequence[str] | None,
    unchecked: set[str] | None,
) -> Iterator[str]:
    for label, wanted in sorted(manifest.get("files", {}).items()):
        path = locate(label, base_dir, folders)
        now = None if path is None else _digest(path, digests)
        if now != wanted:
            name = _source_name(label, path, base_dir)
            yield f"{name} {'is gone' if now is None else 'has changed'}"
    places = folders or (base_dir,)
    before = dict(manifest.get("packages", {}))
    now_held = {name: package_digest(name, digests.digest, places) for name in before}
    if unchecked is not None:
        missing = {name for name, held in now_held.items() if held is None}
        unchecked |= missing
        now_held |= {name: before[name] for name in missing}
    if now_held != before:
        yield from _changed_packages(manifest, now_held)
    yield from _changed_surroundings(manifest, base_dir, digests, places, unchecked)


def _changed_packages(manifest: Mapping[str, Any], now: Mapping[str, str | None]) -> Iterator[str]:
    """Yield which packages are no longer what they were, with both versions."""
    from pallasc.compiler.toolchain.components import package_components
    from pallasc.specs.lock import differences

    versions = {name: version_of(name) for name, held in now.items() if held is not None}
    before = package_components(manifest.get("packages", {}), manifest.get("package_versions"))
    yield from differences(before, package_components(now, versions))


def _changed_surroundings(
    manifest: Mapping[str, Any],
    base_dir: str,
    digests: FileDigests,
    places: Sequence[str],
    unchecked: set[str] | None,
) -> Iterator[str]:
    """Yield a sentence for each thing beside modules that is no longer what it was."""
    for label, wanted in sorted(manifest.get("opened", {}).items()):
        now = digest_of(label, path_of(label, base_dir), digests.digest)
        if unchecked is not None and now is None and wanted is not None and package_in(label):
            unchecked.add(package_in(label))
        elif now != wanted:
            yield change_of(label)
    for name in manifest.get("absent", ()):
        if locate_module(name, places) is not None:
            yield f"{name}, which was missing, can be imported now"
    if manifest.get("hidden") not in (None, hidden(places)):
        yield "other modules of Python are hidden by files of the same names"


def _source_name(label: str, path: Path | None, base_dir: str) -> str:
    """Return a source as people know it: `helper (lib/helper.py)`, `kernel.py`."""
    kind, _, name = label.partition(":")
    if path is None or kind == "file":
        return name
    below = path.is_relative_to(base_dir)
    return f"{name} ({path.relative_to(base_dir) if below else path})"


def _digest(path: Path, digests: FileDigests) -> str | None:
    try:
        return digests.digest(path)
    except PallascError:
        return None


def make_manifest(
    action_key: str, read: Sources, digests: FileDigests, **more: Any
) -> dict[str, Any]:
    """Return the manifest of a compilation that read these sources, with `more` fields."""
    sources: dict[str, Any] = {
        "files": {label: digests.digest(path) for label, path in sorted(read.files.items())},
        "packages": {
            name: package_digest(name, digests.digest, read.folders)
            for name in sorted(read.packages)
        },
        "opened": {
            label: digest_of(label, path, digests.digest)
            for label, path in sorted(read.opened.items())
        },
        "missed": dict(sorted(read.missed.items())),
        "absent": sorted(read.absent),
        "hidden": read.hidden,
    }
    versions = {name: version_of(name) for name in sorted(read.packages)}
    return {
        "package_versions": {name: version for name, version in versions.items() if version},
        **more,
        **sources,
        "schema": MANIFEST_SCHEMA,
        "action": action_key,
        "read": digest(canonical_json(sources)),
    }


def short_fields(fields: Mapping[str, str]) -> dict[str, str]:
    """Return labelled fields with the digest in place of every long value."""
    return {
        label: value if len(value) <= _LONGEST_FIELD else f"sha256:{digest(value.encode())}"
        for label, value in fields.items()
    }


def fields_text(fields: Mapping[str, str]) -> str:
    """Return labelled fields as a manifest holds them."""
    return canonical_text(short_fields(fields))


def fields_in(manifest: Mapping[str, Any], part: str) -> dict[str, str]:
    """Return the labelled fields that a manifest has in `request` or `fields`; none if damaged."""
    try:
        fields = json.loads(manifest.get(part, "{}"))
    except (TypeError, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}


def named_entries(variant: Variant) -> list[Entry]:
    """Return the entry points that a compilation imports: its own, of `$call` and of `$ref`."""
    return [parse_entry(entry) for entry in names_of_entries(variant)]


def names_of_entries(variant: Variant) -> list[str]:
    """Return the entry points that a compilation imports, as the spec writes them."""
    args = variant.args if isinstance(variant.args, list) else variant.args.values()
    values = (*variant.static.values(), *args)
    nested = [v for v in values if not isinstance(v, _PLAIN)]
    return [variant.entry, *_named(nested)] if nested else [variant.entry]


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
