"""Errors for a worker that gave no answer: how it died, or which limit stopped it."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from pallasc.cache.format import size
from pallasc.errors import CompileError, Location, PallascError

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in .+$')
_STACK = re.compile(r"^(Current t|T)hread 0x[0-9a-f]+ .*\(most recent call first\):$")
_SAYS_WHY = re.compile(r"ERROR|rror:|bad_alloc|KeyboardInterrupt")
_SAYS_NOTHING = re.compile(r"^(Fatal Python error|Extension modules): ")
_MOST_FRAMES = 8


def exit_in_words(code: int) -> str:
    """Return how a process ended, from its exit code; a negative one is a signal."""
    if code >= 0:
        return f"ended with exit code {code}"
    if code == -signal.SIGKILL:
        return "was killed by SIGKILL (perhaps out of memory)"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def died(doing: str, ending: str, output: str) -> CompileError:
    """Return the error for a worker that died, with the last error that it wrote."""
    lines = [line.strip() for line in output.splitlines()]
    errors = [line for line in lines if _SAYS_WHY.search(line) and not _SAYS_NOTHING.match(line)]
    return CompileError(f"{doing} {ending}{f': {errors[-1]}' if errors else ''}", kind="died")


def too_slow(doing: str, timeout_s: float) -> CompileError:
    """Return the error for a worker that was stopped because it took too long."""
    return CompileError(
        f"{doing} took longer than {timeout_s:g} s (--timeout) and was stopped",
        hint="If it needs more time, raise --timeout.",
        kind="timeout",
    )


def never_ready(doing: str, limit_s: float) -> CompileError:
    """Return the error for a worker that was stopped before it could begin with its task."""
    return CompileError(
        f"{doing} was not ready after {limit_s:g} s and was stopped",
        hint="Give this machine less to do at a time (--jobs), or raise --timeout.",
        kind="timeout",
    )


def too_large(doing: str, held_bytes: int, limit_bytes: int) -> CompileError:
    """Return the error for a worker that was stopped because it held too much memory."""
    return CompileError(
        f"{doing} held {size(held_bytes, limit_bytes)} of memory, more than the "
        f"{size(limit_bytes)} that one "
        "may hold (--memory), and was stopped",
        hint="If it needs that much, raise --memory, with fewer --jobs where memory is short.",
        kind="memory",
    )


def explain_memory(error: PallascError, limit_bytes: int) -> None:
    """Add to an error the limit at which the kernel refused memory."""
    error.hint = error.hint or (
        f"One compiling process may hold {size(limit_bytes)} of memory; --memory sets how much."
    )


def garbled(doing: str) -> CompileError:
    """Return the error for a worker whose answer was garbled or is not an answer."""
    return CompileError(
        f"the answer of {doing} was lost: something in it writes to file descriptors that it did "
        "not open",
        kind="garbled",
    )


def place(output: str, folders: Sequence[str]) -> Location | None:
    """Return the innermost place below `folders` in the stack that a dying process printed."""
    for line in output.splitlines():
        frame = _FRAME.match(line)
        if frame and frame["file"].startswith(tuple(f"{f.rstrip('/')}/" for f in folders if f)):
            return Location(frame["file"], int(frame["line"]))
    return None


def shortened(output: str) -> str:
    """Return output without the outer frames of long stacks and the list of extension modules."""
    shown, frames = [], 0
    for line in output.splitlines(keepends=True):
        frames = frames + 1 if _FRAME.match(line) else 0
        if frames == _MOST_FRAMES + 1:
            shown.append("  …\n")
        if frames <= _MOST_FRAMES and not line.startswith("Extension modules: "):
            shown.append(line)
    return "".join(shown)
