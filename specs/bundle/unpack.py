"""Take variants out of a bundle into a folder, as files that other tools read.

    FOLDER/VARIANT/artifact.json     the record of what is in the bundle (`artifacts/artifact.py`)
    FOLDER/VARIANT/plan.json         its launch plan
    FOLDER/VARIANT/KERNEL.cubin
    FOLDER/VARIANT/KERNEL.ptx        where the bundle has it
    FOLDER/VARIANT/DIGEST.constant   16 digits of it

Names in a bundle are data from strangers: in a name, what is not a letter, a digit or one of
`-_=,@+[]` or a dot within it becomes `_`, and the first digits of a digest follow it where that
changed anything, or where two names differ in upper and lower case alone.

Sizes are data from strangers, too: many variants may share a blob that is tiny while it is
compressed. So what would be written is added up from what the bundle declares, before any of it is.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pallasc.errors import SpecError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.bundle.bundle import Bundle
from pallasc.specs.bundle.manifest import Entry
from pallasc.specs.canonical import digest

_UNSAFE = re.compile(r"[^A-Za-z0-9_=,@+\[\].-]|^[.-]|\.$")
_LONGEST = 120
_DIGITS = 16
_LEAST_FILE_BYTES = 4096
"""What a small file takes on disk."""

DEFAULT_MOST_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A file that was written: the variant it is of, its place, its size in bytes."""

    variant: str
    path: Path
    size: int


def unpack(
    bundle: Bundle,
    entries: Iterable[Entry],
    folder: Path,
    *,
    most_bytes: int | None = DEFAULT_MOST_BYTES,
) -> list[Unpacked]:
    """Write the files of variants.

    Args:
        bundle: what to read.
        entries: which of its variants.
        folder: where to; it is made if it is not there.
        most_bytes: what may be written in all, None for any amount; a file counts at least 4 KiB.

    Raises:
        SpecError: a file already exists, or there is too much, and then nothing is written; or
            one cannot be written.
        CorruptError: the bundle is damaged.
    """
    chosen = list(entries)
    check_size(bundle, chosen, most_bytes)
    names = safe_names(entry.id for entry in chosen)
    for entry in chosen:
        for name in _file_names(bundle.artifact(entry)).values():
            _refuse_existing(folder / names[entry.id] / name)
    written = []
    for entry in chosen:
        own = folder / names[entry.id]
        for name, data in _files(bundle.artifact(entry)):
            _write(own / name, data)
            written.append(Unpacked(entry.id, own / name, len(data)))
    return written


def check_size(bundle: Bundle, entries: list[Entry], most_bytes: int | None) -> None:
    """Add up what a bundle declares, before any of it is read.

    Raises:
        SpecError: it is more than `most_bytes`.
    """
    total = 0
    for number, entry in enumerate(entries, 1):
        total += sum(max(size, _LEAST_FILE_BYTES) for size in bundle.declared_sizes(entry))
        if most_bytes is not None and total > most_bytes:
            raise SpecError(
                f"the first {number:,} of {len(entries):,} variants take more than {most_bytes:,} "
                f"bytes; the bundle has {bundle.size:,}.",
                hint="Choose variants with -k; --max-size of export allows more.",
            )


def safe_names(names: Iterable[str]) -> dict[str, str]:
    """Return distinct names that files can have on any system, by the names given."""
    by_name: dict[str, str] = {}
    taken: set[str] = set()
    for name in sorted(set(names)):
        safe = _UNSAFE.sub("_", name)[:_LONGEST]
        if safe != name or not safe or safe.lower() in taken:
            safe = f"{safe}-{digest(name.encode('utf-8', 'backslashreplace'))[:_DIGITS]}"
        taken.add(safe.lower())
        by_name[name] = safe
    return by_name


def _file_names(artifact: Artifact) -> dict[str, str]:
    """Return the name of each file, by the digest of its blob or by its own name."""
    labels: dict[str, tuple[str, str]] = {}
    for kernel in artifact.kernels:
        labels.setdefault(kernel.cubin, (kernel.name, "cubin"))
        if kernel.ptx is not None:
            labels.setdefault(kernel.ptx, (kernel.name, "ptx"))
    for key in artifact.record["blobs"]:
        labels.setdefault(key, (key[:_DIGITS], "constant"))
    names = _distinct(labels)
    return {"artifact.json": "artifact.json", "plan.json": "plan.json", **names}


def _distinct(labels: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Return the names of blobs; kernels of one name in several cubins get digits after it."""
    safe = safe_names(label for label, _ in labels.values())
    names: dict[str, str] = {}
    for key, (label, ending) in sorted(labels.items()):
        name = f"{safe[label]}.{ending}"
        alone = list(labels.values()).count((label, ending)) == 1
        names[key] = name if alone else f"{safe[label]}-{key[:_DIGITS]}.{ending}"
    return names


def _files(artifact: Artifact) -> Iterator[tuple[str, bytes]]:
    yield "artifact.json", _json(artifact.record)
    yield "plan.json", _json(artifact.record["plan"])
    for key, name in _file_names(artifact).items():
        if key in artifact.record["blobs"]:
            yield name, artifact.blob(key)


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"


def _refuse_existing(path: Path) -> None:
    if path.is_symlink() or path.exists():
        raise SpecError(f"{path} already exists.", hint="Remove it, or give another folder.")


def _write(path: Path, data: bytes) -> None:
    """Write a file that is not there yet."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.parent.is_symlink():
            raise SpecError(f"{path.parent} is a link.", hint="Give another folder.")
        temporary = path.with_name(f".{secrets.token_hex(8)}")
        try:
            temporary.write_bytes(data)
            os.link(temporary, path)  # fails if the file exists by now, as rename would not
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise SpecError(
            f"{path} cannot be written: {error.strerror}.", hint="Give another folder."
        ) from error
