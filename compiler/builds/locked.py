"""Hold a build to a lock file, or to what the store has: `--frozen` and `--locked`.

What each promises, as cargo and uv use these words:

* `--locked`: what is missing is compiled, and must come out as the lock says. Exit code 3 where a
  variant is not in the lock, or has another action key or another artifact. A spec that is written
  in another way and gives the same is no difference. Without a lock file the build fails, since
  all of it would have to be added.
* `--frozen`: nothing is compiled. Exit code 3 for each variant that is not to be had as it is. With
  a lock file, a variant must be in it; its sources, where a manifest in the store knows them, must
  be what they were; and the store must have its record, with the lock's digest and all blobs. A
  store that has the record but no manifest cannot tell whether sources have changed since: where
  the spec has not, by the lock's request key, its action key is taken at its word then, and a note
  says for how many variants. Without a lock file, every variant must be a hit by its manifest.
* both: as `--frozen`, and there must be a lock file.

A source that changed fails `--frozen` even where it would be lowered to the same module, since
only a compilation could tell.

A lock is for one toolchain. Every part of it (JAX, its plugin, ptxas, Python, pallasc itself) is in
every action key, so with another one nothing can be as locked: both end at once, before anything is
looked up or compiled, and say what differs. To build with several, keep a lock file for each.

Entries of variants that a build does not ask for do no harm: `pallasc lock SPECS` finds those that
no spec declares any more.

The lock is looked for in the current folder, not beside the specs: a build may take several of them
from several folders, and ids name none. It holds no paths, so it can lie anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pallasc.cache.manifests import Manifest
from pallasc.cache.signing import NOT_SIGNED
from pallasc.cache.store import Store
from pallasc.compiler.builds.report import NOT_COMPILED, VariantResult
from pallasc.compiler.inputs.lookup import Lookup, LookupResult, artifact_of_action, untrusted_entry
from pallasc.compiler.inputs.manifest import fields_in
from pallasc.compiler.inputs.request import Request
from pallasc.compiler.toolchain.components import package_components
from pallasc.compiler.toolchain.context import Context
from pallasc.compiler.workers.diagnostics import stored_for_action
from pallasc.errors import NotCachedError, SpecError
from pallasc.specs.loading.lock_file import read_lock
from pallasc.specs.lock import (
    LOCK_FILE,
    Component,
    Entry,
    Lock,
    differences,
    differing,
    update_command,
)
from pallasc.specs.spec import Variant

if TYPE_CHECKING:
    from pallasc.compiler.inputs.remembered_toolchain import RememberedToolchain
    from pallasc.compiler.toolchain.setup import Setup

_REPRODUCE = "See what differs with: pallasc build SPECS --reproduce N"
_STORED = (
    "Somebody changed the store, or compiling it is not deterministic. Empty the store with "
    "pallasc cache clear, or name another with --store or PALLASC_CACHE_DIR, and build again."
)
_SPEC_CHANGED = "its spec, or a data file of it, has changed since it was locked"
_SOURCES_CHANGED = "its sources have changed since it was locked"
OTHER_ACTION_KEY = "its action key differs from the lock's"
"""Said where neither the spec nor, as far as is known, a source has changed."""


@dataclass(frozen=True, slots=True)
class Locked:
    """What a build is held to.

    Attributes:
        file: the lock file, for messages.
        lock: what it says; None where there is none, then only what the store has counts.
        frozen: whether nothing may be compiled.
    """

    file: str
    lock: Lock | None
    frozen: bool


def load_locked(path: Path | None, *, frozen: bool, locked: bool) -> Locked | None:
    """Return what a build is held to by its options, None where it is held to nothing.

    Args:
        path: the lock file; `pallasc.lock` in the current folder by default.
        frozen: nothing may be compiled.
        locked: everything must be as the lock says.

    Raises:
        SpecError: a lock file was named that nothing would use, or it is damaged.
        NotCachedError: `locked` without a lock file, or the one that was named is not there.
    """
    if not (frozen or locked):
        if path is not None:
            raise SpecError("--lock needs --frozen or --locked.")
        return None
    place = path or LOCK_FILE
    lock = read_lock(place)
    if lock is None and (locked or path is not None):
        here = "" if path else " here"
        raise NotCachedError(
            f"there is no {place}{here}.", hint=f"Make it with: {update_command(place)}"
        )
    return Locked(str(place), lock, frozen)


def require_toolchain(locked: Locked, setup: Setup | RememberedToolchain, context: Context) -> None:
    """Check that the lock was made with this toolchain.

    Raises:
        NotCachedError: it was made with another one; the message says what differs.
    """
    if locked.lock is None or not differing(locked.lock.toolchain, context.components({})):
        return
    clauses = differences(locked.lock.toolchain, setup.components(context))
    raise NotCachedError(
        f"{locked.file} is for another toolchain: {'; '.join(clauses)}.",
        hint=f"Install what it was made with, or run: {update_command(locked.file)}",
    )


class LockedLookup:
    """Looks up the variants of one build that is held to something.

    Args:
        locked: to what.
        lookup: finds what the store has.
        store: the store.
    """

    def __init__(self, locked: Locked, lookup: Lookup, store: Store) -> None:
        self._file = locked.file
        self._lock = locked.lock
        self._frozen = locked.frozen
        self._lookup = lookup
        self.requests = lookup.requests
        self._store = store
        self._reasons: dict[str, str] = {}
        self._manifests: dict[str, list[Manifest]] | None = None
        self.unchecked = 0
        """Variants that were taken by the lock's action key alone."""

    def find(self, variant: Variant, request: Request) -> LookupResult:
        """Look a variant up; where the build is frozen and has a lock, a miss is an error.

        Args:
            variant: the variant.
            request: what `Requests.of` gave for it.

        Raises:
            NotCachedError: the lock lacks it, or it would have to be compiled.
            CorruptError: signatures are required, and nobody who is trusted signed it.
        """
        if self._lock is None:
            return self._lookup.find(request)
        entry = self._lock.variants.get(variant.id)
        if entry is None:
            raise NotCachedError(f"{variant.id} is {self._absent}.", hint=self._hint("Add it"))
        found = self._lookup.find(request)
        if found.artifact is not None:
            return found
        if self._has_manifest(request):
            self._reasons[variant.id] = found.reason
        if not self._frozen:
            return found
        if found.untrusted or (self._store.trust.required and not self._has_manifest(request)):
            # The lock names it, but says nothing of who compiled it.
            raise untrusted_entry(variant, found.reason if found.untrusted else NOT_SIGNED)
        return self._by_action_key(variant, request, entry)

    def check(self, result: VariantResult) -> NotCachedError | None:
        """Return the error of a result that is not what the lock says, None if it is."""
        clause = self.difference(result)
        if clause is None:
            return None
        entry = self._lock.variants.get(result.variant.id) if self._lock else None
        again = entry is not None and result.action_key == entry.action
        same_request = _STORED if result.status == "hit" else _REPRODUCE
        hint = same_request if again else self._hint()
        return NotCachedError(f"{result.variant.id} is {clause}.", hint=hint)

    def difference(self, result: VariantResult) -> str | None:
        """Say how a result is not what the lock says, None if it is."""
        if self._lock is None or result.artifact is None:
            return None
        entry = self._lock.variants.get(result.variant.id)
        if entry is None:
            return self._absent
        if result.action_key != entry.action:
            return f"not as locked: {self._why(result, entry)}"
        found = result.artifact.digest
        if found == entry.artifact:
            return None
        if result.status == "hit":
            return (
                f"not the locked artifact: the store has {found} under action key {entry.action}, "
                f"and {self._file} has {entry.artifact}"
            )
        return (
            f"not deterministic: action key {entry.action} has given artifact {found}, "
            f"and {self._file} has {entry.artifact}"
        )

    def notes(self) -> list[str]:
        """Return what the user should know of how variants were found."""
        if self._frozen and self._lock is None:
            return [f"there is no {self._file} here: variants were only looked up in the store"]
        if not self.unchecked:
            return []
        return [
            f"this store does not know the sources of {self.unchecked} of the variants: they were "
            f"taken as {self._file} says, and may have changed since"
        ]

    @property
    def _absent(self) -> str:
        return f"not in {self._file}"

    def _hint(self, purpose: str = "If that is intended") -> str:
        return f"{purpose}: {update_command(self._file)}"

    def _has_manifest(self, request: Request) -> bool:
        return any(self._store.get_manifest(key) for key in request.keys)

    def _by_action_key(self, variant: Variant, request: Request, entry: Entry) -> LookupResult:
        """Take what the lock names, where nothing tells that it is out of date."""
        reason = self._reasons.get(variant.id, "")
        if not reason and request.key != entry.request:
            reason = _SPEC_CHANGED
        if reason:
            raise NotCachedError(
                f"{variant.id} would have to be compiled: {reason}.",
                hint="Build it without --frozen.",
            )
        artifact = artifact_of_action(self._store, entry.action)
        if artifact is None:
            raise NotCachedError(
                f"{variant.id} is not in the store: {self._store.root} has no whole record under "
                f"action key {entry.action}.",
                hint="Build it without --frozen, or restore the store that the lock was made with.",
            )
        self.unchecked += 1
        said = [diagnostic.to_json() for diagnostic in stored_for_action(self._store, entry.action)]
        return LookupResult(entry.action, artifact, manifest=Manifest(diagnostics=said))

    def _why(self, result: VariantResult, entry: Entry) -> str:
        """Say why a variant has another action key than its entry, as far as the store knows."""
        variant = result.variant
        if variant.id in self._reasons:
            return f"{_SOURCES_CHANGED} ({self._reasons[variant.id]})"
        request = self.requests.of(variant)
        now = next(filter(None, map(self._store.get_manifest, request.keys)), None)
        for before in self._manifests_of(entry.action):
            same = before.variant == variant.id
            changed = _changes(before, now) if same and now is not None else []
            if changed:
                return ", ".join(changed)
        if request.key != entry.request:
            return _SPEC_CHANGED
        return OTHER_ACTION_KEY if self._is_unexplained(result, entry) else _SOURCES_CHANGED

    def _is_unexplained(self, result: VariantResult, entry: Entry) -> bool:
        """Tell whether nothing says that sources have changed: the lock itself may have."""
        if result.artifact is not None and result.artifact.digest == entry.artifact:
            return True
        known = result.status in NOT_COMPILED
        return known and artifact_of_action(self._store, entry.action) is None

    def _manifests_of(self, action: str) -> list[Manifest]:
        """Return the manifests that lead to an action key; reads all of them, once."""
        if self._manifests is None:
            from pallasc.compiler.inputs.why import all_manifests

            self._manifests = {}
            for manifest in all_manifests(self._store):
                self._manifests.setdefault(manifest.action, []).append(manifest)
        return self._manifests.get(action, [])


def _changes(before: Manifest, now: Manifest) -> list[str]:
    """Say what differs between two manifests of a variant."""
    request = _differing(fields_in(before.request), fields_in(now.request))
    files = _differing(before.files, now.files)
    opened = _differing(before.opened, now.opened)
    changed = [f"its spec differs in {label}" for label in request]
    changed += [f"{label.partition(':')[2]} has changed" for label in (*files, *opened)]
    changed += differences(_packages(before), _packages(now))
    fields = _differing(fields_in(before.fields), fields_in(now.fields))
    return changed or [f"its key differs in {label}" for label in fields]


def _packages(manifest: Manifest) -> dict[str, Component]:
    return package_components(manifest.packages, manifest.package_versions)


def _differing(first: Mapping[str, str | None], second: Mapping[str, str | None]) -> list[str]:
    """Return the labels whose values differ."""
    return sorted(x for x in {*first, *second} if first.get(x) != second.get(x))
