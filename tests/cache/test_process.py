"""Who a process is."""

from __future__ import annotations

import os
import signal

import pytest

from pallasc.cache import files as process


def test_a_child_has_a_token_of_its_own_and_is_dead_after_its_end() -> None:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, process.process_token().encode())
        signal.pause()
    token = os.read(read, 100).decode()
    alive = process.is_alive(token)
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # dead, but nobody has asked for it yet
    zombie = process.is_alive(token)
    os.waitpid(child, 0)
    os.close(read)
    os.close(write)
    assert token != process.process_token()
    assert (alive, zombie, process.is_alive(token)) == (True, False, False)


@pytest.mark.parametrize("token", ["0123456789ab-1-1", "", "1-2", "a-b-c"])
def test_what_another_machine_runs_is_not_known(token: str) -> None:
    assert process.is_alive(token) is None


def test_a_process_that_cannot_be_looked_at_is_not_taken_for_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    token = process.process_token()
    host, pid, start = token.split("-")
    assert process.is_alive(token) is True
    assert process.is_alive(f"{host}-{pid}-{int(start) + 1}") is False, "the number was given again"

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", refuse)
        patch.setattr(process, "host", lambda: host)
        assert process.is_alive(token) is None
        patch.setattr(process, "_tokens", {})
        assert process.process_token() == f"{host}-{os.getpid()}-0"
    assert process.is_alive(f"{host}-{os.getpid()}-0") is None


def test_a_process_that_proc_hides_is_not_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    host, pid, _ = process.process_token().split("-")
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)

    def hide(*arguments: object, **options: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(process, "host", lambda: host)
    monkeypatch.setattr("builtins.open", hide)
    assert process.is_alive(f"{host}-{pid}-1") is None
    assert process.is_alive(f"{host}-{child}-1") is False
    assert process.is_alive(f"{host}-{10**19}-1") is False
