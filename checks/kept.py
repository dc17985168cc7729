"""Results that the store keeps: what was checked and has not changed is not checked again.

A result is a manifest of the store, with these fields:

* `check`: the `LevelResult` as JSON text, its files relative to the spec's folder
* `action`: the action key of what was checked, so that it goes when that artifact goes
* `files`, `packages`, `package_versions`, `opened`, `absent`, `hidden`, `missed`, `read`: what the
  user's code read while it was checked, as in the manifest of a compilation

It lies under a key over the level and the sources of pallasc that make it up, action key and digest
of the artifact, and what else the level depends on: options, request key, reference, tolerance.
As every manifest, it is signed by who makes it, believed as the store's manifests are, verified
and counted with them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pallasc.cache.manifests import Manifest, check_manifest, manifest_from_json
from pallasc.compiler.inputs.changes import CurrentSources
from pallasc.compiler.inputs.request import Requests, folder_key
from pallasc.compiler.toolchain.own_modules import own_digest
from pallasc.errors import CorruptError
from pallasc.specs.canonical import canonical_text, labelled_key

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.checks.findings import LevelResult
    from pallasc.checks.levels import Level
    from pallasc.checks.subject import Options
    from pallasc.compiler.toolchain.context import Context
    from pallasc.compiler.toolchain.modules import Place
    from pallasc.specs.spec import Variant

SCHEMA = 1


class Kept:
    """Results of checks in a store.

    Args:
        store: the store.
        context: the toolchain's identity and the digests of files.
    """

    def __init__(self, store: Store, context: Context) -> None:
        self._store = store
        self._context = context
        self._requests = Requests(context)
        self._own: dict[str, str] = {}
        self._changed: dict[tuple[str, Place], bool] = {}

    def key(
        self,
        level: Level,
        options: Options,
        *,
        action: str,
        artifact: str,
        variant: Variant | None,
    ) -> str:
        """Return the key of a result.

        Args:
            level: the level.
            options: how it runs.
            action: the action key of what is checked.
            artifact: the digest of that artifact.
            variant: what it was compiled from, None without source.

        Raises:
            ToolError: a data file that the spec declares cannot be read.
        """
        fields = {
            "check": str(SCHEMA),
            "level": level.name,
            "pallasc": self._own_digest(level),
            "action": action,
            "artifact": artifact,
            **(self._execution(level, options) if level.executes else {}),
            **(self._source(variant) if level.needs_source and variant is not None else {}),
        }
        return labelled_key(fields)

    def find(self, key: str, variant: Variant | None) -> LevelResult | None:
        """Return a result that still holds, or None."""
        names = (key,) if variant is None else (folder_key(key, variant.base_dir), key)
        for name in names:
            manifest = self._store.get_manifest(name)
            if manifest is None or not manifest.check or self._has_changed(manifest, variant):
                continue
            result = _read(manifest.check, variant)
            if result is not None:
                return result
        return None

    def put(
        self,
        key: str,
        action: str,
        result: LevelResult,
        sources: Mapping[str, Any],
        variant: Variant | None,
    ) -> None:
        """Keep a result.

        Args:
            key: its key.
            action: the action key of what was checked.
            result: the result.
            sources: what the user's code read, from the worker.
            variant: what it was compiled from, None without source.

        Raises:
            CorruptError: a worker sent sources that are no part of a manifest.
        """
        from pallasc.checks.findings import moved_from, to_json

        check_manifest(key, sources)
        kept = result if variant is None else moved_from(result, variant.base_dir)
        manifest = replace(
            manifest_from_json(sources), action=action, check=canonical_text(to_json(kept))
        )
        self._store.put_manifest(key, manifest)
        if variant is not None:
            self._store.put_manifest(folder_key(key, variant.base_dir), manifest)

    def _own_digest(self, level: Level) -> str:
        if level.name not in self._own:
            self._own[level.name] = own_digest(self._context.digests.digest, level.own_parts)
        return self._own[level.name]

    def _execution(self, level: Level, options: Options) -> dict[str, str]:
        schedules = {"schedules": str(options.schedules)} if level.takes_schedules else {}
        inputs = self._context.digests.digest(options.inputs) if options.inputs else ""
        return {"seed": str(options.seed), "inputs": inputs, **schedules}

    def _source(self, variant: Variant) -> dict[str, str]:
        tolerance = variant.tolerance
        limits = None if tolerance is None else [tolerance.rtol, tolerance.atol]
        return {
            "request": self._requests.of(variant).key,
            "reference": variant.reference or "",
            "tolerance": canonical_text(limits),
            "place": f"{variant.location.line}:{variant.location.column}",
        }

    def _has_changed(self, manifest: Manifest, variant: Variant | None) -> bool:
        """Tell whether something that the user's code read has changed."""
        if variant is None:
            return False
        place = self._requests.of(variant).place
        known = (manifest.read, place)
        if known not in self._changed:
            current = CurrentSources(place, self._context.digests, self._context.unchecked)
            self._changed[known] = current.first_change(manifest) is not None
        return self._changed[known]


def _read(text: str, variant: Variant | None) -> LevelResult | None:
    """Return a kept result, None where it is not one."""
    from pallasc.checks.findings import moved_to, result_from_json

    try:
        data = json.loads(text)
        if not isinstance(data, dict):
            raise CorruptError("not an object")
        result = result_from_json(data)
    except (ValueError, RecursionError, CorruptError):
        return None
    return result if variant is None else moved_to(result, variant.base_dir)
