"""Single flight between processes."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pallasc.cache.store import Store

KEY = "ab" * 32
HOLDER = """
import sys
from pallasc.cache.store import Store
with Store(sys.argv[1]).single_flight(sys.argv[2]) as held:
    print(held, flush=True)
    sys.stdin.read()
"""


def hold(root: Path) -> subprocess.Popen[str]:
    """Start a process that holds the lock of KEY until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(root), KEY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.communicate()


def test_the_lock_is_held_and_leaves_nothing(store: Store) -> None:
    with store.single_flight(KEY) as held:
        assert held is True
        assert (store.folder / "locks" / KEY).exists()
    assert list((store.folder / "locks").iterdir()) == []
    with store.single_flight(KEY) as held:
        assert held is True


def test_a_living_holder_is_waited_for_and_then_gone_without(store: Store) -> None:
    process = hold(store.root)
    try:
        with store.single_flight(KEY, timeout_s=0.05) as held:
            assert held is False
        with store.single_flight("cd" * 32, timeout_s=0) as held:
            assert held is True
    finally:
        end(process)
    with store.single_flight(KEY, timeout_s=0) as held:
        assert held is True


def test_a_waiter_gets_the_lock_when_the_holder_ends(store: Store) -> None:
    process = hold(store.root)
    waiter = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(store.root), KEY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    end(process)
    told, _ = waiter.communicate(timeout=300)
    assert told == "True\n"


def test_a_killed_holder_holds_nothing(store: Store) -> None:
    process = hold(store.root)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (store.folder / "locks" / KEY).exists()
    with store.single_flight(KEY, timeout_s=0) as held:
        assert held is True
    assert not (store.folder / "locks" / KEY).exists()


def test_a_lock_file_removed_under_the_holder_harms_nobody(store: Store) -> None:
    with store.single_flight(KEY) as first:
        (store.folder / "locks" / KEY).unlink()
        with store.single_flight(KEY, timeout_s=0) as second:
            assert (first, second) == (True, True)
        (store.folder / "locks" / KEY).touch()
    assert (store.folder / "locks" / KEY).exists(), "the file of another holder is not removed"


def test_a_lock_on_a_file_that_its_last_holder_removed_does_not_count(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock
    removals = iter([store.folder / "locks" / KEY] * 2)

    def removed_before_it_was_got(descriptor: int, operation: int) -> None:
        if (path := next(removals, None)) is not None:
            path.unlink()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", removed_before_it_was_got)
    with store.single_flight(KEY) as held:
        assert held is True
        assert (store.folder / "locks" / KEY).exists()
    assert next(removals, None) is None


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EIO, errno.EBADF])
def test_a_file_system_without_locks_is_worked_on_without(
    store: Store, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    gc.collect()  # which closes the folders of other stores
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(fcntl, "flock", refuse)
    for _ in range(3):
        with store.single_flight(KEY) as held:
            assert held is False
    assert len(store.warnings) == 1
    assert os.strerror(number) in store.warnings[0]
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_error_inside_releases_the_lock(store: Store) -> None:
    with pytest.raises(KeyError), store.single_flight(KEY):
        raise KeyError
    with store.single_flight(KEY, timeout_s=0) as held:
        assert held is True
