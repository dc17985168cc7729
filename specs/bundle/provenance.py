"""Provenance: from what a bundle was made, with what.

It is the last part of the file, and the `content` digest does not cover it: the same
kernels have the same digest, whoever built them from whichever commit. Signatures cover
it. Neither times, folders nor machines are in it, so the same sources give the same bytes.

JSON, one object for each bundle that was merged, in the order of their canonical text:

* `builder`: what made it, "pallasc 0.2.0"
* `toolchain`: version of each part of the toolchain, by its name
* `specs`: digest of each spec file, by its name relative to the project
* `commit`: of the sources, null where they are in no repository
* `dirty`: whether they differed from it, null where that is not known
* `changed`: names of files that differed, relative to the repository, 20 at the most; left out
  where there are none
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

from pallasc.errors import CorruptError, SpecError
from pallasc.specs.bundle.format import MAX_PROVENANCE_BYTES
from pallasc.specs.canonical import canonical_json
from pallasc.specs.untrusted_json import as_flag, as_list, as_object, as_text, fault, parse_json

MOST_CHANGED = 20
"""So many names of files that differed are kept."""

_MOST_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Provenance:
    """From what a bundle was made, with what; its fields are those of the JSON."""

    builder: str = ""
    toolchain: Mapping[str, str] = field(default_factory=dict)
    specs: Mapping[str, str] = field(default_factory=dict)
    commit: str | None = None
    dirty: bool | None = None
    changed: tuple[str, ...] = ()


def differing(origin: Provenance) -> str:
    """Return a sentence about the sources of a bundle that differ from their commit."""
    shown = ", ".join(origin.changed[:_MOST_SHOWN])
    more = len(origin.changed) - _MOST_SHOWN
    names = f": {shown}{f' and {more} more' if more > 0 else ''}" if shown else ""
    return f"it was made from files that differ from commit {(origin.commit or '')[:12]}{names}"


def pack_provenance(origins: Iterable[Provenance]) -> bytes:
    """Return the bytes of the provenance in a bundle; none where nothing is said.

    Raises:
        SpecError: there is too much of it.
    """
    texts = sorted({canonical_json(_to_json(origin)) for origin in origins})
    data = b"[" + b",".join(texts) + b"]" if texts else b""
    if len(data) > MAX_PROVENANCE_BYTES:
        raise SpecError(
            f"the provenance is {len(data)} bytes; the limit is {MAX_PROVENANCE_BYTES}.",
            hint="Name fewer spec files.",
        )
    return data


def _to_json(origin: Provenance) -> dict[str, object]:
    data: dict[str, object] = asdict(origin)
    if not origin.changed:
        del data["changed"]
    return data


def parse_provenance(data: bytes) -> tuple[Provenance, ...]:
    """Return what `pack_provenance` was given; fields of later minor versions are left out.

    Raises:
        CorruptError: it is something else.
    """
    if not data:
        return ()
    try:
        return tuple(_origin(as_object(item)) for item in as_list(parse_json(data)))
    except (LookupError, TypeError) as error:
        raise CorruptError(f"the provenance is damaged: {fault(error)}") from error


def _origin(data: Mapping[str, object]) -> Provenance:
    commit, dirty = data["commit"], data["dirty"]
    return Provenance(
        builder=as_text(data["builder"]),
        toolchain={key: as_text(text) for key, text in as_object(data["toolchain"]).items()},
        specs={key: as_text(text) for key, text in as_object(data["specs"]).items()},
        commit=None if commit is None else as_text(commit),
        dirty=None if dirty is None else as_flag(dirty),
        changed=tuple(map(as_text, as_list(data.get("changed", ())))),
    )
