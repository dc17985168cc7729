"""Single flight between processes."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
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
    command = [sys.executable, "-c", HOLDER, str(root), KEY]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    return process


def test_the_lock_is_held_and_leaves_nothing_even_after_an_error(store: Store) -> None:
    def fail(held: bool) -> None:
        assert held is True
        assert (store.folder / "locks" / KEY).exists()
        raise KeyError

    with pytest.raises(KeyError), store.single_flight(KEY) as held:
        fail(held)
    assert list((store.folder / "locks").iterdir()) == []


def test_a_living_holder_is_waited_for_and_then_gone_without(store: Store) -> None:
    process = hold(store.root)
    try:
        with store.single_flight(KEY, timeout_s=0.05) as held:
            assert held is False
        with store.single_flight("cd" * 32, timeout_s=0) as held:
            assert held is True
    finally:
        process.communicate()
    with store.single_flight(KEY, timeout_s=0) as held:
        assert held is True


def test_a_waiter_gets_the_lock_when_the_holder_ends_and_a_killed_one_holds_nothing(
    store: Store,
) -> None:
    process = hold(store.root)
    command = [sys.executable, "-c", HOLDER, str(store.root), KEY]
    waiter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    process.communicate()
    assert waiter.stdout is not None
    assert waiter.stdout.readline() == "True\n"
    waiter.kill()
    waiter.communicate()
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


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EIO])
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
