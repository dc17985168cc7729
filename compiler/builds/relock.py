"""Compare variants with a lock file, and make the lock anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.locked import (
    OTHER_ACTION_KEY,
    Locked,
    LockedLookup,
    require_toolchain,
)
from pallasc.compiler.builds.options import DEFAULTS, Options
from pallasc.compiler.builds.report import OnEvent, Report, VariantResult
from pallasc.compiler.inputs.lookup import Lookup
from pallasc.compiler.inputs.remembered_toolchain import installed_or_remembered
from pallasc.compiler.inputs.request import Request, Requests
from pallasc.compiler.toolchain.setup import prepare
from pallasc.errors import NotCachedError
from pallasc.specs.lock import Change, Entry, Lock, compare, differences, merged, update_command
from pallasc.specs.spec import Variant

_ASKED_OTHERWISE = "its spec has changed, and gives the same as before"
_NOT_DETERMINISTIC = "the same action key gave another artifact"


@dataclass(frozen=True, slots=True)
class LockCheck:
    """How variants differ from a lock, and what the user should know of the comparison."""

    changes: tuple[Change, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LockUpdate:
    """What an update gives.

    Attributes:
        lock: the new lock; the old one where a variant failed.
        changes: how it differs from the old one.
        toolchain: how its toolchain differs, in clauses.
        report: of the build.
    """

    lock: Lock
    changes: tuple[Change, ...]
    toolchain: tuple[str, ...]
    report: Report

    @property
    def complete(self) -> bool:
        """Tell whether every variant was built, so that the lock may be written."""
        return self.report.exit_code == 0 and not self.report.skipped


def check_lock(
    variants: Sequence[Variant],
    locked: Locked,
    *,
    whole: bool,
    store: Store,
    ptxas: Path | None = None,
) -> LockCheck:
    """Compare variants with a lock without compiling anything.

    Args:
        variants: the variants.
        locked: the lock.
        whole: whether these are all the variants that it should have.
        store: tells what the variants are by now.
        ptxas: as for `build`.

    Raises:
        NotCachedError: the lock was made with another toolchain.
        ToolError: the toolchain is not complete, a data file cannot be read; or no compiler is
            installed, and the store does not say with which one it was filled.
    """
    lock = locked.lock
    entries = lock.variants if lock else {}
    with installed_or_remembered(store, ptxas=ptxas, lock=lock) as setup:
        context = setup.context(store)
        require_toolchain(locked, setup, context)
        lookup = Lookup(context, store)
        held = LockedLookup(replace(locked, frozen=True), lookup, store)
        found = [_check(v, entries.get(v.id), lookup.requests.of(v), held) for v in variants]
        notes = (*held.notes(), *setup.notes(context))
        context.digests.save()
    changes = [change for change in found if change is not None]
    if whole:
        gone = entries.keys() - {variant.id for variant in variants}
        changes += [Change("dropped", name, entries[name]) for name in gone]
    changes.sort(key=lambda change: change.variant)
    return LockCheck(tuple(changes), notes)


def _check(
    variant: Variant, entry: Entry | None, request: Request, lookup: LockedLookup
) -> Change | None:
    if entry is None:
        return Change("added", variant.id)
    try:
        found = lookup.find(variant, request)
    except NotCachedError as missing:
        reason = missing.message.removeprefix(f"{variant.id} ").removesuffix(".")
        return Change("unknown", variant.id, entry, reason=reason)
    if found.artifact is None or found.action_key is None:
        return Change("unknown", variant.id, entry, reason=found.reason)
    after = Entry(found.action_key, found.artifact.digest, request.key)
    if after == entry:
        return None
    result = VariantResult(variant, "hit", 0.0, found.action_key, found.artifact)
    reason = lookup.difference(result) or _ASKED_OTHERWISE
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
        variants: whose entries are made anew.
        lock: the old lock, None where there is none.
        file: the lock file, for messages.
        whole: whether the other entries go; otherwise they stay.
        store: as for `build`.
        options: as for `build`.
        on_event: as for `build`.

    Raises:
        NotCachedError: entries would stay that another toolchain made.
        ToolError: the toolchain is not complete.
    """
    old = lock or Lock()
    with prepare(options.ptxas) as setup:
        context = setup.context(store)
        toolchain = setup.components(context)
        requests = [request.key for request in map(Requests(context).of, variants)]
    names = {variant.id for variant in variants}
    apart = differences(old.toolchain, toolchain) if old.variants else []
    if apart and not whole and not old.variants.keys() <= names:
        raise NotCachedError(
            f"{file} is for another toolchain: {'; '.join(apart)}; the entries that this update "
            "leaves alone would not fit this one.",
            hint=f"Update all of it, without -k and --target: {update_command(file)}",
        )
    report = build(variants, store=store, options=options, on_event=on_event)
    entries = _entries(report.results, requests)
    if len(entries) < len(variants) or report.exit_code:
        return LockUpdate(old, (), tuple(apart), report)
    new = merged(old, Lock(toolchain, entries), whole=whole)
    changes = compare(old.variants, entries, whole=whole)
    reasons = {} if apart else {r.variant.id: r.reason for r in report.results}
    told = tuple(_with_reason(change, reasons) for change in changes)
    return LockUpdate(new, told, tuple(apart), report)


def _entries(results: Sequence[VariantResult], requests: Sequence[str]) -> dict[str, Entry]:
    return {
        result.variant.id: Entry(result.action_key, result.artifact.digest, request)
        for result, request in zip(results, requests, strict=True)
        if result.artifact is not None and result.action_key is not None
    }


def _with_reason(change: Change, reasons: Mapping[str, str]) -> Change:
    if change.before is None or change.after is None:
        return change
    before, after = change.before, change.after
    if before.action != after.action:
        known = reasons.get(change.variant, "")
        unexplained = change.variant in reasons and before.request == after.request
        return replace(change, reason=known or (OTHER_ACTION_KEY if unexplained else ""))
    same = before.artifact == after.artifact
    return replace(change, reason=_ASKED_OTHERWISE if same else _NOT_DETERMINISTIC)
