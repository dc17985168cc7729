"""`pallasc cache pin`: artifacts that stay."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.keys import LEAST_DIGITS
from pallasc.cli.arguments.options import json_option, store_option
from pallasc.cli.cache.shared import opened
from pallasc.cli.terminal.output import echo
from pallasc.errors import NotCachedError
from pallasc.specs.canonical import plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pallasc.cache.about import About
    from pallasc.cache.store import Store
    from pallasc.cache.upkeep.pins import Pin


_MOST_NAMED = 3


@click.command("pin", cls=Command, short_help="Pin artifacts against pruning; list the pins.")
@click.argument("what", required=False, metavar="[NAME|KEY]")
@click.option("--label", default="", metavar="TEXT", help="A word to find the pins by.")
@click.option("--remove", is_flag=True, help="Remove the pins of this name, key or label.")
@store_option
@json_option("the pins")
def command(
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
    from pallasc.cli.terminal.output import json_text

    store, done = opened(store_root), ""
    if what is None:
        listed = pins(store)
    elif remove:
        listed, done = _unpin(store, what), "unpinned"
    else:
        listed, done = [pin(store, key, label=label) for key in _keys(store, what)], "pinned"
    if as_json:
        echo(json_text({"pins": [item.to_json() for item in listed]}))
    elif listed:
        about = {item.key: item.variants for item in artifacts(store)}
        echo("\n".join(_lines(listed, about, done)))


def _unpin(store: Store, what: str) -> list[Pin]:
    """Remove the pins of a label, of a kernel's name, or of a key or the start of one.

    Raises:
        NotCachedError: there is none.
    """
    from pallasc.cache.upkeep.pins import pins, unpin
    from pallasc.cache.upkeep.stats import artifacts

    listed = unpin(store, what)
    if not listed:
        named = {item.key for item in artifacts(store, name=what)}
        keys = [pin.key for pin in pins(store) if pin.key in named or _starts(pin.key, what)]
        listed = [gone for key in keys for gone in unpin(store, key)]
    if not listed:
        raise NotCachedError(f"{what!r} is not pinned.", hint="`pallasc cache pin` lists the pins.")
    return listed


def _starts(key: str, what: str) -> bool:
    """Tell whether a text is the start of a key, and long enough to name it."""
    return len(what) >= LEAST_DIGITS and key.startswith(what)


def _keys(store: Store, what: str) -> list[str]:
    """Return the action keys that a name, or the start of a key, stands for.

    Raises:
        NotCachedError: there is none.
    """
    from pallasc.cache.upkeep.stats import artifacts
    from pallasc.specs.spelling import suggestion

    named = [item.key for item in artifacts(store, name=what)]
    long = len(what) >= LEAST_DIGITS
    starting = [item.key for item in artifacts(store, key_prefix=what)] if long else []
    if not named and not starting:
        names = {about.name for item in artifacts(store) for about in item.variants}
        raise NotCachedError(f"the store has no artifact {what!r}.", hint=suggestion(what, names))
    return sorted({*named, *starting})


def _lines(listed: Sequence[Pin], about: Mapping[str, Sequence[About]], done: str) -> list[str]:
    """Return a line for each pin.

    Args:
        listed: the pins.
        about: the variants that led to each artifact, by action key.
        done: `pinned` or `removed`; "" where the pins are only listed.
    """
    lines = []
    for pin in listed:
        named = [_variant(variant) for variant in about.get(pin.key, ())]
        more = [f"and {len(named) - _MOST_NAMED} more"] if len(named) > _MOST_NAMED else []
        words = [done, pin.key, ", ".join([*named[:_MOST_NAMED], *more]), pin.label]
        lines.append("  ".join(filter(None, words)))
    return lines


def _variant(about: About) -> str:
    """Return `matmul (m=1024, n=4096, h100-sxm)`."""
    params = (f"{name}={plain(value)}" for name, value in about.params.items())
    return f"{about.name} ({', '.join(filter(None, [*params, about.target]))})"
