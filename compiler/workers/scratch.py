"""The temporary files of workers: a folder for each, in one of the build.

    <temporary folder>/pallasc-workers-<token>-<random>/<number>/

The token (`cache/process`) names the build's process, so that the next build can tell what a killed
build has left, and removes it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from pathlib import Path

from pallasc.cache import process
from pallasc.cache.leases import is_over
from pallasc.errors import ToolError

_PREFIX = "pallasc-workers-"
_SPLIT = re.compile(r"[\s,{}\udc80-\udcff]")


def temporary_folder() -> str:
    """Return the folder for temporary files, `/tmp` where Mosaic could not read its path.

    The device library lies there (`device_library`), and Mosaic names it in a line of options for
    LLVM's passes, which is split at blanks, commas and braces, and has to be UTF-8.
    """
    folder = os.path.realpath(tempfile.gettempdir())
    return "/tmp" if _SPLIT.search(folder) else folder


class Scratch:
    """The folder of one build, made when a worker first needs it."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._count = 0

    def make_folder(self) -> Path:
        """Make an empty folder for a worker.

        Raises:
            ToolError: that fails.
        """
        try:
            if self._folder is None:
                remove_left_folders()
                prefix = f"{_PREFIX}{process.token()}-"
                self._folder = Path(tempfile.mkdtemp(prefix=prefix, dir=temporary_folder()))
            self._count += 1
            made = self._folder / str(self._count)
            made.mkdir(mode=0o700)
        except OSError as error:
            raise ToolError(
                f"no folder for temporary files can be made: {error}",
                hint="Choose another folder with TMPDIR.",
            ) from error
        return made

    def remove(self) -> None:
        """Remove the folder with its contents."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def remove_left_folders() -> None:
    """Remove the folders of this user's killed builds."""
    with contextlib.suppress(OSError), os.scandir(temporary_folder()) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and _is_left(entry):
                shutil.rmtree(entry.path, ignore_errors=True)


def _is_left(entry: os.DirEntry[str]) -> bool:
    with contextlib.suppress(OSError):
        status = entry.stat(follow_symlinks=False)
        name = entry.name.removeprefix(_PREFIX)
        is_ours = entry.is_dir(follow_symlinks=False) and status.st_uid == os.geteuid()
        return is_ours and is_over(name, status.st_mtime_ns, now_ns=time.time_ns())
    return False
