"""What may travel to other machines: artifacts whose inputs other machines have, too.

Request keys are the same on every machine with the same toolchain, wherever the spec lies. What
was read is checked wherever an entry is used, so that one of another machine is never used
wrongly. But an entry that depends on a path of this machine alone is of no use elsewhere, and
would only tell others what is here. So an entry stays where it was made if it

* read a file, folder or link outside the folder of its spec and outside of installed packages;
  labels of such reads have absolute paths (`reads`),
* tested for something there, except in the folders of `_EVERYWHERE`, which every machine has,
* has an entry point in a file that its spec names with an absolute path.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from pallasc.cache.manifests import Manifest
from pallasc.compiler.inputs.reads import IS, name_of

_EVERYWHERE = ("/dev/", "/etc/", "/proc/", "/sys/", "/usr/", "/bin/", "/lib")


def why_not_portable(manifest: Manifest) -> str:
    """Return why an entry is of no use on other machines, "" if it is."""
    for label in _elsewhere(manifest.files):
        return f"its spec names {name_of(label)} by an absolute path"
    for label in _elsewhere(manifest.opened):
        verb = "tests for" if label.startswith(IS) else "reads"
        return f"it {verb} {name_of(label)}, outside of the folder of its spec"
    return ""


def _elsewhere(labels: Iterable[str]) -> list[str]:
    """Return the labels of paths that other machines need not have, sorted."""
    return sorted(label for label in labels if _is_elsewhere(label))


def _is_elsewhere(label: str) -> bool:
    path = label.partition(":")[2]
    return os.path.isabs(path) and not (label.startswith(IS) and path.startswith(_EVERYWHERE))
