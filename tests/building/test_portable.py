"""Artifacts travel: which keys two machines share, and what stays where it was made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pallasc.cache.manifests import Manifest
from pallasc.cache.store import Store
from pallasc.compiler.inputs.manifest import why_not_portable
from pallasc.specs.loading.lock import Lock, read_lock

SPEC = """\
schema: 1
targets: [h100-sxm, b200]
kernels:
  - name: tiled
    entry: kernels.py:tiled
    args: {x: "f32[1024, 4096]"}
    static: {table: {$call: "tables:table", rows: 3}}
    files: [tiles.json]
"""
KERNELS = '''\
"""A kernel with a helper, a data file, a table that it finds itself, and a constant of numpy's."""

import json
import os
import warnings
from pathlib import Path

import numpy as np
from tables import blocks

from pallasc.specs.library.elementwise import add

HERE = Path(__file__).parent
SEEN = {name for name in ("a", "b", "c", "d")}


def tiled(x, *, table):
    tiles = json.loads((HERE / "tiles.json").read_text())
    found = sorted(os.listdir(HERE / "more"))
    order = ",".join(SEEN)  # by the hash seed
    warnings.warn(f"{len(found)} more, {os.getcwd() == str(HERE)}, {order}")
    factor = np.float32(np.cos(len(found)) + len(os.environ.get("HOME", "")) * 0)
    return add(x, x * factor, block_size=blocks(tiles["block"], table))
'''
TABLES = '''\
"""What the kernel calls."""


def table(rows):
    return rows


def blocks(size, table):
    return size if table == 3 else 2 * size
'''


def write_project(folder: Path) -> Path:
    (folder / "more").mkdir(parents=True)
    (folder / "more" / "one.txt").touch()
    (folder / "tiles.json").write_text('{"block": 2048}')
    (folder / "tables.py").write_text(TABLES)
    (folder / "kernels.py").write_text(KERNELS)
    (folder / "spec.yaml").write_text(SPEC)
    return folder / "spec.yaml"


STARTS = "import pallasc, subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)"


def works(*command: str) -> bool:
    """Tell whether pallasc can be imported there, and start processes."""
    ran = subprocess.run(
        [*command, sys.executable, "-P", "-c", STARTS], capture_output=True, check=False
    )
    return ran.returncode == 0


def other_machine() -> list[str]:
    """Return a command that runs another as on another machine, as far as this one allows it."""
    name = ["unshare", "--uts", "--", "sh", "-c", 'hostname elsewhere && exec "$@"', "sh"]
    user = ["unshare", "--user", "--map-user=1234", "--map-group=1234", "--"]
    core = ["taskset", "-c", str(min(os.sched_getaffinity(0)))]
    command: list[str] = []
    for part in (name, user, core):
        if shutil.which(part[0]) and works(*command, *part):
            command += part
    return command


def locked(
    folder: Path, warm: Store, *, prefix: Sequence[str] = (), umask: int = 0o022, **env: str
) -> Lock:
    """Build the project in a folder, in a store of its own, and return the lock of it."""
    spec = write_project(folder / "project")
    shutil.copytree(warm.root, folder / "store")
    command = ["-P", "-m", "pallasc", "lock", str(spec), "--update", "--jobs", "1"]
    command += ["--store", str(folder / "store"), "--lock", str(folder / "pallasc.lock")]
    subprocess.run(
        [*prefix, sys.executable, *command],
        env={**os.environ, **env},
        cwd=folder,
        umask=umask,
        check=True,
    )
    lock = read_lock(folder / "pallasc.lock")
    assert lock is not None
    return lock


def test_two_machines_have_the_same_keys_and_artifacts_and_name_no_folder(
    tmp_path: Path, warm_store: Store
) -> None:
    """Other folder, user, home, host, umask, locale, time zone, cores, hash seed, terminal."""
    variables = {
        "HOME": str(tmp_path / "nowhere"), "USER": "someone", "LOGNAME": "someone",
        "LANG": "tr_TR.UTF-8", "LC_ALL": "C", "TZ": "Asia/Kathmandu", "PYTHONHASHSEED": "77",
        "TERM": "vt100", "COLUMNS": "20", "OMP_NUM_THREADS": "7", "CI": "true",
    }  # fmt: skip
    first = locked(tmp_path / "first", warm_store)
    far = tmp_path / "other" / "deep in it" / "é"
    other = locked(far, warm_store, prefix=other_machine(), umask=0o077, **variables)
    assert len(first.variants) == 2
    assert other.variants == first.variants
    assert other.toolchain == first.toolchain

    store = Store(far / "store")
    found = [store.get_manifest(path.name) for path in store.folder.glob("man/*/*")]
    manifests = [manifest for manifest in found if manifest is not None and manifest.variant]
    assert [why_not_portable(manifest) for manifest in manifests] == ["", ""]
    assert not any(str(tmp_path) in repr(manifest.to_json()) for manifest in manifests)


def test_what_depends_on_paths_of_a_machine_stays_there() -> None:
    outside = "outside of the folder of its spec"
    for manifest, why in (
        (Manifest(files={"file:kernel.py": "0", "file:../lib/a.py": "0", "module:x": "0"}), ""),
        (Manifest(opened={"file:tiles.json": "0", "site:x/y.json": "0", "is:site:x": "0"}), ""),
        (Manifest(opened={"is:/etc/hostname": "file", "is:/proc/self": "folder"}), ""),
        (
            Manifest(files={"file:/home/me/kernel.py": "0"}),
            "its spec names /home/me/kernel.py by an absolute path",
        ),
        (Manifest(opened={"file:/etc/tiles": "0"}), f"it reads /etc/tiles, {outside}"),
        (Manifest(opened={"folder:a": "0", "folder:/data": None}), f"it reads /data, {outside}"),
        (Manifest(opened={"link:/data/now": "0"}), f"it reads /data/now, {outside}"),
        (Manifest(opened={"is:/data/now": None}), f"it tests for /data/now, {outside}"),
    ):
        assert why_not_portable(manifest) == why
