"""The end of what a worker writes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

from pallasc.compiler.workers.worker_process import Log


@pytest.fixture
def log() -> Iterator[Log]:
    """Return a log that is cut at 1 MB."""
    log = Log(1_000_000)
    yield log
    log.close()


def write(log: Log, data: bytes) -> None:
    os.write(log.file.fileno(), data)


def test_the_tail_is_what_came_after_the_mark(log: Log) -> None:
    write(log, b"before\n")
    log.mark()
    assert log.tail(100) == ""
    write(log, "später\n".encode())
    assert log.tail(100) == "später\n"
    assert log.tail(3) == "er\n"


def test_what_is_no_text_is_shown_as_far_as_it_goes(log: Log) -> None:
    write(log, b"\xff\xfeok\n")
    assert log.tail(100) == "\ufffd\ufffdok\n"


def test_a_log_that_is_short_is_not_cut(log: Log) -> None:
    write(log, b"x" * 999_999)
    log.cut()
    assert log.size == 999_999


def test_a_long_log_is_cut_to_its_end_and_goes_on_there(log: Log) -> None:
    write(log, b"first\n" * 500_000)
    write(log, b"last\n")
    log.cut()
    assert log.size < 300_000
    text = log.tail(1 << 20)
    assert re.match(r"\[2 MB of output are left out\]\n", text)
    assert text.endswith("first\nlast\n")
    write(log, b"later\n")
    assert log.tail(11) == "last\nlater\n"
