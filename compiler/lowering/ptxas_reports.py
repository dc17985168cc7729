"""The assembler's warnings about spills, from when it assembles for Mosaic.

Mosaic starts the first `ptxas` on PATH with `--warn-on-spills` and keeps only the cubin. So a small
script of that name comes first on PATH; it runs the assembler with the same arguments and saves its
standard error output under the digest of the cubin. `-v` would tell more, but ptxas writes its
options into the cubin.

Where the script cannot run (no shell, a file system mounted noexec), Mosaic takes the next `ptxas`
on PATH, which is the assembler itself, and there are no reports.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import threading
from collections.abc import Iterator
from pathlib import Path

_SCRIPT = """\
#!/bin/sh
# Runs the assembler and keeps what it says of the cubin in $3.
if [ "$2" != -o ] || [ ! -w {folder} ]; then exec {ptxas} "$@"; fi
said={folder}/$PPID-$$
{ptxas} "$@" 2>"$said"
code=$?
if [ -s "$said" ]; then cat "$said" >&2; fi
sha256sum "$3" >"$said.cubin" 2>/dev/null
exit $code
"""
_DIGEST_LENGTH = 64
_path_lock = threading.Lock()


class Reports:
    """The reports of a process that starts the assembler through `folder`.

    Args:
        ptxas: the assembler.
        folder: for the script, and for the reports in a folder below; the caller removes it.

    Attributes:
        process: the id of the process that starts the assembler.
    """

    def __init__(self, ptxas: Path, folder: Path) -> None:
        self.folder = folder
        self._reports = folder / "said"
        self._reports.mkdir()
        script = folder / "ptxas"
        places = {"folder": shlex.quote(str(self._reports)), "ptxas": shlex.quote(str(ptxas))}
        script.write_text(_SCRIPT.format(**places), encoding="utf-8")
        script.chmod(0o755)
        self.process = os.getpid()
        self._by_digest: dict[str, str] = {}

    def of(self, cubin: bytes) -> str | None:
        """Return what the assembler wrote about a cubin of this process, None if unknown."""
        self._read()
        return self._by_digest.get(hashlib.sha256(cubin).hexdigest())

    def _read(self) -> None:
        """Take in the reports that are complete."""
        with contextlib.suppress(OSError):
            for place in self._reports.glob(f"{self.process}-*.cubin"):
                digest = place.read_text(encoding="utf-8")[:_DIGEST_LENGTH]
                report = place.with_suffix("")
                if len(digest) == _DIGEST_LENGTH:
                    self._by_digest[digest] = report.read_text(encoding="utf-8", errors="replace")
                    place.unlink()
                    report.unlink()


@contextlib.contextmanager
def first_on_path(*folders: Path) -> Iterator[None]:
    """Put folders first on PATH for a while, also for C++ in this process."""
    front = os.pathsep.join([*map(str, folders), ""])
    with _path_lock:
        os.environ["PATH"] = front + os.environ.get("PATH", "")
    try:
        yield
    finally:
        with _path_lock:
            before, _, after = os.environ.get("PATH", "").partition(front)
            os.environ["PATH"] = before + after
