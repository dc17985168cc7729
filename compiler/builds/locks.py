"""Lock files: builds with `--frozen` and `--locked`, as in cargo and uv, and updates of a lock.

* `--locked`: misses are compiled, and all results must match the lock. Exit code 3 if a variant is
  not in the lock, or has another action key or artifact. A rewritten spec with the same result
  matches. Without a lock file the build fails.
* `--frozen`: nothing is compiled. Exit code 3 for each variant that is not available unchanged.
  Every variant must be a hit by its manifest. With a lock file, it must also be in the lock, with
  the same action key and artifact.
* both: as `--frozen`, and there must be a lock file.

A changed source fails `--frozen` even if it lowers to the same module: only lowering would show it.

A lock is for one toolchain, every part of which (JAX, its plugin, ptxas, Python, pallasc) is in
every action key. With another toolchain the build fails before any look-up and says why. Packages
that only tracing uses, such as numpy, are in no action key: after an upgrade of such a package,
`--locked` lowers variants again and compares them; `--frozen` cannot do that, and fails. Keep one
lock file per toolchain.

Entries of other variants are ignored; `pallasc lock SPECS` finds those that no spec declares.

The lock file is searched for in the current folder, as a build may take specs from several folders.
It contains no paths.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from msgspec import Struct, structs

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import DEFAULTS, Options
from pallasc.compiler.builds.report import OnEvent, Report, VariantResult
from pallasc.compiler.inputs.lookup import Lookup, LookupResult, Request
from pallasc.compiler.toolchain.identity import TRACING_PACKAGES
from pallasc.errors import NotCachedError, SpecError
from pallasc.specs.artifacts.resources import resources_of
from pallasc.specs.canonical import digest
from pallasc.specs.loading import lock as lock_files
from pallasc.specs.loading.lock import LOCK_FILE, Change, Entry, Lock, differences, update_command
from pallasc.specs.spec import Budget, Variant

_SAME_RESULT = "its spec has changed, with the same result"
_NOT_DETERMINISTIC = "the same action key gave another artifact"
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
        lock: the lock; None without a lock, where every variant must be in the store.
    """

    file: str
    lock: Lock | None


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
    lock = lock_files.read_lock(place)
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
        NotCachedError: the lock is for another toolchain; the message names the differences.
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
        if lock_files.differing(then, now):
            raise NotCachedError(
                f"{self._file} is for another toolchain: {'; '.join(differences(then, now))}.",
                hint=f"Install what it was made with, or run: {update_command(self._file)}",
            )

    def find(self, variant: Variant, request: Request) -> LookupResult:
        """Look a variant up.

        Args:
            variant: the variant.
            request: its request, from `Requests.of`.

        Raises:
            NotCachedError: the variant is not in the lock.
        """
        entry = self._lock.variants.get(variant.id)
        if entry is None:
            reason = f"is not in {self._file}"
            raise NotCachedError(
                f"{variant.id} {reason}.", hint=self._hint("Add it"), reason=reason
            )
        found = self.lookup.find(request)
        if found.artifact is not None:
            return found
        if not found.is_new:
            self._reasons[variant.id] = found.reason
        if self._frozen and not found.untrusted and request.key != entry.request:
            return LookupResult(why=_SPEC_CHANGED)
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
        name = lock_files.table_key(variant.name, variant.target.name)
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
        request = self.lookup.requests.of(variant)
        if request.key != entry.request:
            return _SPEC_CHANGED
        same = result.artifact is not None and result.artifact.digest == entry.artifact
        return OTHER_ACTION_KEY if same else _SOURCES_CHANGED


def tables_of(variants: Iterable[Variant]) -> dict[str, str]:
    """Return the digest of the tuning of kernels for their targets, by `table_key`."""
    from pallasc.specs.tuning import tuned_digest_text

    digests: dict[str, str] = {}
    for variant in variants:
        tuning, model = variant.tuning, variant.target.name
        name = lock_files.table_key(variant.name, model)
        if tuning is not None and name not in digests:
            rows = [row for row in tuning.table if row.gpu == model]
            digests[name] = digest(tuned_digest_text(tuning, rows).encode())
    return digests


# ---- comparing with a lock, and updating it


class LockReport(Struct, frozen=True):
    """The differences of variants from a lock.

    Attributes:
        lock: the new lock of an update; otherwise, and if a variant failed, the old one.
        report: report of the build.
        changes: changed entries.
        tables: kernels and targets whose table or `tune` differs.
        toolchain: differences between the toolchains, in words.
    """

    lock: Lock
    report: Report
    changes: tuple[Change, ...] = ()
    tables: tuple[str, ...] = ()
    toolchain: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """True if every variant was built, so that the lock may be written."""
        return self.report.exit_code == 0 and not self.report.having("skipped")


