"""How the end of a worker is put into words."""

from __future__ import annotations

import signal

import pytest

from pallasc.compiler.workers import worker_process as failures
from pallasc.errors import Location

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
    ("code", "words"),
    [
        (0, "ended with exit code 0"),
        (7, "ended with exit code 7"),
        (-signal.SIGKILL, "was killed by SIGKILL (perhaps out of memory)"),
        (-signal.SIGSEGV, "was killed by SIGSEGV"),
        (-(signal.SIGRTMIN + 2), f"was killed by signal {signal.SIGRTMIN + 2}"),
    ],
)
def test_an_exit_code_is_put_into_words(code: int, words: str) -> None:
    assert failures.exit_in_words(code) == words


@pytest.mark.parametrize(
    ("output", "last"),
    [
        ("", ""),
        ("all is well\n", ""),
        ("  ValueError: no\nERROR: no disk \nbye\n", ": ERROR: no disk"),
        ("terminate called after throwing an instance of 'std::bad_alloc'\n",
         ": terminate called after throwing an instance of 'std::bad_alloc'"),
        (STACK.format(rest=""), ""),
    ],
)  # fmt: skip
def test_the_last_word_of_a_dying_process_is_told(output: str, last: str) -> None:
    error = failures.died("the reader", "ended with exit code 1", output)
    assert error.message == f"the reader ended with exit code 1{last}"


def test_the_place_is_the_innermost_in_the_users_folders() -> None:
    output = STACK.format(rest="")
    assert failures.place_in_stack(output, ["/other", "/specs/"]) == Location("/specs/kernel.py", 4)
    assert failures.place_in_stack(output, ["/spec", ""]) is None
    assert failures.place_in_stack("", ["/specs"]) is None
