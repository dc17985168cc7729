"""From paths on the command line to the variants that a command is about, and to the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pallasc.cli.terminal.output import echo

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.errors import SpecError
    from pallasc.specs.spec import Variant


def open_store(root: Path | None, *, whole: bool = True, require_signed: bool = False) -> Store:
    """Return the store, whose warnings go to the standard error output.

    Args:
        root: its folder; by default as for `Store`.
        whole: all of its folders must be its own.
        require_signed: only what a trusted key signed counts.

    Raises:
        CorruptError: not all of its folders are its own; only where it must be `whole`.
    """
    from pallasc.cache.store import Store

    store = Store(
        root,
        warn=lambda text: echo(f"warning: {text}", err=True),
        require_signed=require_signed,
    )
    if whole:
        store.folders.check()
    return store


def load_variants(
    paths: Sequence[str],
    *,
    store: Store,
    targets: Sequence[str],
    expression: str | None,
    timeout_s: float | None = None,
    memory_bytes: int | None = None,
    frozen: bool = False,
    on_tick: Callable[[str, float], None] | None = None,
    broken: Callable[[SpecError], None] | None = None,
) -> list[Variant]:
    """Return the variants that specs declare; arguments and errors as for `read_wanted`."""
    from pallasc.compiler.builds.selection import read_wanted

    selection = read_wanted(
        paths,
        store=store,
        targets=targets,
        expression=expression,
        timeout_s=timeout_s,
        memory_bytes=memory_bytes,
        frozen=frozen,
        on_tick=on_tick,
        broken=broken,
    )
    return list(selection.variants)
