"""A file of results while a run writes it: what is in it is on the disk before anything goes on."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from pallasc.errors import SpecError
from pallasc.specs.loading.tune_results import (
    Results,
    Start,
    add_record,
    line_of,
    parse_results,
    read_results,
)

_HINT = "Give -o another path."


class ResultsFile:
    """A file of results that a run adds to.

    Attributes:
        results: what it holds, always the same as reading it would give.
        resumed: it had results already.
    """

    def __init__(self, descriptor: int, results: Results, *, resumed: bool) -> None:
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size
        self._is_broken = False
        self.results = results
        self.resumed = resumed

    def add(self, record: Mapping[str, object]) -> None:
        """Write a record, and note it; after an error nothing is written any more.

        Raises:
            SpecError: it cannot be written.
        """
        if self._is_broken:
            return
        line = line_of(record)
        try:
            with _refusing(self.results.file):
                _append(self._descriptor, line)
        except SpecError:
            self._is_broken = True
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(line)
        add_record(record, self.results)


@contextmanager
def open_results(path: Path, start: Start) -> Iterator[ResultsFile]:
    """Give the file that a run writes: a new one, or that of a run before of the same job and GPU.

    What a cut left at its end is removed.

    Raises:
        SpecError: the file has something else, and stays as it is; another run writes it, or it
            cannot be written.
        CorruptError: it is damaged.
    """
    with _refusing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        with _refusing(path):
            _lock(descriptor, path)
            size = os.fstat(descriptor).st_size
        line = line_of(start.to_json())
        if size:
            before = read_results(path)
            check_start(before.start, start, str(path))
            resumed = True
        with _refusing(path):
            if size:
                os.ftruncate(descriptor, before.whole_bytes)
            _append(descriptor, line)
            _sync_folder(path)
        if size:
            results = before
            results.start, results.ended = start, ""
        else:
            results, resumed = parse_results(line, str(path)), False
        yield ResultsFile(descriptor, results, resumed=resumed)
    finally:
        os.close(descriptor)


def check_start(found: Start, wanted: Start, shown: str) -> None:
    """Check that a run may go on in a file: same job, same GPU.

    Raises:
        SpecError: the file has something else.
    """
    if found.job != wanted.job:
        raise SpecError(
            f"{shown} has results of another job: {found.job[:12]}…, and this one is "
            f"{wanted.job[:12]}….",
            hint="Give -o another path; nothing was changed.",
        )
    here, there = (f"{own.device} ({own.arch})" for own in (wanted, found))
    if here != there:
        raise SpecError(
            f"{shown} has results of another GPU: {there}, and this is {here}.",
            hint="Give -o another path for each GPU; nothing was changed.",
        )


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SpecError(
            f"another pallasc tune run is writing {path}.", hint="Wait for it, or give -o a path."
        ) from None


def _append(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
    os.fsync(descriptor)


def _sync_folder(path: Path) -> None:
    """Make sure that a new file is found again after a crash."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def _refusing(path: Path | str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SpecError(f"{path} cannot be written: {error.strerror}.", hint=_HINT) from error
