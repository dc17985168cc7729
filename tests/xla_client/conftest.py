"""One folder with programs, two machine files, and a cache that `pallasc warm` filled."""

import shutil
from collections.abc import Callable
from pathlib import Path

import jax
import pytest
import standin_gpu
from standin_gpu import DEVICES, Folder


@pytest.fixture(scope="session")
def filled(shared: Callable[..., Path]) -> Folder:
    """Return the folder with programs that are compiled for two machines; do not change it."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    if jax.__version_info__ < (0, 11):
        pytest.skip("JAX 0.10 cannot read topologies")

    def fill(place: Path) -> None:
        folder = Folder(place / "here", place / "store")
        shutil.copytree(standin_gpu.HERE / "programs", folder.path)
        for name, devices in DEVICES.items():
            made = folder.pallasc("machine", variables=standin_gpu.environment(devices=devices))
            assert made.returncode == 0, made.stderr[-2000:]
            (folder.path / f"{name}.json").write_text(made.stdout)
        done = folder.warm("programs.yaml", "--cache-dir", "cache")
        assert done.returncode == 0, done.stderr

    place = shared("programs", fill)
    return Folder(place / "here", place / "store")
