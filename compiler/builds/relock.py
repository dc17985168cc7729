"""Compare variants with a lock file, and update it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.locked import OTHER_ACTION_KEY, LockedLookup, tables_of
from pallasc.compiler.builds.options import DEFAULTS, Options
from pallasc.compiler.builds.report import OnEvent, Report, VariantResult
from pallasc.compiler.inputs.lookup import Lookup, Request, Requests
from pallasc.compiler.inputs.manifest import installed_or_remembered
from pallasc.compiler.toolchain.setup import prepare
from pallasc.errors import NotCachedError
from pallasc.specs.artifacts.resources import resources_of
from pallasc.specs.loading.lock import (
    Change,
    Entry,
    Lock,
    changed_tables,
    compare,
    differences,
    merged,
    tuned_in,
    update_command,
)
from pallasc.specs.spec import Variant

_SAME_RESULT = "its spec has changed, with the same result"
_NOT_DETERMINISTIC = "the same action key gave another artifact"


@dataclass(frozen=True, slots=True)
class LockCheck:
    """The differences of variants from a lock, and notes on the comparison.

    `tables` names the kernels and targets whose table or `tune` differs.
    """

    changes: tuple[Change, ...]
    notes: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LockUpdate:
    """The result of an update.

    Attributes:
        lock: the new lock; the old one if a variant failed.
        changes: changed entries.
        toolchain: differences between the toolchains, in words.
        report: report of the build.
        tables: kernels and targets whose table or `tune` differs.
    """

    lock: Lock
    changes: tuple[Change, ...]
    toolchain: tuple[str, ...]
    report: Report
    tables: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """True if every variant was built, so that the lock may be written."""
        return self.report.exit_code == 0 and not self.report.skipped


def check_lock(
    variants: Sequence[Variant],
    file: Path,
    lock: Lock,
    *,
    whole: bool,
    store: Store,
    ptxas: Path | None = None,
) -> LockCheck:
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
        ToolError: the toolchain is incomplete, a data file cannot be read; or no compiler is
            installed, and the store does not remember one.
    """
    entries = lock.variants
    with installed_or_remembered(store, ptxas=ptxas, lock=lock) as setup:
        context = setup.context(store)
        lookup = Lookup(context, store)
        frozen = LockedLookup(str(file), lock, lookup, variants, frozen_by="--frozen")
        checked = [_check(v, entries.get(v.id), lookup.requests.of(v), frozen) for v in variants]
        notes = (*frozen.notes(), *context.notes())
        context.digests.save()
    changes = [change for change in checked if change is not None]
    if whole:
        gone = entries.keys() - {variant.id for variant in variants}
        changes += [Change("dropped", name, entries[name]) for name in gone]
    changes.sort(key=lambda change: change.variant)
    return LockCheck(tuple(changes), notes, _tables(variants, lock, whole=whole))


def _tables(variants: Sequence[Variant], lock: Lock, *, whole: bool) -> tuple[str, ...]:
    """Return the tuned kernels that differ from a lock, by kernel and target."""
    names = tuned_in(variant.id for variant in variants) | ({*lock.tables} if whole else set())
    return tuple(changed_tables(lock.tables, tables_of(variants), names))


def _check(
    variant: Variant, entry: Entry | None, request: Request, lookup: LockedLookup
) -> Change | None:
    if entry is None:
        return Change("added", variant.id)
    try:
        cached = lookup.find(variant, request)
    except NotCachedError as missing:
        return Change("unknown", variant.id, entry, reason=missing.reason)
    if cached.artifact is None or cached.action_key is None:
        return Change("unknown", variant.id, entry, reason=cached.reason)
    after = Entry(cached.action_key, cached.artifact.digest, request.key)
    if after == entry:
        return None
    result = VariantResult(
        variant, "hit", 0.0, cached.action_key, cached.artifact, manifest_key=cached.manifest_key
    )
    reason = lookup.difference(result) or _SAME_RESULT
    return Change("changed", variant.id, entry, after, reason)


def update_lock(
    variants: Sequence[Variant],
    lock: Lock | None,
    *,
    file: Path,
    whole: bool,
    store: Store,
    options: Options = DEFAULTS,
    on_event: OnEvent = lambda event: None,
) -> LockUpdate:
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
    with prepare(options.ptxas) as setup:
        context = setup.context(store)
        toolchain = context.components()
        requests = [request.key for request in map(Requests(context).of, variants)]
    names = {variant.id for variant in variants}
    changed_parts = differences(old.toolchain, toolchain) if old.variants else []
    if changed_parts and not whole and not old.variants.keys() <= names:
        raise NotCachedError(
            f"{file} is for another toolchain: {'; '.join(changed_parts)}; the entries that this "
            "update keeps would not match this one.",
            hint=f"Update all of it, without -k and --target: {update_command(file)}",
        )
    report = build(variants, store=store, options=options, on_event=on_event)
    entries = {
        result.variant.id: Entry(result.action_key, result.artifact.digest, request)
        for result, request in zip(report.results, requests, strict=True)
        if result.artifact is not None and result.action_key is not None
    }
    if len(entries) < len(variants) or report.exit_code:
        return LockUpdate(old, (), tuple(changed_parts), report)
    # For a hit, the compile time comes from the store; 0 if unknown.
    took = {
        r.variant.id: r.seconds if r.status == "compiled" else r.saved_s for r in report.results
    }
    times = {name: seconds for name, seconds in took.items() if seconds}
    resources = {r.variant.id: resources_of(r.artifact) for r in report.results if r.artifact}
    made = Lock(toolchain, entries, times, resources, tables_of(variants))
    new = merged(old, made, whole=whole)
    changes = compare(old.variants, entries, whole=whole)
    reasons = {} if changed_parts else {r.variant.id: r.reason for r in report.results}
    explained = tuple(_with_reason(change, reasons) for change in changes)
    tables = _tables(variants, old, whole=whole)
    return LockUpdate(new, explained, tuple(changed_parts), report, tables)


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
