"""Arguments and options that commands of `pallasc bundle` share: files, selections, keys."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from pallasc.cli.arguments.options import select_by

if TYPE_CHECKING:
    from pallasc.specs.bundle.bundle import Bundle
    from pallasc.specs.bundle.manifest import Entry
    from pallasc.specs.bundle.signature import PublicKey
    from pallasc.specs.templates import Scalar

F = TypeVar("F", bound=Callable[..., Any])

file_argument = click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
files_argument = click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE..."
)
output_option = click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="The bundle to write; what was there is replaced in one step.",
)


def key_option(text: str) -> Callable[[F], F]:
    """Return the option `--key` of a command that checks signatures."""
    return click.option(
        "--key",
        "keys",
        multiple=True,
        metavar="KEY",
        help=f"{text} A file that keygen wrote, a folder of *.pub, or ed25519:…; repeatable.",
    )


bundle_selection_options = select_by(
    target="Take only variants for this model or architecture",
    expression=", as in pallasc build",
)


def selected_entries(
    bundle: Bundle, *, targets: Sequence[str] = (), expression: str | None = None
) -> list[Entry]:
    """Return the entries of a bundle that a command line selects, in the order of their keys.

    Args:
        bundle: an open bundle.
        targets: models or architectures; without any, entries for all of them.
        expression: what an entry must match.

    Raises:
        SpecError: a target has no entry, or none matches.
    """
    entries = list(bundle.entries())
    present = sorted({name for entry in entries for name in (entry.target, entry.arch)})
    for target in targets:
        if target not in present:
            from pallasc.errors import SpecError
            from pallasc.specs.spelling import suggestion

            raise SpecError(
                f"{bundle.name} has no variant for {target}.",
                hint=suggestion(target, present, otherwise="Targets"),
            )
    if targets:
        entries = [entry for entry in entries if {entry.target, entry.arch} & {*targets}]
    if expression is None:
        return entries
    return select_entries(entries, expression)


class _Model(NamedTuple):
    name: str
    arch: str


class _Selectable(NamedTuple):
    """An entry, as an expression sees a variant."""

    entry: Entry
    id: str
    name: str
    params: Sequence[tuple[str, Scalar]]
    target: _Model


def select_entries(entries: Iterable[Entry], expression: str) -> list[Entry]:
    """Return the entries that an expression selects (`specs/loading/select.py`), in their order.

    Raises:
        SpecError: the expression is wrong, or selects none of them.
    """
    from pallasc.specs.loading.select import select

    views = [
        _Selectable(entry, entry.id, entry.name, entry.params, _Model(entry.target, entry.arch))
        for entry in entries
    ]
    return [view.entry for view in select(views, expression)]


def read_keys(keys: Sequence[str]) -> tuple[PublicKey, ...]:
    """Return the keys that `--key` names.

    Raises:
        SpecError: a file cannot be read, or holds something other than keys.
    """
    from pallasc.errors import SpecError
    from pallasc.specs.bundle.signature import read_keys as read_trusted

    # On a command line a path is relative to the current folder, as everywhere in a shell.
    named = [key if key.startswith("ed25519:") else os.path.abspath(key) for key in keys if key]
    public_keys = read_trusted(named)
    if keys and not public_keys:
        raise SpecError(
            f"no public key in {', '.join(keys)}.",
            hint="Give a .pub file that pallasc bundle keygen wrote.",
        )
    return public_keys
