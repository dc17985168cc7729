"""Fixtures of the tests of the store."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from commands import output_of

from pallasc.cache import files
from pallasc.cache.folders import Folders
from pallasc.cache.format import sha256
from pallasc.cache.store import Store

sys.path.insert(0, str(Path(__file__).parent / "programs"))
sys.path.insert(0, str(Path(__file__).parent / "remote"))
sys.path.insert(0, str(Path(__file__).parent))

import content  # noqa: F401  (tests import these by their bare names)
import servers  # noqa: F401
import stored  # noqa: F401
import variants  # noqa: F401

del sys.path[:3]

PROGRAMS = Path(__file__).parent / "programs"
IN_MEMORY = Path("/dev/shm")

Publish = Callable[..., str]
Unreadable = Callable[[str], AbstractContextManager[None]]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store in a folder that does not exist yet."""
    return Store(tmp_path / "store")


@pytest.fixture
def fast_folder(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder in memory, if possible, so that syncing costs nothing."""
    if not os.access(IN_MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as name:
        yield Path(name)


@pytest.fixture
def publish(store: Store) -> Publish:
    """Return a function that publishes an artifact with given bytes and time of last use (s)."""

    def put(key: str, *, used_s: float, blobs: dict[str, bytes] | None = None) -> str:
        parts = {"cubin": key[:8].encode() * 100} if blobs is None else blobs
        assert store.put_artifact(key, {"kernels": [{"cubin": "cubin"}]}, parts).stored
        for data in parts.values():
            os.utime(store.path("cas", sha256(data)), (used_s, used_s))
        os.utime(store.path("ac", key), (used_s, used_s))
        return key

    return put


@pytest.fixture
def run_program() -> Callable[..., str]:
    """Return a function that runs a program of this folder and returns its output."""

    def run(name: str, *arguments: object, preload: Path | None = None) -> str:
        command = [sys.executable, str(PROGRAMS / name), *map(str, arguments)]
        environment = os.environ | ({} if preload is None else {"LD_PRELOAD": str(preload)})
        return output_of(command, timeout=900, env=environment)

    return run


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> Unreadable:
    """Return a context in which files cannot be read if their path contains a text."""

    @contextlib.contextmanager
    def unreadable(part: str) -> Iterator[None]:
        real = files.read

        def refuse(folders: Folders, place: str, **options: Any) -> files.Content | None:
            if part in place:
                raise OSError(5, "Input/output error", str(folders.path(place)))
            return real(folders, place, **options)

        with monkeypatch.context() as patch:
            patch.setattr(files, "read", refuse)
            yield

    return unreadable
