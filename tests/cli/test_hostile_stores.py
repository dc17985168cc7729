"""What is in the place of a folder of the store is refused by name, and not touched."""

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache import files
from pallasc.cache.evict import Limits
from pallasc.cache.format import FOLDERS
from pallasc.cache.inventory import stats
from pallasc.cache.manifests import Manifest
from pallasc.cache.prune import clear, prune, tidy
from pallasc.cache.store import Store
from pallasc.cache.uses import Session
from pallasc.cache.verify import verify
from pallasc.errors import PallascError

KEY = "ab" * 32
PROGRAM = Path(__file__).parent.parent / "cache" / "programs" / "planted.py"
NOTHING = Limits(max_bytes=1, grace_s=0, quarantine_s=0)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users")


def victim_in(folder: Path) -> Path:
    """Make a folder of somebody's, with names that a store would take for its own leftovers."""
    victim = folder / "home"
    (victim / "ab").mkdir(parents=True)
    for name in ("notes.txt", f"{files.host()}-1-1-00", KEY, f"ab/{KEY}", "digests", "index"):
        (victim / name).write_text(f"mine: {name}")
        os.utime(victim / name, (1000, 1000))
    return victim


def snapshot(folder: Path) -> list[tuple[str, int, int, bytes]]:
    return [
        (str(path.relative_to(folder)), path.lstat().st_mode, path.lstat().st_mtime_ns,
         path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    ]  # fmt: skip


def plant(place: Path, kind: str, victim: Path) -> None:
    """Put something of a kind where a folder of a store should be."""
    if place.is_dir():
        shutil.rmtree(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    make: dict[str, Callable[[], object]] = {
        "a symbolic link": lambda: place.symlink_to(victim),
        "a file": lambda: place.write_text("mine"),
        "a named pipe": lambda: os.mkfifo(place),
    }
    make[kind]()


@pytest.mark.parametrize(
    ("area", "kind"),
    [
        (FOLDERS[0], "a symbolic link"),
        ("man/ab", "a symbolic link"),
        ("cas", "a file"),
        ("packs", "a named pipe"),
    ],
)
def test_every_command_refuses_it_and_touches_nothing(
    run: Any, own: tuple[Path, Path], tmp_path: Path, area: str, kind: str
) -> None:
    spec, root = own
    victim, place = victim_in(tmp_path), root / "v1" / area
    before = snapshot(victim)
    plant(place, kind, victim)
    for command in (
        ("build", spec), ("build", spec, "--frozen"), ("list", spec),
        ("bundle", "create", spec, "-o", tmp_path / "x.pallasc"), ("inspect", spec),
        ("lock", spec), ("cache", "stats"), ("cache", "prune"),
        ("cache", "prune", "--size", "1B"), ("cache", "prune", "--all"),
        ("cache", "export", tmp_path / "x.pack"), ("cache", "import", tmp_path / "x.pack"),
    ):  # fmt: skip
        told = run(*command, "--store", root)
        assert (command, told.code) == (command, 5), told.err
        assert f"{place} is {kind}" in told.err
        assert snapshot(victim) == before
    told = run("cache", "verify", "--store", root, "--json")
    assert told.code == 5
    reason = f"{kind} replaces a folder of the store"
    found = json.loads(told.out)["findings"]
    assert reason in [each["reason"] for each in found if each["path"] == area]
    assert run("cache", "verify", "--repair", "--store", root).code == 0
    assert not os.path.lexists(place) or place.is_dir()
    assert run("cache", "prune", "--store", root).code == 0
    assert snapshot(victim) == before


def everything(root: Path) -> None:
    """Do all that a build and the care of a store do; faults of planted folders may be told."""
    store = Store(root)
    with Session(store) as session:
        store.put_artifact(KEY, {"kernels": []}, {"cubin": b"x" * 100})
        store.put_manifest(KEY, Manifest(action=KEY))
        session.hit(KEY)
    with store.single_flight(KEY, timeout_s=0):
        store.get_artifact(KEY, verify=True)
        store.get_manifest(KEY)
    later_ns = time.time_ns() + 40 * 86_400 * 10**9
    doings: list[Callable[[], object]] = [
        lambda: tidy(store, limits=NOTHING, now_ns=later_ns),
        lambda: prune(store, limits=NOTHING, now_ns=later_ns),
        lambda: stats(store),
        lambda: verify(store, repair=True),
        lambda: clear(store, now_ns=later_ns),
    ]
    for do in doings:
        with contextlib.suppress(PallascError):
            do()


@pytest.mark.parametrize(
    "place",
    ["locks/totals", f"locks/{KEY}", "index.sqlite", "stat/digests", "stat/totals",
     "stat/tidied", f"ac/ab/{KEY}", f"man/ab/{KEY}", f"uses/{KEY}",
     f"leases/{files.host()}-1-1-00", f"tmp/{files.host()}-1-1-00", "quarantine/x"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["link", "hard link", "pipe"])
def test_what_lies_in_the_place_of_a_file_is_not_touched(
    tmp_path: Path, place: str, kind: str
) -> None:
    root, victim = tmp_path / "store", tmp_path / "mine.txt"
    everything(root)
    (root / "v1").chmod(0o2775)  # shared: what is made there becomes the group's
    path = root / "v1" / place
    path.parent.mkdir(exist_ok=True, parents=True)
    path.unlink(missing_ok=True)
    victim.write_text("mine")
    victim.chmod(0o600)
    os.utime(victim, (1000, 1000))
    make: dict[str, Callable[[], object]] = {
        "link": lambda: path.symlink_to(victim),
        "hard link": lambda: os.link(victim, path),
        "pipe": lambda: os.mkfifo(path),
    }
    make[kind]()
    everything(root)
    assert victim.read_text() == "mine"
    assert stat.S_IMODE(victim.stat().st_mode) == 0o600


@as_root
def test_one_user_of_a_shared_store_cannot_have_another_remove_her_files() -> None:
    program = [sys.executable, str(PROGRAM)]
    told = json.loads(subprocess.run(program, capture_output=True, check=False).stdout)
    assert told["wrong"] == []
    assert told["tried"] == 2 * len(FOLDERS)