def check_lock(
    variants: Sequence[Variant],
    file: Path,
    lock: Lock,
    *,
    whole: bool,
    store: Store,
    ptxas: Path | None = None,
) -> LockReport:
    """Compare variants with a lock without compiling anything.

    Args:
        variants: the variants.
        file: path of the lock file, for messages.
        lock: the lock.
        whole: whether entries of other variants count as dropped.
        store: the store in which variants are looked up.
        ptxas: as for `build`.

    Raises:
        NotCachedError: the lock is for another toolchain.
        CorruptError: signatures are required, and no trusted key signed an entry.
        ToolError: the toolchain is incomplete, a data file cannot be read, or no compiler is
            installed and the store does not remember one.
    """
    plain = [structs.replace(variant, budget=Budget()) for variant in variants]
    options = Options(frozen=True, locked=Locked(str(file), lock), ptxas=ptxas)
    report = build(plain, store=store, options=options)
    checked = [_check(result, lock.variants.get(result.variant.id)) for result in report.results]
    changes = [change for change in checked if change is not None]
    if whole:
        gone = lock.variants.keys() - {variant.id for variant in variants}
        changes += [Change("dropped", name, lock.variants[name]) for name in gone]
    changes.sort(key=lambda change: change.variant)
    return LockReport(lock, report, tuple(changes), _tables(variants, lock, whole=whole))


def _tables(variants: Sequence[Variant], lock: Lock, *, whole: bool) -> tuple[str, ...]:
    """Return the tuned kernels that differ from a lock, by kernel and target."""
    names = lock_files.tuned_in(variant.id for variant in variants) | (
        {*lock.tables} if whole else set()
    )
    return tuple(lock_files.changed_tables(lock.tables, tables_of(variants), names))


def _check(result: VariantResult, entry: Entry | None) -> Change | None:
    name, error = result.variant.id, result.error
    if entry is None:
        return Change("added", name)
    if error is not None and not isinstance(error, NotCachedError):
        raise error
    after = _entry(result)
    if after is None:
        return Change("unknown", name, entry, reason=error.reason if error else result.reason)
    if after == entry:
        return None
    return Change("changed", name, entry, after, error.reason if error else _SAME_RESULT)


def _entry(result: VariantResult) -> Entry | None:
    if result.action_key is None or result.artifact is None or result.request is None:
        return None
    return Entry(result.action_key, result.artifact.digest, result.request.key)


def update_lock(
    variants: Sequence[Variant],
    lock: Lock | None,
    *,
    file: Path,
    whole: bool,
    store: Store,
    options: Options = DEFAULTS,
    on_event: OnEvent = lambda event: None,
) -> LockReport:
    """Build variants, and return the lock with their entries; nothing is written.

    Args:
        variants: variants whose entries are updated.
        lock: the old lock, None if there is none.
        file: path of the lock file, for messages.
        whole: whether entries of other variants are removed.
        store: as for `build`.
        options: as for `build`.
        on_event: as for `build`.

    Raises:
        NotCachedError: entries for another toolchain would be kept.
        ToolError: the toolchain is not complete.
    """
    old = lock or Lock()
    report = build(variants, store=store, options=options, on_event=on_event)
    toolchain = report.context.components() if report.context else {}
    changed_parts = differences(old.toolchain, toolchain) if old.variants else []
    if changed_parts and not whole and not old.variants.keys() <= {v.id for v in variants}:
        raise NotCachedError(
            f"{file} is for another toolchain: {'; '.join(changed_parts)}; the entries that this "
            "update keeps would not match this toolchain.",
            hint=f"Update all of it, without -k and --target: {update_command(file)}",
        )
    entries = {result.variant.id: entry for result in report.results if (entry := _entry(result))}
    if len(entries) < len(variants) or report.exit_code:
        return LockReport(old, report, toolchain=tuple(changed_parts))
    resources = {r.variant.id: resources_of(r.artifact) for r in report.results if r.artifact}
    made = Lock(toolchain, entries, resources, tables_of(variants))
    new = lock_files.merged(old, made, whole=whole)
    changes = lock_files.compare(old.variants, entries, whole=whole)
    reasons = {} if changed_parts else {r.variant.id: r.reason for r in report.results}
    explained = tuple(_with_reason(change, reasons) for change in changes)
    tables = _tables(variants, old, whole=whole)
    return LockReport(new, report, explained, tables, tuple(changed_parts))


def _with_reason(change: Change, reasons: Mapping[str, str]) -> Change:
    if change.before is None or change.after is None:
        return change
    before, after = change.before, change.after
    if before.action != after.action:
        reason = reasons.get(change.variant, "")
        unexplained = change.variant in reasons and before.request == after.request
        return replace(change, reason=reason or (OTHER_ACTION_KEY if unexplained else ""))
    same = before.artifact == after.artifact
    return replace(change, reason=_SAME_RESULT if same else _NOT_DETERMINISTIC)
