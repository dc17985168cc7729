"""C programs and libraries of the tests, compiled once for each state of their sources."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def compiler() -> str | None:
    """Return the C compiler at hand, or None."""
    return shutil.which("cc") or shutil.which("gcc")


def compiled(
    name: str,
    flags: Sequence[str],
    sources: Iterable[Path],
    *,
    link: Sequence[str | Path] = (),
    watched: Iterable[Path] = (),
    folder: str = "native",
) -> Path:
    """Return a file that is compiled where it was not compiled of these sources before.

    Args:
        name: of the file.
        flags: of the compiler, before the sources.
        sources: C files.
        link: what comes after them.
        watched: other files that it depends on.
        folder: in `build/`, where it is kept.
    """
    if (cc := compiler()) is None:
        raise RuntimeError("no C compiler: neither cc nor gcc is on the PATH")
    files = sorted(sources)
    digest = hashlib.sha256(repr((cc, flags, link)).encode())
    for path in (*files, *sorted(watched)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    made = ROOT / "build" / folder / digest.hexdigest()[:16] / name
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        scratch = made.with_suffix(f".{os.getpid()}")  # others may look for the file now
        subprocess.run([cc, *flags, *files, "-o", scratch, *link], check=True)
        os.replace(scratch, made)
    return made
