"""Artifacts on a command line: action keys and digests, whole or their first digits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pallasc.errors import NotCachedError, SpecError

if TYPE_CHECKING:
    from pallasc.cache.store import Store

DIGITS = 64
LEAST_DIGITS = 6
"""So many first digits name an artifact, where no other begins with them."""

_HEX = re.compile(rf"[0-9a-f]{{1,{DIGITS}}}")
_HINT = "pallasc inspect SPECS --json prints the action keys of variants."


def is_key(text: str) -> bool:
    """Tell whether an argument is a key, or its first digits, and not a file or folder."""
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
