"""Provenance: from what a bundle was made, with what.

It stands behind everything else in the file and is no part of what the bundle's `content` digest is
over: the same kernels have the same one, whoever built them from whichever commit. Signatures cover
it. Neither times, folders nor machines are in it, so the same sources give the same bytes.

JSON, one object for each bundle that was merged, in the order of their canonical text:

* `builder`: what made it, "pallasc 0.2.0"
* `toolchain`: version of each part of the toolchain, by its name
* `specs`: digest of each spec file, by its name relative to the project
* `commit`: of the sources, null where they are in no repository
* `dirty`: whether they differed from it, null where that is not known
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pallasc.errors import CorruptError, SpecError
from pallasc.specs.bundle.format import MAX_PROVENANCE_BYTES
from pallasc.specs.bundle.text import parse_json
from pallasc.specs.canonical import canonical_json


@dataclass(frozen=True, slots=True)
class Provenance:
    """From what a bundle was made, with what.

    Attributes:
        builder: what made it, `"pallasc 0.2.0"`.
        toolchain: version of each part of the toolchain.
        specs: digest of each spec file, by its name relative to the project.
        commit: of the sources, None where they are in no repository.
        dirty: whether they differed from it, None where that is not known.
    """

    builder: str = ""
    toolchain: Mapping[str, str] = field(default_factory=dict)
    specs: Mapping[str, str] = field(default_factory=dict)
    commit: str | None = None
    dirty: bool | None = None


def pack_provenance(origins: Iterable[Provenance]) -> bytes:
    """Return the bytes of the provenance in a bundle; none where nothing is said.

    Raises:
        SpecError: there is too much of it.
    """
    texts = sorted({canonical_json(asdict(origin)) for origin in origins})
    data = b"[" + b",".join(texts) + b"]" if texts else b""
    if len(data) > MAX_PROVENANCE_BYTES:
        raise SpecError(
            f"the provenance has {len(data)} bytes; {MAX_PROVENANCE_BYTES} are possible.",
            hint="Name fewer spec files.",
        )
    return data


def parse_provenance(data: bytes) -> tuple[Provenance, ...]:
    """Return what `pack_provenance` was given; fields of later minor versions are left out.

    Raises:
        CorruptError: it is something else.
    """
    if not data:
        return ()
    origins = parse_json(data)
    try:
        return tuple(_origin(one) for one in origins)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise CorruptError(f"the provenance is damaged: {error!r}") from error


def _origin(data: Any) -> Provenance:
    origin = Provenance(
        builder=data["builder"],
        toolchain=dict(data["toolchain"].items()),
        specs=dict(data["specs"].items()),
        commit=data["commit"],
        dirty=data["dirty"],
    )
    texts = [origin.builder, *origin.toolchain.values(), *origin.specs.values()]
    if any(type(text) is not str for text in texts):
        raise TypeError("a text is none")
    if type(origin.commit) not in (str, type(None)) or type(origin.dirty) not in (bool, type(None)):
        raise TypeError(f"{origin.commit!r} and {origin.dirty!r}")
    return origin
