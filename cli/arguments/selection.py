"""Open the store, and load the variants that a command line selects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from pallasc.cli.arguments.options import LoadOptions
from pallasc.cli.terminal.output import echo

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.specs.spec import Variant


def open_store(root: Path | None, *, check_folders: bool = True) -> Store:
    """Return the store; its warnings go to the standard error output.

    Args:
        root: its folder; by default as for `Store`.
        check_folders: refuse a store in which something else is in the place of a folder.

    Raises:
        CorruptError: `check_folders` found such a place.
    """
    from pallasc.cache.store import Store

    store = Store(root, warn=lambda text: echo(f"warning: {text}", err=True))
    if check_folders:
        store.folders.check()
    return store


def load_variants(
    paths: Sequence[str],
    *,
    store: Store,
    on_tick: Callable[[str, float], None] | None = None,
    **options: Unpack[LoadOptions],
) -> Sequence[Variant]:
    """Return the variants of specs that the options select; errors as for `SpecReader.select`."""
    from pallasc.compiler.builds.collect import SpecReader

    reader = SpecReader(
        store=store,
        timeout_s=options["timeout_s"],
        memory_bytes=options["memory_bytes"],
        on_tick=on_tick,
    )
    selected = reader.select(
        paths, options["targets"], options["expression"], all_points=options["all_points"]
    )
    return selected.variants
