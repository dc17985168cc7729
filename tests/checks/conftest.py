"""Fixtures of the tests of checks: a spec of correct and wrong kernels, checked once."""

import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache.store import Store


def _load() -> Any:
    path = Path(__file__).parent / "programs" / "checking.py"
    spec = importlib.util.spec_from_file_location("checking", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def checking(warm_store: Store) -> Any:
    """Return the module with kernels, specs, and a way to run the command."""
    module = _load()
    module.REMEMBERED = warm_store.root
    return module


@pytest.fixture
def project(tmp_path: Path, checking: Any) -> Path:
    """Return a folder with kernels."""
    (tmp_path / "kernels.py").write_text(checking.KERNELS)
    return tmp_path


@pytest.fixture(scope="session")
def checked(shared: Callable[..., Path], checking: Any) -> Any:
    """Check small correct and wrong kernels with real JAX, once for all test processes."""

    def fill(folder: Path) -> None:
        (folder / "kernels.py").write_text(checking.KERNELS)
        names = ("sound", "doubled", "unwritten", "waits_twice", "three_of_two")
        (folder / "spec.yaml").write_text(checking.spec_of(*({"name": name} for name in names)))
        ran = checking.check(folder, "spec.yaml", "--json")
        (folder / "ran.json").write_text(json.dumps(asdict(ran)))

    folder = shared("checked", fill)
    ran = checking.Ran(**json.loads((folder / "ran.json").read_text()))
    return checking.Checked(folder, ran)


@pytest.fixture
def again(checked: Any, tmp_path: Path) -> Path:
    """Return a copy of the folder that was checked, with its store."""
    return Path(shutil.copytree(checked.folder, tmp_path / "again"))
