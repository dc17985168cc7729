"""Reading and publishing single files, single flight, and which processes live."""

import errno
import fcntl
import gc
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stored import KEY

from pallasc.cache import files
from pallasc.cache import files as process
from pallasc.cache.folders import Folders
from pallasc.cache.store import Store


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """Return the folders of a store whose version's folder is the temporary one."""
    return Folders(tmp_path)


def test_read_refuses_a_file_beyond_the_limit_without_reading_it(
    tmp_path: Path, folders: Folders
) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(2**40)
    found = files.read(folders, "large", limit_bytes=1000)
    assert found is not None
    assert (found.data, found.fault) == (b"", f"{2**40:,} bytes is over the limit of 1,000")


def test_a_file_is_durable_before_it_has_its_name(
    tmp_path: Path, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "tmp").mkdir()
    events: list[str] = []
    fsync, link = os.fsync, os.link

    def note_fsync(descriptor: int) -> None:
        events.append(f"sync {os.path.basename(os.readlink(f'/proc/self/fd/{descriptor}'))}")
        fsync(descriptor)

    def note_link(source: str, target: str, **options: Any) -> None:
        events.append(f"link {source}")
        link(source, target, **options)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "link", note_link)
    with files.temporary(folders, b"x") as place:
        files.publish_first(folders, place, "a/name")
    name = place.rpartition("/")[2]
    assert events == [f"sync {name}", f"link {name}"]
    with files.temporary(folders, b"second") as place:
        assert not files.publish_first(folders, place, "a/name")
    assert (tmp_path / "a" / "name").read_bytes() == b"x"


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
