"""From paths on the command line to the variants that are meant, and the store they lie in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.specs.spec import Variant


def open_store(root: Path | None) -> Store:
    """Return the store, whose warnings go to the standard error output."""
    from pallasc.cache.store import Store

    return Store(root, warn=lambda text: click.echo(f"warning: {text}", err=True))


def load_variants(
    paths: Sequence[str], *, store: Store, targets: Sequence[str], expression: str | None
) -> list[Variant]:
    """Return the variants that specs declare, for these targets, and that an expression means.

    Args:
        paths: spec files and folders of them.
        store: where what Python specs declare is kept.
        targets: models or architectures in place of the specs' own; none changes nothing.
        expression: which variants to take; None takes all.

    Raises:
        SpecError: a spec, a target or the expression is wrong.
    """
    from pallasc.compiler.collect import collect
    from pallasc.specs.collector import collector_paused
    from pallasc.specs.matrix import expand
    from pallasc.specs.select import retarget, select

    specs = collect(paths, store=store)
    with collector_paused():
        variants = expand(retarget(specs, targets))
    return variants if expression is None else select(variants, expression)
