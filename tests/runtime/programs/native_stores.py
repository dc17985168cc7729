"""Launch every artifact of a store through cuda-python and through C on the stand-in; compare.

Usage: native_stores.py STORE. Standard output gets one JSON object: how many artifacts and launches
there were, and the keys of those for which the two ask the driver for different things. Artifacts
for several devices are left out: neither launches them.
"""

import json
import sys
from pathlib import Path

import native_build
import native_comparison
import standin

from pallasc.cache.store import Store
from pallasc.runtime.native.library import open_library
from pallasc.specs.artifacts.artifact import Artifact


def main() -> None:
    """Compare everything that the store holds."""
    store = Store(Path(sys.argv[1]))
    driver, library = standin.load(), open_library(native_build.build())
    found = {"artifacts": 0, "launches": 0}
    different = []
    for file in sorted(store.root.glob("v*/ac/*/*")):
        stored = store.get_artifact(file.name)
        assert stored is not None, file
        artifact = Artifact(stored.artifact, lambda key, s=stored: s.blob(key) or _blob(store, key))
        if artifact.plan.device_count != 1:
            continue
        python, c = native_comparison.compare(driver, library, artifact)
        found["artifacts"] += 1
        found["launches"] += sum(
            call[0] == "cuLaunchKernelEx" for steps in c.steps for call in steps
        )
        if python != c:
            different.append(file.name)
    print(json.dumps({**found, "different": different}))


def _blob(store: Store, key: str) -> bytes:
    data = store.get_blob(key)
    assert data is not None, key
    return data


main()
