"""Use a store that may only be read, without the rights of root, and say what came of it.

Usage: read_only.py ROOT. Prints JSON.
"""

import json
import os
import sys
from pathlib import Path

from content import is_right, key, publish

from pallasc.cache.evict import Limits
from pallasc.cache.inventory import stats
from pallasc.cache.manifests import Manifest
from pallasc.cache.prune import prune
from pallasc.cache.store import Store
from pallasc.cache.uses import Session
from pallasc.cache.verify import verify

NOBODY = 65534


def main() -> None:
    """Publish something, take all rights to write, read what is there and write what is not."""
    root = Path(sys.argv[1])
    publish(Store(root), 1)
    for folder, _, _ in os.walk(root):
        os.chmod(folder, 0o555)
    if os.geteuid() == 0:
        os.chmod(root.parent, 0o755)
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    store = Store(root)
    found = store.get_artifact(key(1), verify=True)
    result = store.put_artifact(key(2), {}, {"cubin": b"other"})
    manifest = store.put_manifest(key(2), Manifest())
    with store.single_flight(key(3)) as held, Session(store) as session:
        session.hit(key(1))
    (warning,) = store.warnings
    told = {
        "hit": found is not None and is_right(found, 1),
        "stored": result.stored,
        "manifest_stored": manifest.stored,
        "reason": result.reason,
        "locked": held,
        "warning": warning,
        "entries": stats(store).entries,
        "pruned": prune(store, limits=Limits(max_bytes=0, grace_s=0)).records,
        "sound": verify(store, repair=True).ok,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
