"""What the commands of `pallasc bundle` share: files, the choice of variants, keys."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import click

from pallasc.cli.arguments.options import together

if TYPE_CHECKING:
    from pallasc.specs.bundle.bundle import Bundle
    from pallasc.specs.bundle.manifest import Entry
    from pallasc.specs.bundle.signature import PublicKey

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


class Choice(TypedDict):
    """Which variants of a bundle a command is about: see `choice_options`."""

    targets: tuple[str, ...]
    expression: str | None


choice_options = together(
    click.option(
        "--target",
        "targets",
        multiple=True,
        metavar="NAME",
        help="Take only variants for this model or architecture; repeatable.",
    ),
    click.option(
        "-k",
        "expression",
        metavar="EXPR",
        help="Take only the variants that match EXPR, as in pallasc build.",
    ),
)


def chosen_entries(
    bundle: Bundle, *, targets: Sequence[str] = (), expression: str | None = None
) -> list[Entry]:
    """Return the entries of a bundle for these targets that match, in the order of their keys.

    Raises:
        SpecError: there is none for a target, or none that matches.
    """
    entries = list(bundle.entries())
    present = sorted({name for entry in entries for name in (entry.target, entry.arch)})
    for target in targets:
        if target not in present:
            from pallasc.errors import SpecError
            from pallasc.specs.spelling import suggestion

            raise SpecError(
                f"{bundle.name} has nothing for {target}.",
                hint=suggestion(target, present, otherwise="Targets"),
            )
    if targets:
        entries = [entry for entry in entries if {entry.target, entry.arch} & {*targets}]
    if expression is None:
        return entries
    from pallasc.specs.bundle.rearrange import select_entries

    return select_entries(entries, expression)


def read_keys(keys: Sequence[str]) -> tuple[PublicKey, ...]:
    """Return the keys that `--key` names.

    Raises:
        SpecError: a file cannot be read, or holds something other than keys.
    """
    from pallasc.errors import SpecError
    from pallasc.specs.bundle import trust

    # On a command line a path is relative to the current folder, as everywhere in a shell.
    named = [key if key.startswith("ed25519:") else os.path.abspath(key) for key in keys if key]
    public_keys = trust.read_keys(named)
    if keys and not public_keys:
        raise SpecError(
            f"there is no key in {', '.join(keys)}.", hint="Give what pallasc bundle keygen wrote."
        )
    return public_keys
