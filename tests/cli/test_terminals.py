"""The live display on a real terminal of the operating system, read by a model."""

from __future__ import annotations

import codecs
import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "programs" / "pretended_build.py"
DEADLINE_S = 600
CUT = re.compile(r"\x1b(\[[\d;]*)?\Z")
"""A sequence whose end is still to be read."""


class RealTerminal:
    """The pretended build in a process of its own, on a terminal of the operating system."""

    def __init__(self, columns: int, environment: dict[str, str], folder: Path, paper: Any) -> None:
        self._outer, inner = os.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._text = self._rest = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._paper = paper(columns)
        self._process = subprocess.Popen(
            [sys.executable, "-P", PROGRAM, folder / "orders"],
            env=environment,
            cwd=folder,
            stderr=inner,
        )
        os.close(inner)

    @property
    def raw(self) -> str:
        return self._text

    def shown(self) -> list[str]:
        while select.select([self._outer], [], [], 0.02)[0]:
            try:
                piece = os.read(self._outer, 65536)
            except OSError:  # the other end is closed
                break
            text = self._decoder.decode(piece)  # it may end within a letter, or a sequence
            self._text += text
            text = self._rest + text
            whole = CUT.sub("", text)
            self._rest = text[len(whole) :]
            self._paper.feed(whole)
        return self._paper.shown

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._outer)


Open = Callable[..., tuple[Any, Callable[[str], None]]]


@pytest.fixture
def open_build(tmp_path: Path, paper: Any) -> Iterator[Open]:
    """Start the pretended build on a terminal; return that, and how to order the next step."""
    (tmp_path / "kernels.py").write_text("def add(x):\n    return x.no\n")
    os.mkfifo(tmp_path / "orders")
    with ExitStack() as opened:

        def start(columns: int, **environment: str) -> Any:
            kept = ("PATH", "PYTHONPATH", "HOME", "LD_LIBRARY_PATH", "PYTHONDONTWRITEBYTECODE")
            here = {name: os.environ[name] for name in kept if name in os.environ}
            here |= {"TERM": "xterm", "LANG": "C.UTF-8", **environment}
            terminal = RealTerminal(columns, here, tmp_path, paper)
            opened.callback(terminal.close)
            # For reading too, since that does not wait for the other end.
            orders = os.open(tmp_path / "orders", os.O_RDWR)
            opened.callback(os.close, orders)

            def order(text: str) -> None:
                os.write(orders, f"{text}\n".encode())

            return terminal, order

        yield start


def _wait(terminal: Any, wanted: Callable[[list[str]], bool]) -> list[str]:
    """Return what stands on the terminal as soon as it is what is wanted, or at the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not wanted(shown := terminal.shown()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return shown


def _wait_for(terminal: Any, lines: list[str]) -> None:
    assert _wait(terminal, lambda shown: shown == lines) == lines


def _wait_for_end(terminal: Any, text: str) -> list[str]:
    """Return what stands on the terminal once its last line has a text in it."""
    shown = _wait(terminal, lambda lines: text in "".join(lines[-1:]))
    assert text in shown[-1]
    return shown


def _ids(columns: int, *numbers: int) -> list[str]:
    """Return ids as the status names them: without their end where there is no room for it."""
    name = "a_matmul_whose_name_alone_is_long[m={},n=4096,dtype=bf16,activation=silu_and]@h100-sxm"
    ids = [name.format(number) for number in numbers]
    return [f"{own[:69]}…" if columns == 80 else own for own in ids]


def _first_status(columns: int) -> list[str]:
    return [
        f"{'━' * 30}{'─' * 10}  30/40  75 %",
        "30 hits, 2 running",
        *(f"  1 s  {identifier}" for identifier in _ids(columns, 30, 31)),
    ]


def test_a_build_on_a_terminal_scrolls_by_above_its_status(open_build: Open) -> None:
    terminal, order = open_build(200)
    order("go on")
    _wait_for(terminal, _first_status(200))
    assert "\x1b[36m30 hits\x1b[" in terminal.raw
    order("go on")
    order("go on")
    first, second, third = _ids(200, 30, 31, 32)
    results = [
        f"compiled  {first}  1.50 s, 9,512 bytes, 40 registers",
        f"failed    {second}",
        "    kernels.py:2: ValueError: no kernel for",
        "    an odd shape",
        "        2 | return x.no",
    ]
    status = [
        f"{'━' * 32}{'─' * 8}  32/40  80 %  about 10 s left",
        "30 hits, 1 compiled, 1 failed, 1 running",
        f"  1 s  {third}",
    ]
    _wait_for(terminal, results + status)
    order("go on")
    shown = _wait_for_end(terminal, "40 variants")
    assert shown[:6] == [*results, "failed:"]
    assert shown[-1].startswith("40 variants in 1.2 s: 30 hits (93 %), 1 compiled, 1 failed")


def test_an_interrupt_removes_the_status_and_says_what_is_left(open_build: Open) -> None:
    terminal, order = open_build(80, NO_COLOR="1")
    order("go on")
    _wait_for(terminal, _first_status(80))
    assert re.search(r"\x1b\[[\d;]*m", terminal.raw) is None
    terminal.interrupt()
    shown = _wait_for_end(terminal, "40 variants")
    assert shown[0].removeprefix("^C") == "interrupted: 10 of 40 left; finished variants are kept:"
    assert shown[-1] == "40 variants in 1.2 s: 30 hits (100 %), 10 skipped, 60 s saved"


def test_an_exception_removes_the_status(open_build: Open) -> None:
    terminal, order = open_build(80)
    order("go on")
    _wait_for(terminal, _first_status(80))
    order("crash")
    shown = _wait_for_end(terminal, "it crashed.")
    assert shown[0] == "Traceback (most recent call last):"
    assert "running" not in "".join(shown)


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"CI": "true", "NO_COLOR": "1"}])
def test_a_dumb_terminal_and_a_ci_log_get_whole_lines(
    environment: dict[str, str], open_build: Open
) -> None:
    terminal, order = open_build(200, **environment)
    for _ in range(4):
        order("go on")
    shown = _wait_for_end(terminal, "40 variants")
    assert "\x1b" not in terminal.raw
    found = re.findall(r"^\[ ?\d+/40\] (\w+) ", "\n".join(shown), re.MULTILINE)
    assert [word for word in found if word != "compiling"] == ["hit"] * 30 + ["compiled", "failed"]
