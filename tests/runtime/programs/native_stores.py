"""Launch every artifact of a store by Python, by C and by the extension on the stand-in; compare.

Usage: native_stores.py STORE. Standard output gets one JSON object: how many artifacts, launches
and tensor maps there were, of how many the extension leaves the arrays to Python, and the keys of
those that ask the driver for something else than Python does. Where the extension was not built,
`extension` is 0. Artifacts over several devices are left out: neither launches them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import extension_comparison
import native_build
import native_comparison
import standin

from pallasc.cache.store import Store
from pallasc.runtime.native.extension import extension
from pallasc.runtime.native.library import open_library
from pallasc.specs.artifacts.artifact import Artifact


def main() -> None:
    """Compare everything that the store holds."""
    store = Store(Path(sys.argv[1]))
    driver, library = standin.load(), open_library(native_build.build())
    found = {"artifacts": 0, "launches": 0, "maps": 0, "extension": 0, "left": 0}
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
        found["maps"] += sum(map(len, c.maps))
        if python != c:
            different.append(file.name)
        if extension() is None:
            continue
        both = extension_comparison.compare(driver, artifact)
        found["left" if both is None else "extension"] += 1
        if both is not None and both[0] != both[1]:
            different.append(f"{file.name} by the extension")
    print(json.dumps({**found, "different": different}))


def _blob(store: Store, key: str) -> bytes:
    data = store.get_blob(key)
    assert data is not None, key
    return data


main()
