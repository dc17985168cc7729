"""What lies in the areas of a store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache.files import identity
from pallasc.cache.folders import Folders
from pallasc.cache.inventory import Scan
from pallasc.cache.manifests import Manifest
from pallasc.cache.store import Store
from pallasc.errors import ToolError

KEYS = ["00" * 32, "0f" * 32, "ff" * 32]


def test_all_files_of_an_area_are_given_sorted_with_their_identities(store: Store) -> None:
    for key in reversed(KEYS):
        store.put_manifest(key, Manifest())
    scan = Scan(store.folders)
    assert list(scan.area("man")) == [
        (key, identity(os.lstat(store.path("man", key)))) for key in KEYS
    ]
    assert (scan.faults, scan.foreign) == ([], [])


def test_a_missing_store_is_empty(store: Store) -> None:
    scan = Scan(store.folders)
    assert list(scan.area("cas")) == []
    assert scan.faults == []


@pytest.mark.parametrize(
    "path", ["README", "0g/x", "000/x", "00/notes", f"00/{KEYS[2]}", f"00/{KEYS[0].upper()[:-1]}A"]
)
def test_what_is_of_no_store_is_foreign(store: Store, path: str) -> None:
    place = store.folder / "man" / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("mine")
    scan = Scan(store.folders)
    assert list(scan.area("man")) == []
    assert scan.foreign in ([f"man/{path.partition('/')[0]}"], [f"man/{path}"])


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_only_regular_files_are_of_the_store(store: Store, kind: str) -> None:
    place = store.path("man", KEYS[0])
    place.parent.mkdir(parents=True)
    make: dict[str, Any] = {
        "folder": lambda: place.mkdir(),
        "link": lambda: place.symlink_to("x"),
        "pipe": lambda: os.mkfifo(place),
    }
    make[kind]()
    scan = Scan(store.folders)
    assert list(scan.area("man")) == []
    assert scan.foreign == [f"man/{KEYS[0][:2]}/{KEYS[0]}"]


def test_a_folder_that_cannot_be_listed_is_told(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_manifest(KEYS[0], Manifest())
    store.put_manifest(KEYS[2], Manifest())
    real = os.scandir

    def refuse(path: Any) -> Any:
        if os.readlink(f"/proc/self/fd/{path}").endswith("/ff"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    scan = Scan(store.folders)
    assert [name for name, _ in scan.area("man")] == KEYS[:1]
    (fault,) = scan.messages()
    assert fault == f"{store.folder / 'man' / 'ff'}: cannot be listed: Permission denied"


def test_a_folder_that_is_none_is_no_store(tmp_path: Path) -> None:
    Folders(tmp_path).check(readable=True)
    Folders(tmp_path / "missing").check(readable=True)
    (tmp_path / "file").write_text("mine")
    Folders(tmp_path / "file" / "v1").check()
    with pytest.raises(ToolError, match=r"the store .*/file/v1 cannot be read: Not a directory"):
        Folders(tmp_path / "file" / "v1").check(readable=True)
