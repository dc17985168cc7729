"""Take variants out of a bundle into a folder, as files that other tools read.

    FOLDER/VARIANT/artifact.json     the record of what is in the bundle (`artifacts/artifact.py`)
    FOLDER/VARIANT/plan.json         its launch plan
    FOLDER/VARIANT/KERNEL.cubin
    FOLDER/VARIANT/KERNEL.ptx        where the bundle has it
    FOLDER/VARIANT/DIGEST.constant   16 digits of it

Names in a bundle are data from strangers: in a name, everything but a letter, a digit, one of
`-_=,@+[]`, or a dot within it becomes `_`, and the first digits of a digest follow it where that
changed anything, or where two names differ in upper and lower case alone.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from pallasc.errors import SpecError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.bundle.bundle import Bundle
from pallasc.specs.bundle.c_export import DEFAULT_MOST_BYTES, check_size
from pallasc.specs.bundle.manifest import Entry
from pallasc.specs.canonical import digest
from pallasc.specs.user_files import replace_file

_UNSAFE = re.compile(r"[^A-Za-z0-9_=,@+\[\].-]|^[.-]|\.$")
_LONGEST = 120
_DIGITS = 16


def unpack(
    bundle: Bundle,
    entries: Iterable[Entry],
    folder: Path,
    *,
    most_bytes: int | None = DEFAULT_MOST_BYTES,
) -> list[Path]:
    """Write the files of variants, and return them.

    Args:
        bundle: the bundle to read.
        entries: the variants to write.
        folder: the folder that gets a folder for each variant; it is made if it is not there.
        most_bytes: the most bytes to write, None for any number; a file counts at least 4 KiB.

    Raises:
        SpecError: the folder of a variant already exists, or there is too much, and then nothing is
            written; or a file cannot be written.
        CorruptError: the bundle is damaged.
    """
    chosen = list(entries)
    check_size(bundle, chosen, most_bytes)
    names = safe_names(entry.id for entry in chosen)
    for name in names.values():
        if os.path.lexists(folder / name):
            raise SpecError(
                f"{folder / name} already exists.", hint="Remove it, or give another folder."
            )
    written = []
    for entry in chosen:
        own = folder / names[entry.id]
        for name, data in _files(bundle.artifact(entry)):
            replace_file(own / name, data, hint="Give another folder.")
            written.append(own / name)
    return written


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


def _files(artifact: Artifact) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents; kernels of one name in several cubins get digits after it."""
    for name, value in (("artifact", artifact.record), ("plan", artifact.record["plan"])):
        yield f"{name}.json", json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"
    labels = {key: (key[:_DIGITS], "constant") for key in artifact.record["blobs"]}
    for kernel in reversed(artifact.kernels):  # the first kernel names a cubin
        labels[kernel.cubin] = kernel.name, "cubin"
        if kernel.ptx is not None:
            labels[kernel.ptx] = kernel.name, "ptx"
    safe = safe_names(label for label, _ in labels.values())
    counts = Counter(labels.values())
    for key, (label, ending) in labels.items():
        digits = f"-{key[:_DIGITS]}" if counts[label, ending] > 1 else ""
        yield f"{safe[label]}{digits}.{ending}", artifact.blob(key)
