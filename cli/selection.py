"""From paths on the command line to the variants that are meant, and the store they lie in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.errors import SpecError
    from pallasc.specs.spec import Variant


def open_store(root: Path | None) -> Store:
    """Return the store, whose warnings go to the standard error output."""
    from pallasc.cache.store import Store

    return Store(root, warn=lambda text: click.echo(f"warning: {text}", err=True))


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
    """Return the variants that specs declare, for these targets, and that an expression means.

    Args:
        paths: spec files and folders of them.
        store: where what Python specs declare is kept.
        targets: models or architectures in place of the specs' own; none changes nothing.
        expression: which variants to take; None takes all.
        timeout_s: how long executing one Python spec may take; None is for ever.
        memory_bytes: what its process may hold; None is what the machine has, 0 any amount.
        frozen: execute no Python spec.
        on_tick: is told which Python spec is being executed, and for how many seconds.
        broken: is given the error of a Python spec whose process died or was stopped, and the
            others go on; None has it raised.

    Raises:
        SpecError: a spec, a target or the expression is wrong.
        NotCachedError: a Python spec would have to be executed, and `frozen` forbids it.
    """
    from pallasc.compiler.collect import collect
    from pallasc.specs.collector import collector_paused
    from pallasc.specs.matrix import expand
    from pallasc.specs.select import retarget, select

    specs = collect(
        paths,
        store=store,
        timeout_s=timeout_s,
        memory_bytes=memory_bytes,
        on_tick=on_tick,
        frozen=frozen,
        broken=broken,
    )
    with collector_paused():
        variants = expand(retarget(specs, targets))
    return variants if expression is None else select(variants, expression)
