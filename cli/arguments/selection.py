"""The store, and what a command line selects: variants, keys, files with inputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from pallasc.cli.arguments.options import LoadOptions, file_option, together
from pallasc.cli.output.text import echo
from pallasc.errors import NotCachedError, SpecError

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


DIGITS = 64
LEAST_DIGITS = 6
"""So many first digits name an artifact, where no other begins with them."""

_HEX = re.compile(rf"[0-9a-f]{{1,{DIGITS}}}")
_HINT = "pallasc inspect SPECS --json prints the action keys of variants."


def is_key(text: str) -> bool:
    """Return True if an argument is a key, or its first digits, and not a file or folder."""
    return _HEX.fullmatch(text) is not None and not Path(text).exists()


def refuse_keys(specs: Sequence[str], command: str) -> None:
    """Refuse keys where a command needs what only specs and bundles have.

    Raises:
        SpecError: one of the specs is a key.
    """
    for spec in specs:
        if is_key(spec):
            raise SpecError(
                f"{spec}: there is no such file, and {command} takes specs or bundles, not action "
                "keys.",
                hint="Name the spec that it was compiled from, or a bundle that holds it. "
                "pallasc check takes keys.",
            )


def whole_key(text: str, store: Store) -> str:
    """Return the action key of the artifact whose action key or digest begins with some digits.

    A whole key that nothing lies under is returned as it is.

    Raises:
        SpecError: those are too few, or several artifacts have such a key or digest.
        NotCachedError: none has.
    """
    if len(text) == DIGITS and store.get_artifact(text) is not None:
        return text
    if len(text) < LEAST_DIGITS:
        raise SpecError(
            f"{text} is neither a file nor a key: the first {LEAST_DIGITS} digits of an action key "
            f"are needed, and it has {len(text)}.",
            hint=_HINT,
        )
    from pallasc.cache.inventory import artifacts

    keys = sorted(listed.key for listed in artifacts(store, key_prefix=text))
    what = "an action key"
    if not keys:
        keys, what = _keys_of_digest(text, store), "a digest"
    if not keys and len(text) == DIGITS:
        return text
    if not keys:
        raise NotCachedError(
            f"{text} is not a file, and the store has no artifact whose action key or digest "
            "begins with it.",
            hint=_HINT,
        )
    if len(keys) > 1:
        raise SpecError(
            f"{len(keys):,} artifacts have {what} that begins with {text}, such as those under "
            f"{keys[0]} and {keys[1]}.",
            hint="Give more digits.",
        )
    return keys[0]


def _keys_of_digest(text: str, store: Store) -> list[str]:
    """Return an action key for each artifact whose digest begins with some digits."""
    from pallasc.cache.inventory import artifacts
    from pallasc.specs.canonical import canonical_json, digest

    keys: dict[str, str] = {}  # equal artifacts may lie under several keys
    for listed in artifacts(store):
        stored = store.get_artifact(listed.key)
        if stored is not None and (own := digest(canonical_json(stored.artifact))).startswith(text):
            keys.setdefault(own, listed.key)
    return sorted(keys.values())


input_options = together(
    click.option(
        "--input",
        "inputs",
        multiple=True,
        metavar="NAME=FILE",
        help="Take an input from a .npy file, or from a .npz file that has it; repeatable.",
    ),
    file_option(
        "--inputs",
        "Take inputs from a .npz file, which has arrays by their names; others are random.",
        parameter="archive",
    ),
)


def parse_inputs(texts: Iterable[str], archive: Path | None) -> dict[str, Path]:
    """Return the file of each input.

    Args:
        texts: `NAME=FILE` of each `--input`.
        archive: the .npz file of `--inputs`.

    Raises:
        click.UsageError: a text is written otherwise, or an input is given twice.
        SpecError: the archive cannot be read.
    """
    files: dict[str, Path] = {}
    for text in texts:
        name, equals, file = text.partition("=")
        if not (name and equals and file):
            raise click.UsageError(f"--input {text!r} is not NAME=FILE.")
        if name in files:
            raise click.UsageError(f"--input gives {name} twice.")
        files[name] = Path(file)
    if archive is None:
        return files
    from pallasc.compiler.references.arrays import names_in

    for name in names_in(archive):
        if name in files:
            raise click.UsageError(f"--input gives {name}, which {archive} of --inputs has too.")
        files[name] = archive
    return files
