"""The folder and the output of a worker, and how its end is put into words."""

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pallasc.compiler.workers import worker_process as failures
from pallasc.compiler.workers.worker_process import Log, make_folder
from pallasc.errors import ToolError

STACK = """before
Fatal Python error: Segmentation fault

Current thread 0x00007f8d774d9b80 (most recent call first):
  File "/usr/lib/python3.12/ctypes/__init__.py", line 525 in string_at
  File "/specs/kernel.py", line 4 in run
  File "/specs/caller.py", line 9 in call
{rest}
Extension modules: numpy._core._multiarray_umath, jaxlib.xla (total: 2)
after
"""


@pytest.mark.parametrize(
    ("output", "last"),
    [
        ("", ""),
        ("  ValueError: no\nERROR: no disk \nbye\n", ": ERROR: no disk"),
        ("terminate called after throwing an instance of 'std::bad_alloc'\n",
         ": terminate called after throwing an instance of 'std::bad_alloc'"),
        (STACK.format(rest=""), ""),
    ],
)  # fmt: skip
def test_the_last_word_of_a_dying_process_is_told(output: str, last: str) -> None:
    error = failures.died("the reader", "ended with exit code 1", output)
    assert error.message == f"the reader ended with exit code 1{last}"


# ---- the end of what it writes


@pytest.fixture
def log() -> Iterator[Log]:
    """Return a log that is cut at 1 MB."""
    log = Log(1_000_000)
    yield log
    log.close()


def write(log: Log, data: bytes) -> None:
    os.write(log.file.fileno(), data)


def test_the_tail_is_what_came_after_the_mark_as_far_as_it_is_text(log: Log) -> None:
    write(log, b"before\n")
    log.mark()
    assert log.tail(100) == ""
    write(log, "sp\u00e4ter\n".encode())
    assert (log.tail(100), log.tail(3)) == ("sp\u00e4ter\n", "er\n")
    write(log, b"\xff\xfeok\n")
    assert log.tail(5) == "\ufffd\ufffdok\n"


def test_a_long_log_is_cut_to_its_end_and_goes_on_there(log: Log) -> None:
    write(log, b"x" * 999_999)
    log.cut()
    assert log.size == 999_999
    write(log, b"first\n" * 500_000)
    write(log, b"last\n")
    log.cut()
    assert log.size < 300_000
    text = log.tail(1 << 20)
    assert re.match(r"\[3 MB of output are left out\]\n", text)
    assert text.endswith("first\nlast\n")
    write(log, b"later\n")
    assert log.tail(11) == "last\nlater\n"


# ---- its temporary files


def test_each_worker_has_a_folder_that_nobody_else_may_enter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first, second = make_folder(), make_folder()
    assert first != second
    assert first.parent == second.parent == tmp_path
    assert first.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(ToolError, match="no folder for temporary files can be made"):
        make_folder()
