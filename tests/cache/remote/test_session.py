"""The process that makes a session's requests: it dies, stops, panics, or cannot be started."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pallasc.cache.remote.session import Failure, Objects, RemoteError, Session
from pallasc.cache.remote.settings import read_settings


def _is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        return "State:\tZ" not in status
    return False


def _ends(pid: int) -> bool:
    """Wait until a process has ended; return False if it is still running after a minute."""
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s and _is_running(pid):
        time.sleep(0.02)
    return not _is_running(pid)


def _pid(session: Session) -> int:
    assert session._process is not None
    return session._process.pid


def _session(url: str, *, is_build: bool = False) -> Session:
    settings = read_settings({}, url=url)
    assert settings is not None
    return Session(replace(settings, timeout_s=600.0), is_build=is_build)


@pytest.mark.parametrize("sending", [False, True])
def test_the_process_that_makes_requests_ends_with_its_session(sending: bool) -> None:
    """The session's process is killed: while it waits, and while it sends half a request."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-c", _STALLED, str(listener.getsockname()[1]), str(sending)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as stalled:
            assert stalled.stdout is not None
            pid = int(stalled.stdout.readline())
            stalled.kill()
            if sending:
                os.kill(pid, signal.SIGCONT)
            assert _ends(pid)


_STALLED = """
import os, signal, sys, time
from pallasc.cache.remote.session import Objects, Session
from pallasc.cache.remote.settings import read_settings
session = Session(read_settings({}, url=f"http://127.0.0.1:{sys.argv[1]}"), is_build=False)
if sys.argv[2] == "True":
    session.submit(Objects.get, "x", limit=1)
    time.sleep(1)
    os.kill(session._process.pid, signal.SIGSTOP)
    session.submit(Objects.put, "x", bytes(2**22))
    time.sleep(0.5)
else:
    session.submit(Objects.get, "x", limit=1)
print(session._process.pid, flush=True)
time.sleep(600)
"""


def test_a_command_whose_requests_die_says_so(tmp_path: Path) -> None:
    with _session(f"file://{tmp_path}") as session:
        assert session.result(session.submit(Objects.listed, "x")) == ([], [])
        os.kill(_pid(session), signal.SIGABRT)
        for _ in range(2):
            with pytest.raises(
                RemoteError, match="the process that makes requests ended"
            ) as caught:
                session.result(session.submit(Objects.listed, "x"))
            assert caught.value.failure is Failure.BROKEN


def test_a_build_does_not_wait_for_a_process_that_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pallasc.cache.remote.session.PATIENCE_S", 0.5)
    with _session(f"file://{tmp_path}", is_build=True) as session:
        pid = _pid(session)
        os.kill(pid, signal.SIGSTOP)
        puts = [session.submit(Objects.put, f"{n}", bytes(2**22)) for n in range(3)]
        with pytest.raises(RemoteError) as caught:
            session.result(puts[0])
        assert caught.value.failure is Failure.SLOW
        assert session.stats.lost_s < 5
        assert _ends(pid)


def test_what_python_prints_when_it_starts_does_not_disturb_replies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('hello')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with _session(f"file://{tmp_path}") as session:
        assert session.result(session.submit(Objects.listed, "x")) == ([], [])


def test_a_panic_of_the_library_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "obstore"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "store.py").write_text(
        "class PanicException(BaseException): pass\n"
        "def LocalStore(*args, **kwargs): raise PanicException\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with _session(f"file://{tmp_path}") as session:
        for _ in range(2):
            with pytest.raises(RemoteError, match="the request failed"):
                session.result(session.submit(Objects.listed, "x"))


@pytest.mark.parametrize("part", ["subprocess.Popen", "threading.Thread.start"])
def test_a_build_continues_if_its_requests_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise (OSError if part == "subprocess.Popen" else RuntimeError)("no more processes")

    monkeypatch.setattr(part, fail)
    with _session(f"file://{tmp_path}", is_build=True) as session:
        assert session.failed is not None
        assert session.failed.message.endswith("cannot be started: no more processes")
        assert session.submit(Objects.listed, "x").cancelled()
    with pytest.raises(RemoteError, match="cannot be started"):
        _session(f"file://{tmp_path}")
