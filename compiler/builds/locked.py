"""Check a build against a lock file or the store: `--frozen` and `--locked`, as in cargo and uv.

* `--locked`: misses are compiled, and all results must match the lock. A variant that is not in the
  lock, or has another action key or artifact, fails with exit code 3. A rewritten spec with the
  same result matches. Without a lock file the build fails.
* `--frozen`: nothing is compiled. Every variant must be a hit by its manifest; otherwise it fails
  with exit code 3. With a lock file, it must also be in the lock, with the same action key and
  artifact.
* both: as `--frozen`, and there must be a lock file.

With `--frozen`, a variant with a changed source fails even if it lowers to the same module, since
nothing is lowered.

A lock is for one toolchain: JAX, its plugin, ptxas, Python, and pallasc are part of every action
key. With another toolchain, the build fails before any look-up, and names the differences. Packages
that only tracing uses, such as numpy, are part of no action key: after an upgrade of such a
package, `--locked` lowers variants again and compares them; `--frozen` cannot do that, and fails.
Keep one lock file per toolchain.

Entries of variants outside the build are ignored; `pallasc lock SPECS` finds entries that no spec
declares.

The lock file is searched for in the current folder, as a build may take specs from several folders.
It contains no paths.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pallasc.compiler.builds.report import VariantResult
from pallasc.compiler.inputs.lookup import Hit, Lookup, Miss
from pallasc.compiler.toolchain.identity import TRACING_PACKAGES
from pallasc.errors import NotCachedError, SpecError
from pallasc.specs.canonical import digest
from pallasc.specs.loading.lock import (
    LOCK_FILE,
    Entry,
    Lock,
    differences,
    differing,
    read_lock,
    table_key,
    update_command,
)
from pallasc.specs.spec import Variant

_REPRODUCE = (
    "Compiling is not deterministic, or the store was modified. See what differs with: "
    "pallasc build SPECS --reproduce N"
)
_SPEC_CHANGED = "its spec, or a data file of it, has changed since it was locked"
_SOURCES_CHANGED = "its sources have changed since it was locked"
OTHER_ACTION_KEY = "its action key differs from the lock's"
"""Reason if neither the spec nor, as far as known, a source has changed."""


@dataclass(frozen=True, slots=True)
class Locked:
    """The constraint of `--locked` or `--frozen` on a build.

    Attributes:
        file: path of the lock file, for messages.
        lock: the lock; None without a lock file: then every variant must be in the store.
    """

    file: str
    lock: Lock | None

    def look_up(
        self, lookup: Lookup, variants: Sequence[Variant], *, frozen: bool
    ) -> LockedLookup | None:
        """Return the look-up that checks the lock, None without a lock.

        Raises:
            NotCachedError: the lock was made with another toolchain.
        """
        if self.lock is None:
            return None
        return LockedLookup(self.file, self.lock, lookup, variants, frozen=frozen)


def load_locked(path: Path | None, *, frozen: bool, locked: bool) -> Locked | None:
    """Return the constraint of a build's options, None if there is none.

    Args:
        path: the lock file; `pallasc.lock` in the current folder by default.
        frozen: whether nothing may be compiled.
        locked: whether all variants must match the lock.

    Raises:
        SpecError: the lock file is damaged, or named without `frozen` and `locked`.
        NotCachedError: the lock file is required and does not exist.
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
    return Locked(str(place), lock)


