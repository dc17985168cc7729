"""One user of a shared store plants links and folders of his own; another one looks after it.

Usage: planted.py, as root. Prints JSON: how many were tried, and everything that was wrong.
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from content import publish
from shared import ANNE, BERT, GROUP, run

from pallasc.cache import files
from pallasc.cache.evict import Limits
from pallasc.cache.format import FOLDERS
from pallasc.cache.prune import clear, prune
from pallasc.cache.store import Store
from pallasc.errors import CorruptError


def care(store: Store, place: Path) -> list[str]:
    """Look after the store as a user would: each attempt must be refused by name."""
    wrong = []
    for do in (lambda: prune(store, limits=Limits(max_bytes=1, grace_s=0)), lambda: clear(store)):
        try:
            do()
            wrong.append(f"{place} was not refused")
        except CorruptError as error:
            if str(place) not in error.message:
                wrong.append(f"{place} is not named: {error}")
    return wrong


def main() -> None:
    """Plant each area as a link to Anne's home, and as a folder of a stranger."""
    wrong, tried = [], 0
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        home, root = Path(name) / "anne", Path(name) / "shared"
        home.mkdir()
        (home / f"{files.host()}-1-1-00").write_text("mine")
        for path in (home, *home.iterdir()):
            os.chown(path, ANNE, ANNE)
        before = sorted(path.name for path in home.iterdir())
        root.mkdir()
        os.chown(root, -1, GROUP)
        root.chmod(0o2775)
        wrong += run(root, ANNE, lambda store: publish(store, 1) and None)
        stranger = 64_003
        for area in FOLDERS:
            for kind in ("link", "folder"):
                place, aside = root / "v1" / area, root / "aside"
                if place.exists():
                    place.rename(aside)
                if kind == "link":
                    place.symlink_to(home)
                    os.lchown(place, BERT, GROUP)
                else:
                    place.mkdir()
                    os.chown(place, stranger, stranger)
                wrong += run(root, ANNE, lambda store, place=place: care(store, place))
                tried += 1
                place.unlink() if kind == "link" else shutil.rmtree(place)
                if aside.exists():
                    aside.rename(place)
                if sorted(path.name for path in home.iterdir()) != before:
                    wrong.append(f"{area}: something of Anne's is gone")
    print(json.dumps({"tried": tried, "wrong": wrong}))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
