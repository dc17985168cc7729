"""From spec files to the variants that are meant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pallasc.cache.store import Store
from pallasc.compiler.builds.collect import OnTick, collect
from pallasc.errors import SpecError
from pallasc.specs.garbage import collector_paused
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.select import retarget, select
from pallasc.specs.spec import Spec, Variant


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for.

    Attributes:
        specs: all that the files declare.
        variants: those of them that are meant.
    """

    specs: tuple[Spec, ...]
    variants: tuple[Variant, ...]


def read_wanted(
    paths: Sequence[str],
    *,
    store: Store,
    targets: Sequence[str] = (),
    expression: str | None = None,
    timeout_s: float | None = None,
    memory_bytes: int | None = None,
    frozen: bool = False,
    on_tick: OnTick | None = None,
    broken: Callable[[SpecError], None] | None = None,
) -> Wanted:
    """Return what specs declare, and the variants for these targets that an expression means.

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
    chosen = variants if expression is None else select(variants, expression)
    return Wanted(tuple(specs), tuple(chosen))