class LockedLookup:
    """Looks up the variants of a build that has a lock.

    Args:
        file: path of the lock file, for messages.
        lock: the lock.
        lookup: the look-up without a lock.
        variants: the variants of the build.
        frozen: whether nothing may be compiled.

    Raises:
        NotCachedError: the lock was made with another toolchain; the message names the differences.
    """

    def __init__(
        self,
        file: str,
        lock: Lock,
        lookup: Lookup,
        variants: Sequence[Variant],
        *,
        frozen: bool = False,
    ) -> None:
        self._file, self._lock, self._variants, self.lookup = file, lock, variants, lookup
        self._frozen = frozen
        self._reasons: dict[str, str] = {}
        self._require_toolchain()

    def _require_toolchain(self) -> None:
        # Packages that only tracing uses may differ if variants can be lowered again: no action key
        # depends on them, so lowering shows whether they change anything.
        ignored = () if self._frozen else (TRACING_PACKAGES,)
        here = self.lookup.context.components()
        then = {k: part for k, part in self._lock.toolchain.items() if k not in ignored}
        now = {k: part for k, part in here.items() if k not in ignored}
        if differing(then, now):
            raise NotCachedError(
                f"{self._file} is for another toolchain: {'; '.join(differences(then, now))}.",
                hint=f"Install what it was made with, or run: {update_command(self._file)}",
            )

    def find(self, variant: Variant) -> Hit | Miss:
        """Look a variant up.

        Raises:
            NotCachedError: the variant is not in the lock.
            ToolError: as for `Lookup.find`.
        """
        entry = self._lock.variants.get(variant.id)
        if entry is None:
            reason = f"is not in {self._file}"
            raise NotCachedError(
                f"{variant.id} {reason}.", hint=self._hint("Add it"), reason=reason
            )
        found = self.lookup.find(variant)
        if isinstance(found, Hit):
            return found
        if not found.is_new:
            self._reasons[variant.id] = found.reason
        if self._frozen and not found.untrusted and found.key != entry.request:
            return Miss(variant, found.key, found.place, _SPEC_CHANGED)
        return found

    def check(self, result: VariantResult) -> NotCachedError | None:
        """Return the error of a result that differs from the lock, None if it matches."""
        variant, artifact, file = result.variant, result.artifact, self._file
        entry, made = self._lock.variants[variant.id], artifact.digest if artifact else ""
        hint, kind, clause = self._hint(), "", ""
        if result.action_key != entry.action:
            clause = f"not as locked: {self._why(result, entry)}"
        elif made == entry.artifact:
            clause, kind = self._other_table(variant), "not as tuned"
        else:
            hint, kind = _REPRODUCE, "not deterministic"
            clause = (
                f"not the locked artifact: action key {entry.action} gave {made}, and {file} has "
                f"{entry.artifact}"
            )
        if not clause:
            return None
        return NotCachedError(f"{variant.id} is {clause}.", hint=hint, reason=clause, kind=kind)

    def _other_table(self, variant: Variant) -> str:
        """Describe how the tuning of a kernel differs from the lock; "" if it does not."""
        name = table_key(variant.name, variant.target.name)
        locked = self._lock.tables.get(name)
        if variant.tuning is None and locked is None:
            return ""
        now = self._tables.get(name)
        # If only some variants of a kernel are tuned, only those must match.
        if now == locked or (variant.tuning is None and now is not None):
            return ""
        return f"not tuned as in {self._file}: its table or tune field differs"

    @cached_property
    def _tables(self) -> dict[str, str]:
        return tables_of(self._variants)

    def _hint(self, purpose: str = "If that is intended") -> str:
        return f"{purpose}: {update_command(self._file)}"

    def _why(self, result: VariantResult, entry: Entry) -> str:
        """Return why a variant's action key differs from its entry, as far as known."""
        variant = result.variant
        if variant.id in self._reasons:
            return f"{_SOURCES_CHANGED} ({self._reasons[variant.id]})"
        if self.lookup.key(variant) != entry.request:
            return _SPEC_CHANGED
        if changes := self.lookup.changes_since(variant, entry.action):
            return f"{_SOURCES_CHANGED} ({changes[0].sentence})"
        same = result.artifact is not None and result.artifact.digest == entry.artifact
        return OTHER_ACTION_KEY if same else _SOURCES_CHANGED


def tables_of(variants: Iterable[Variant]) -> dict[str, str]:
    """Return a digest of each kernel's tuning for each of its targets, by `table_key`."""
    from pallasc.specs.tuning import tuned_digest_text

    digests: dict[str, str] = {}
    for variant in variants:
        tuning, model = variant.tuning, variant.target.name
        name = table_key(variant.name, model)
        if tuning is not None and name not in digests:
            rows = [row for row in tuning.table if row.gpu == model]
            digests[name] = digest(tuned_digest_text(tuning, rows).encode())
    return digests
