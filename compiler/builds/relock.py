"""Compare variants with a lock file, and update it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, structs

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.locked import OTHER_ACTION_KEY, Locked, tables_of
from pallasc.compiler.builds.options import DEFAULTS, Options
from pallasc.compiler.builds.report import OnEvent, Report, VariantResult
from pallasc.errors import NotCachedError
from pallasc.specs.loading.lock import (
    Change,
    Entry,
    Lock,
    differences,
    merged,
    tuned_in,
    update_command,
)
from pallasc.specs.spec import Budget, Variant

_SAME_RESULT = "its spec has changed, with the same result"
_NOT_DETERMINISTIC = "the same action key gave another artifact"


class LockReport(Struct, frozen=True):
    """The differences of variants from a lock.

    Attributes:
        lock: the new lock of an update; otherwise, and if a variant failed, the old one.
        report: report of the build.
        changes: changed entries.
        tables: kernels and targets whose tuning table or field `tune` differs.
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
        NotCachedError: the lock was made with another toolchain.
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
        changes += _dropped(lock, variants)
    return LockReport(lock, report, _sorted(changes), _tables(variants, lock, whole=whole))


def _dropped(lock: Lock, variants: Sequence[Variant]) -> list[Change]:
    gone = lock.variants.keys() - {variant.id for variant in variants}
    return [Change("dropped", name, lock.variants[name]) for name in gone]


def _sorted(changes: Iterable[Change]) -> tuple[Change, ...]:
    return tuple(sorted(changes, key=lambda change: change.variant))


def _tables(variants: Sequence[Variant], lock: Lock, *, whole: bool) -> tuple[str, ...]:
    """Return the tuned kernels that differ from a lock, by kernel and target."""
    names = tuned_in(variant.id for variant in variants) | ({*lock.tables} if whole else set())
    tables = tables_of(variants)
    return tuple(sorted(name for name in names if lock.tables.get(name) != tables.get(name)))


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
    if result.action_key is None or result.artifact is None or not result.request_key:
        return None
    return Entry(result.action_key, result.artifact.digest, result.request_key)


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
        NotCachedError: the new lock would keep entries of another toolchain.
        ToolError: the toolchain is incomplete.
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
    resources = {r.variant.id: r.artifact.resources for r in report.results if r.artifact}
    made = Lock(toolchain, entries, resources, tables_of(variants))
    new = merged(old, made, whole=whole)
    reasons = {} if changed_parts else {r.variant.id: r.reason for r in report.results}
    changes = [
        _changed(name, old.variants.get(name), entry, reasons)
        for name, entry in entries.items()
        if old.variants.get(name) != entry
    ]
    if whole:
        changes += _dropped(old, variants)
    tables = _tables(variants, old, whole=whole) if old.variants else ()
    return LockReport(new, report, _sorted(changes), tables, tuple(changed_parts))


def _changed(name: str, before: Entry | None, after: Entry, reasons: Mapping[str, str]) -> Change:
    if before is None:
        return Change("added", name, None, after)
    if before.action != after.action:
        unexplained = name in reasons and before.request == after.request
        reason = reasons.get(name) or (OTHER_ACTION_KEY if unexplained else "")
    else:
        reason = _SAME_RESULT if before.artifact == after.artifact else _NOT_DETERMINISTIC
    return Change("changed", name, before, after, reason)
