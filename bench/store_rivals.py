"""Other caches of compiled kernels with one small interface, for `bench/store.py`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol


class Rival(Protocol):
    """A cache of bytes under a key."""

    name: str

    def put(self, key: str, data: bytes) -> None:
        """Store bytes."""

    def get(self, key: str) -> bytes | None:
        """Return the bytes, or None for a miss."""

    def place(self, key: str) -> Path:
        """Return the file that holds the bytes."""


class Jax:
    """The file cache under `jax_compilation_cache_dir`, without a limit on its size."""

    name = "JAX"

    def __init__(self, folder: Path) -> None:
        from jax._src.lru_cache import LRUCache

        self._folder = folder
        self._cache = LRUCache(str(folder), max_size=-1)

    def put(self, key: str, data: bytes) -> None:
        """Store bytes."""
        self._cache.put(key, data)

    def get(self, key: str) -> bytes | None:
        """Return the bytes, or None for a miss."""
        found: bytes | None = self._cache.get(key)
        return found

    def place(self, key: str) -> Path:
        """Return the file that holds the bytes."""
        return self._folder / f"{key}-cache"


class Triton:
    """Triton's cache; as its compiler does, a hit is the file that it names, read."""

    name = "Triton"

    def __init__(self, folder: Path) -> None:
        os.environ["TRITON_CACHE_DIR"] = str(folder)
        from triton.runtime.cache import FileCacheManager

        self._manager: Callable[[str], Any] = FileCacheManager

    def put(self, key: str, data: bytes) -> None:
        """Store bytes."""
        self._manager(key).put(data, "kernel.cubin")

    def get(self, key: str) -> bytes | None:
        """Return the bytes, or None for a miss."""
        found = self._manager(key).get_file("kernel.cubin")
        return None if found is None else Path(found).read_bytes()

    def place(self, key: str) -> Path:
        """Return the file that holds the bytes."""
        return Path(self._manager(key).get_file("kernel.cubin"))


class CudaCore:
    """The program cache of cuda-core."""

    name = "cuda.core"

    def __init__(self, folder: Path) -> None:
        from cuda.core.utils import FileStreamProgramCache

        self._folder = folder
        self._cache = FileStreamProgramCache(folder)

    def put(self, key: str, data: bytes) -> None:
        """Store bytes."""
        self._cache[bytes.fromhex(key)] = data

    def get(self, key: str) -> bytes | None:
        """Return the bytes, or None for a miss."""
        found: bytes | None = self._cache.get(bytes.fromhex(key))
        return found

    def place(self, key: str) -> Path:
        """Return the file that holds the bytes: the newest one, so ask right after `put`."""
        paths = (path for path in self._folder.rglob("*") if path.is_file())
        return max(paths, key=lambda path: path.stat().st_mtime_ns)


def rivals(folder: Path) -> Iterator[Rival]:
    """Give each of the caches that are installed here."""
    kinds: tuple[Callable[[Path], Rival], ...] = (Jax, Triton, CudaCore)
    for number, make in enumerate(kinds):
        place = folder / f"rival{number}"
        place.mkdir()
        try:
            yield make(place)
        except ImportError:
            continue


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "bit flip": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
}


def serves_damaged(rival: Rival, damage: Callable[[bytes], bytes]) -> bool:
    """Tell whether a cache answers with other bytes than were put, after its file was damaged."""
    data = os.urandom(65_536)
    key = hashlib.sha256(data).hexdigest()
    rival.put(key, data)
    place = rival.place(key)
    place.write_bytes(damage(place.read_bytes()))
    return rival.get(key) not in (None, data)
