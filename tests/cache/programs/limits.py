"""Use a store under a limit that the kernel sets, and say what came of it.

Usage: limits.py CASE, one of `read-only`, `file-size`, `open-files`. Prints JSON.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from content import artifact, blobs, is_right, key, publish

from pallasc.cache.evict import Limits
from pallasc.cache.inventory import stats
from pallasc.cache.manifests import Manifest
from pallasc.cache.prune import prune
from pallasc.cache.store import Store
from pallasc.cache.uses import Session
from pallasc.cache.verify import verify

NOBODY = 65534


def use(root: Path) -> dict[str, Any]:
    """Read what is there (number 1), write what is not (number 2), and tell."""
    store = Store(root)
    found = store.get_artifact(key(1), verify=True)
    result = store.put_artifact(key(2), artifact(2), blobs(2))
    manifest = store.put_manifest(key(2), Manifest())
    with store.single_flight(key(3)) as held:
        pass
    with Session(store) as session:
        session.hit(key(1))
    return {
        "hit": found is not None and is_right(found, 1),
        "stored": result.stored,
        "manifest_stored": manifest.stored,
        "reason": result.reason,
        "locked": held,
        "warnings": store.warnings,
        "entries": stats(store).entries,
        "pruned": prune(store, limits=Limits(max_bytes=0, grace_s=0)).records,
        "sound": verify(store, repair=True).ok,
    }


def read_only(root: Path) -> None:
    """Take all rights to write, root's too."""
    for folder, _, _ in os.walk(root):
        os.chmod(folder, 0o555)
    if os.geteuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def file_size(root: Path) -> None:
    """Let no file grow beyond 4,096 bytes: writes are short, then fail with EFBIG."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))


def open_files(root: Path) -> None:
    """Let no further file be opened: EMFILE."""
    descriptor = os.open(root, os.O_RDONLY)
    os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptor, descriptor))


CASES: dict[str, Callable[[Path], None]] = {
    "read-only": read_only,
    "file-size": file_size,
    "open-files": open_files,
}


def main() -> None:
    """Run one case in a child, which may lose rights that the cleaning up needs."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        publish(Store(root), 1)
        sys.stdout.flush()
        child = os.fork()
        if not child:
            CASES[sys.argv[1]](root)
            print(json.dumps(use(root)), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        for folder, _, _ in os.walk(root):
            os.chmod(folder, 0o755)


if __name__ == "__main__":
    main()
