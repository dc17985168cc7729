"""`pallasc cache`: look after the store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pallasc.cli.arguments.layout import Command, Group
from pallasc.cli.arguments.options import (
    compile_options,
    json_option,
    reading_options,
    selection_options,
    specs_argument,
    store_option,
    traceback_option,
)
from pallasc.cli.terminal.output import echo
from pallasc.errors import NotCachedError, ToolError

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.cache.upkeep.limits import Limits
    from pallasc.cache.upkeep.pins import Pin
    from pallasc.cache.upkeep.prune import Pruned

_MOST_WARNINGS = 5


@click.group(
    "cache",
    cls=Group,
    invoke_without_command=True,
    short_help="Look after the store: stats, why, verify, prune, pin.",
)
@traceback_option()
@click.pass_context
def command(ctx: click.Context) -> None:
    """Look after the store of compiled artifacts.

    It lies in $PALLASC_CACHE_DIR, else in pallasc below the user's cache folder.
    $PALLASC_CACHE_SIZE bounds its size, 10GiB by default; what was used last stays longest. Users
    of one group share a store in a folder of that group with the mode 2775, whatever their umask;
    each believes what the others put there, unless $PALLASC_REQUIRE_SIGNED_STORE is 1.

    Examples:
      pallasc cache stats
      pallasc cache why kernels.yaml -k matmul
      pallasc cache prune --dry-run
    """
    if ctx.invoked_subcommand is None:
        echo(ctx.get_help())


@command.command("stats", cls=Command)
@store_option
@json_option("the figures")
@traceback_option()
def stats_command(store_root: Path | None, as_json: bool) -> None:
    """Show what the store holds and what it was worth.

    Example:
      pallasc cache stats
    """
    from pallasc.cache.upkeep.stats import stats
    from pallasc.cli.terminal.output import json_text

    found = stats(_store(store_root))
    data = found.to_json()
    if as_json:
        echo(json_text(data))
        return
    limit = "no limit" if found.limit_bytes is None else f"of at most {found.limit_bytes:,}"
    asked = data["hits"] + data["misses"]
    rate = f", {100 * data['hits'] / asked:.0f} % of {asked}" if asked else ""
    rows = [
        ("folder", found.folder),
        ("artifacts", f"{found.entries} ({found.pins} pinned)"),
        ("bytes", f"{found.bytes:,} {limit}, {found.cubin_bytes:,} in cubins"),
        ("hits", f"{data['hits']}{rate}"),
        ("compiled", f"{data['made']} in {data['spent_s']:.1f} s"),
        ("time saved", f"{data['saved_s']:.1f} s"),
        ("quarantined", f"{found.quarantined}"),
        *(("left alone", f"{name}, of another version") for name in found.other_versions),
    ]
    echo("\n".join(f"{label:<12} {value}" for label, value in rows))
    _warn(found.warnings)


@command.command("why", cls=Command)
@specs_argument()
@selection_options
@reading_options
@store_option
@json_option("the explanations")
@traceback_option()
def why_command(
    specs: tuple[str, ...],
    targets: tuple[str, ...],
    expression: str | None,
    store_root: Path | None,
    as_json: bool,
    **limits: Any,
) -> None:
    """Explain why variants of SPECS are in the store or not.

    A miss is compared with the nearest entry: which labelled fields of the key differ, or which
    source file changed since. Nothing is compiled and JAX is not imported; it need not be installed
    where the store says what it was filled with.

    Example:
      pallasc cache why kernels.yaml -k matmul
    """
    from pallasc.cli.arguments.selection import load_variants
    from pallasc.cli.render.why_text import explanation_text
    from pallasc.cli.terminal.output import json_text
    from pallasc.compiler.inputs.recalled import prepare_or_recall
    from pallasc.compiler.inputs.why import explain_variants

    store = _store(store_root)
    variants = load_variants(specs, store=store, targets=targets, expression=expression, **limits)
    with prepare_or_recall(store) as setup:
        context = setup.context(store)
        found = explain_variants(variants, context, store, setup.versions_now)
        notes = setup.notes(context)
    for note in notes:
        echo(f"warning: {note}", err=True)
    if as_json:
        echo(json_text({"variants": [item.to_json() for item in found]}))
    else:
        echo("\n".join(map(explanation_text, found)))


@command.command("verify", cls=Command)
@click.option("--repair", is_flag=True, help="Put what is damaged away, so that it is made again.")
@store_option
@json_option("the findings")
@traceback_option()
def verify_command(repair: bool, store_root: Path | None, as_json: bool) -> int:
    """Read the whole store and check every digest and field.

    That finds damage, and what is no store's; it cannot find a forgery whose checksums fit.

    A repair puts what is damaged away, so that the next build makes it again. A damaged pin holds
    on without its label; damaged statistics begin anew.

    Ends with exit code 5 where something is damaged, or cannot be read, and was not repaired.

    Examples:
      pallasc cache verify
      pallasc cache verify --repair
    """
    from pallasc.cache.upkeep.verify import verify
    from pallasc.cli.terminal.output import count, json_text

    found = verify(_store(store_root, whole=False), repair=repair)
    if as_json:
        echo(json_text(found.to_json()))
    else:
        for finding in found.findings:
            state = "repaired" if finding.repaired else "damaged"
            echo(f"{state}  {finding.kind} {finding.path}: {finding.reason}")
        echo(
            f"{count(found.records, 'record')}, {count(found.blobs, 'blob')}, "
            f"{count(found.manifests, 'manifest')}, read {count(found.bytes, 'byte')}: "
            f"{count(len(found.findings), 'finding')}"
        )
    return 0 if all(finding.repaired for finding in found.findings) else 5


@command.command("prune", cls=Command)
@click.option("--dry-run", is_flag=True, help="Only tell what would go.")
@click.option("--size", metavar="SIZE", help="Keep at most this much: 5GiB, 300MB, none.")
@click.option("--age", metavar="AGE", help="Drop what was not used for so long: 30d, 12h, none.")
@store_option
@json_option("what went")
@traceback_option()
def prune_command(
    dry_run: bool, size: str | None, age: str | None, store_root: Path | None, as_json: bool
) -> int:
    """Make the store fit its limits, and clear what dead processes left.

    What was used longest ago goes first; never what a pin names or a running build holds, nor a
    blob that is younger than five minutes. What stays over a limit is told with its reason.
    Ends with exit code 4 where something cannot be looked at or removed.

    Examples:
      pallasc cache prune --dry-run
      pallasc cache prune --size 2GiB --age 30d
    """
    from pallasc.cache.upkeep.prune import prune

    pruned = prune(_store(store_root), limits=_limits(size, age), dry_run=dry_run)
    return _show_pruned(pruned, as_json)


@command.command("clear", cls=Command)
@click.option("--dry-run", is_flag=True, help="Only tell what would go.")
@store_option
@json_option("what went")
@traceback_option()
def clear_command(dry_run: bool, store_root: Path | None, as_json: bool) -> int:
    """Remove everything but what pins name and running builds hold.

    The statistics begin anew. Ends with exit code 4 where something cannot be looked at or removed.

    Example:
      pallasc cache clear --dry-run
    """
    from pallasc.cache.upkeep.prune import clear

    return _show_pruned(clear(_store(store_root), dry_run=dry_run), as_json)


@command.command("pin", cls=Command, short_help="Pin artifacts against pruning; list the pins.")
@click.argument("what", required=False, metavar="[NAME|KEY]")
@click.option("--label", default="", metavar="TEXT", help="A word to find the pins by.")
@click.option("--remove", is_flag=True, help="Remove the pins of this name, key or label.")
@store_option
@json_option("the pins")
@traceback_option()
def pin_command(
    what: str | None, label: str, remove: bool, store_root: Path | None, as_json: bool
) -> None:
    """Pin artifacts, so that pruning never removes them; without an argument, list the pins.

    NAME is a kernel's name, KEY an action key or the start of one (of `pallasc build --json`).

    Examples:
      pallasc cache pin matmul --label release-1.2
      pallasc cache pin
      pallasc cache pin release-1.2 --remove
    """
    from pallasc.cache.upkeep.pins import pin, pins
    from pallasc.cache.upkeep.stats import artifacts
    from pallasc.cli.render.pin_text import pin_lines
    from pallasc.cli.terminal.output import json_text

    store, done = _store(store_root), ""
    if what is None:
        found = pins(store)
    elif remove:
        found, done = _unpin(store, what), "removed"
    else:
        found, done = [pin(store, key, label=label) for key in _keys(store, what)], "pinned"
    if as_json:
        echo(json_text({"pins": [item.to_json() for item in found]}))
    elif found:
        about = {item.key: item.variants for item in artifacts(store)}
        echo("\n".join(pin_lines(found, about, done)))


@command.command("audit", cls=Command, short_help="Compile again, and compare byte for byte.")
@specs_argument()
@selection_options
@compile_options
@click.option("--sample", type=click.IntRange(min=1), metavar="N", help="Only N of them.")
@click.option("--seed", default=0, show_default=True, help="Which N.")
@reading_options
@store_option
@json_option("the results")
@traceback_option()
def audit_command(
    specs: tuple[str, ...],
    targets: tuple[str, ...],
    expression: str | None,
    jobs: int | None,
    ptxas: Path | None,
    sample: int | None,
    seed: int,
    store_root: Path | None,
    as_json: bool,
    **limits: Any,
) -> int:
    """Compile variants of SPECS that are in the store again, and compare byte for byte.

    Ends with exit code 1 where one differs or fails.

    Example:
      pallasc cache audit kernels.yaml --sample 5
    """
    from pallasc.cli.arguments.selection import load_variants
    from pallasc.cli.terminal.output import json_text
    from pallasc.compiler.build.audit import audit

    store = _store(store_root)
    variants = load_variants(specs, store=store, targets=targets, expression=expression, **limits)
    found = audit(variants, store=store, sample=sample, seed=seed, jobs=jobs, ptxas=ptxas)
    if as_json:
        echo(json_text({"variants": [item.to_json() for item in found]}))
    else:
        for item in found:
            rest = item.error or ", ".join(item.parts)
            echo(f"{item.outcome:<9}  {item.variant}" + (f": {rest}" if rest else ""))
        echo(f"{len(found)} of {len(variants)} variants compiled again")
    return 0 if all(item.outcome == "same" for item in found) else 1


def _store(root: Path | None, *, whole: bool = True) -> Store:
    """Return the store, which must be one that can be read, or not be there.

    Raises:
        ToolError: it is something else than a folder, or of another user.
        CorruptError: not all of its folders are its own; only where it must be `whole`.
    """
    from pallasc.cli.arguments.selection import open_store

    store = open_store(root, whole=False)
    if whole:
        store.folders.check(readable=True)
    else:
        any(store.folders.refused())
    return store


def _unpin(store: Store, what: str) -> list[Pin]:
    """Remove the pins of a label, of a kernel's name, or of a key or the start of one.

    Raises:
        NotCachedError: there is none.
    """
    from pallasc.cache.upkeep.pins import pins, unpin
    from pallasc.cache.upkeep.stats import artifacts

    found = unpin(store, what)
    if not found:
        named = {item.key for item in artifacts(store, name=what)}
        keys = [one.key for one in pins(store) if one.key in named or _starts(one.key, what)]
        found = [gone for key in keys for gone in unpin(store, key)]
    if not found:
        raise NotCachedError(f"{what!r} is not pinned.", hint="`pallasc cache pin` lists the pins.")
    return found


def _starts(key: str, what: str) -> bool:
    """Tell whether a text is enough of the start of a key."""
    return len(what) >= 6 and key.startswith(what)


def _keys(store: Store, what: str) -> list[str]:
    """Return the action keys that a name, or the start of a key, stands for.

    Raises:
        NotCachedError: there is none.
    """
    from pallasc.cache.upkeep.stats import artifacts
    from pallasc.specs.spelling import suggestion

    named = [item.key for item in artifacts(store, name=what)]
    starting = [item.key for item in artifacts(store, key_prefix=what)] if len(what) >= 6 else []
    if not named and not starting:
        known = {about.name for item in artifacts(store) for about in item.variants}
        raise NotCachedError(f"the store has no artifact {what!r}.", hint=suggestion(what, known))
    return sorted({*named, *starting})


def _limits(size: str | None, age: str | None) -> Limits:
    from dataclasses import replace

    from pallasc.cache.upkeep.limits import limits_from_environment, parse_age, parse_size

    limits = limits_from_environment()
    if size is not None:
        limits = replace(limits, max_bytes=parse_size(size, what="--size"))
    if age is not None:
        limits = replace(limits, max_age_s=parse_age(age, what="--age"))
    return limits


def _show_pruned(pruned: Pruned, as_json: bool) -> int:
    """Show what went, and return the exit code."""
    from pallasc.cli.render.pruned_text import pruned_lines
    from pallasc.cli.terminal.output import json_text

    if as_json:
        echo(json_text(pruned.to_json()))
    else:
        echo("\n".join(pruned_lines(pruned)))
        _warn(pruned.warnings)
    return ToolError.exit_code if pruned.warnings else 0


def _warn(warnings: tuple[str, ...]) -> None:
    for warning in warnings[:_MOST_WARNINGS]:
        echo(f"warning: {warning}", err=True)
    if len(warnings) > _MOST_WARNINGS:
        left = len(warnings) - _MOST_WARNINGS
        echo(f"warning: and {left:,} more, which --json lists", err=True)
