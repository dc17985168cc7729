"""What the commands share that send variants to a remote store, or bring them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pallasc.cli.terminal.output import count, echo
from pallasc.cli.terminal.times import Heartbeat

if TYPE_CHECKING:
    from pallasc.cache.remote.remote import Transfer
    from pallasc.cache.store import Store
    from pallasc.cli.arguments.options import SpecSelection
    from pallasc.compiler.builds.remote_tier import Sendable

_MOST_NAMED = 5


def steps(what: str) -> Callable[[int, int], None]:
    """Return a callback that reports from time to time how far a transfer is.

    Args:
        what: is done with variants: `sent`.
    """
    heartbeat = Heartbeat(time.monotonic(), first_s=2.0)

    def step(done: int, total: int) -> None:
        if done < total and heartbeat.is_due(time.monotonic()):
            echo(f"{what} {done:,} of {count(total, 'variant')}", err=True)

    return step


def namespaces(store: Store, *, every: bool) -> list[str] | None:
    """Return the namespace of the toolchain here, None for those of all toolchains.

    Raises:
        ToolError: no toolchain is installed, and the store remembers none.
    """
    if every:
        return None
    from pallasc.compiler.builds.remote_tier import namespace_here

    return [namespace_here(store)]


def find_sendable(specs: tuple[str, ...], store: Store, selection: SpecSelection) -> Sendable:
    """Return what of the selected variants may be sent, and say what may not."""
    from pallasc.cli.arguments.selection import load_variants
    from pallasc.compiler.builds.remote_tier import sendable

    variants = load_variants(specs, store=store, timeout_s=None, memory_bytes=None, **selection)
    found = sendable(variants, store)
    for number, (variant, why) in enumerate(found.bound.items()):
        if number < _MOST_NAMED:
            echo(f"warning: {variant} is not sent: {why}", err=True)
    if len(found.bound) > _MOST_NAMED:
        left = len(found.bound) - _MOST_NAMED
        echo(f"warning: and {left:,} more that depend on this machine are not sent", err=True)
    return found


def pushed_json(done: Transfer, found: Sendable) -> dict[str, object]:
    """Return what `--json` prints of a push."""
    return {
        "sent": done.moved,
        "present": done.present,
        "absent": found.absent + done.left,
        "bound": found.bound,
        **done.stats.to_json(),
    }


def pulled_json(done: Transfer) -> dict[str, object]:
    """Return what `--json` prints of a pull."""
    return {
        "brought": done.moved,
        "present": done.present,
        "absent": done.left,
        **done.stats.to_json(),
    }


def pushed_line(done: Transfer, found: Sendable) -> str:
    """Return a line for a push."""
    parts = [f"sent {count(done.moved, 'variant')}", f"{done.present:,} were there"]
    if found.absent + done.left:
        parts.append(f"{found.absent + done.left:,} are not in the store")
    if found.bound:
        parts.append(f"{len(found.bound):,} depend on this machine")
    return f"{', '.join(parts)}: {_traffic(done)}"


def pulled_line(done: Transfer) -> str:
    """Return a line for a pull."""
    if not done.moved + done.present + done.left:
        return f"the remote store has no variants to bring: {_traffic(done)}"
    parts = [f"brought {count(done.moved, 'variant')}", f"{done.present:,} were there"]
    if done.left:
        parts.append(f"{done.left:,} could not be taken")
    return f"{', '.join(parts)}: {_traffic(done)}"


def warn_of(done: Transfer) -> None:
    """Print what was refused, and what is not deterministic."""
    stats = done.stats
    for text in stats.refused[:_MOST_NAMED]:
        echo(f"warning: refused: {text}", err=True)
    if stats.refusals > _MOST_NAMED:
        echo(f"warning: and {stats.refusals - _MOST_NAMED:,} more", err=True)
    for text in stats.conflicts[:_MOST_NAMED]:
        echo(f"warning: not deterministic: {text}", err=True)


def _traffic(done: Transfer) -> str:
    stats = done.stats
    return (
        f"{stats.bytes_written:,} bytes written, {stats.bytes_read:,} bytes read, "
        f"{count(stats.requests, 'request')}"
    )
