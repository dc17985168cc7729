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

_LIKE_BEFORE = ("cold", "repeats", "seed")
"""Settings that change what a time is of: rounds with others cannot be compared."""


class ResultsFile:
    """A file of results that a run adds to.

    Attributes:
        results: what it holds, always the same as reading it would give.
        resumed: it had results already.
        remark: what to know of the results that it had, "" for nothing.
        changed: this run has written to it.
    """

    def __init__(
        self,
        descriptor: int,
        results: Results,
        *,
        resumed: bool,
        remark: str = "",
        start: Start | None = None,
    ) -> None:
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size
        self._is_broken = False
        self._start = start
        self.results = results
        self.resumed = resumed
        self.remark = remark
        self.changed = start is None

    def add(self, record: Mapping[str, object]) -> None:
        """Write a record, and note it; after an error nothing is written any more.

        Raises:
            SpecError: it cannot be written.
        """
        if self._is_broken:
            return
        line = line_of(record)
        if self._start is not None:
            line = line_of(self._start.to_json()) + line
        try:
            with _refusing(self.results.file):
                _append(self._descriptor, line)
        except SpecError:
            self._is_broken = True
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(line)
        self.changed = True
        if self._start is not None:
            self.results.start, self.results.ended, self._start = self._start, "", None
        add_record(record, self.results)


@contextmanager
def open_results(path: Path, start: Start) -> Iterator[ResultsFile]:
    """Give the file that a run writes: a new one, or that of a run before of the same job and GPU.

    What a cut left at its end is removed; a file that was cut within its first line starts anew. A
    whole file gets its next start with the first record, and none where nothing is left to do.

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
            line = line_of(start.to_json())
            size = os.fstat(descriptor).st_size
            torn = _torn_start(descriptor, size, line)
        before, remark = None, ""
        if size and not torn:
            before = read_results(path)
            remark = check_start(before.start, start, str(path))
        if before is not None and not before.torn:
            yield ResultsFile(descriptor, before, resumed=True, remark=remark, start=start)
            return
        with _refusing(path):
            os.ftruncate(descriptor, before.whole_bytes if before else 0)
            _append(descriptor, line)
            _sync_folder(path)
        results = before or parse_results(line, str(path))
        results.start, results.ended = start, ""
        if torn:
            results.torn = f"{path} was cut after {size} bytes of its first line; it starts anew."
        yield ResultsFile(descriptor, results, resumed=before is not None, remark=remark)
    finally:
        os.close(descriptor)


def _torn_start(descriptor: int, size: int, line: bytes) -> bool:
    """Tell whether a file has nothing but the beginning of a first line, of a run on such a GPU."""
    head = line[: line.index(b'"check":"') + len(b'"check":"')]
    data = os.pread(descriptor, 2 * len(line), 0)
    is_whole = size > len(data) or b"\n" in data
    return bool(data) and not is_whole and data[: len(head)] == head[: len(data)]


def check_start(found: Start, wanted: Start, shown: str) -> str:
    """Check that a run may go on in a file: same job, same GPU, times of the same kind.

    Returns:
        What to know of the results that are there, "" for nothing.

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
    for name in _LIKE_BEFORE:
        before, now = (own.settings.get(name) for own in (found, wanted))
        if before != now:
            raise SpecError(
                f"{shown} has times taken {_option(name, before)}, and this run is "
                f"{_option(name, now)}: they cannot be compared.",
                hint="Give -o another path, or the options of the run before; nothing was changed.",
            )
    if found.driver != wanted.driver:
        before, now = (own.driver or "unknown" for own in (found, wanted))
        return f"{shown} has times taken with driver {before}, and this is {now}; both count."
    return ""


def _option(name: str, value: object) -> str:
    """Return an option as it was given: `with --repeats 8`, `without --cold`."""
    if isinstance(value, bool):
        return f"{'with' if value else 'without'} --{name}"
    return f"without --{name}" if value is None else f"with --{name} {value}"


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
