"""Arguments and options that commands of `pallasc bundle` share: files, selections, keys."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
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
