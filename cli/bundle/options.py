"""What the commands of `pallasc bundle` share: the file, the choice of variants, keys."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from pallasc.specs.bundle.bundle import Bundle
    from pallasc.specs.bundle.manifest import Entry
    from pallasc.specs.bundle.signature import PublicKey

F = TypeVar("F", bound=Callable[..., Any])


def file_argument(function: F) -> F:
    """Add the argument FILE: a bundle."""
    return click.argument("file", type=click.Path(path_type=Path), metavar="FILE")(function)


def output_option(text: str) -> Callable[[F], F]:
    """Return the option `--output` of a command that writes a bundle."""
    return click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path),
        required=True,
        metavar="FILE",
        help=text,
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


def choice_options(function: F) -> F:
    """Add the options that choose variants of a bundle: `--target` and `-k`."""
    for option in (
        click.option(
            "-k",
            "expression",
            metavar="EXPR",
            help="Take only the variants that match EXPR, as in pallasc build.",
        ),
        click.option(
            "--target",
            "targets",
            multiple=True,
            metavar="NAME",
            help="Take only variants for this model or architecture; repeatable.",
        ),
    ):
        function = option(function)
    return function


def chosen_entries(
    bundle: Bundle, *, targets: Sequence[str] = (), expression: str | None = None
) -> list[Entry]:
    """Return the entries of a bundle that are meant, in the order of their keys.

    Raises:
        SpecError: a target or the expression means none.
    """
    entries = list(bundle.entries())
    known = sorted({name for one in entries for name in (one.target, one.arch)})
    for target in targets:
        if target not in known:
            from pallasc.errors import SpecError
            from pallasc.specs.spelling import suggestion

            raise SpecError(
                f"{bundle.name} has nothing for {target}.",
                hint=suggestion(target, known, otherwise="Targets"),
            )
    if targets:
        entries = [one for one in entries if one.target in targets or one.arch in targets]
    if expression is None:
        return entries
    from pallasc.specs.bundle.rearrange import select_entries

    return select_entries(entries, expression)


def read_keys(keys: Sequence[str]) -> tuple[PublicKey, ...]:
    """Return the keys that `--key` names.

    Raises:
        SpecError: a file cannot be read, holds no key, or something else than keys.
    """
    from pallasc.errors import SpecError
    from pallasc.specs.bundle import trust

    # On a command line a path is relative to the current folder, as everywhere in a shell.
    named = [key if key.startswith("ed25519:") else os.path.abspath(key) for key in keys if key]
    found = trust.read_keys(named)
    if keys and not found:
        raise SpecError(
            f"there is no key in {', '.join(keys)}.", hint="Give what pallasc bundle keygen wrote."
        )
    return found
