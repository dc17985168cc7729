"""Fixtures of the tests of reports: variants that are built once, and a report on them."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from report_case import KERNELS, SPEC, Built, pallasc

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.reports.content import Content, gather
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml

Shared = Callable[[str, Callable[[Path], None]], Path]


@pytest.fixture(scope="session")
def built(shared: Shared, warm_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build the spec, and write its report, with real JAX and a real assembler.

    Each test process has its own copy of the store, because tests write into it.
    """

    def fill(folder: Path) -> None:
        (folder / "kernels.yaml").write_text(SPEC)
        (folder / "kernels.py").write_text(KERNELS)
        shutil.copytree(warm_store.root, folder / "store")
        _report(folder, folder / "store", folder / "report.html", "--no-timings")

    folder = shared("reports", fill)
    store = shutil.copytree(folder / "store", tmp_path_factory.mktemp("reports") / "store")
    return Built(folder / "kernels.yaml", Store(Path(store)), folder / "report.html")


@pytest.fixture
def report_again(built: Built, tmp_path: Path) -> Callable[..., bytes]:
    """Return a function that writes the report again and returns it."""

    def again(*options: str) -> bytes:
        done = _report(built.spec.parent, built.store.root, tmp_path / "again.html", *options)
        assert done.returncode == 1, done.stderr
        return (tmp_path / "again.html").read_bytes()

    return again


@pytest.fixture(scope="session")
def content(built: Built) -> Content:
    """Return the content of the report."""
    return gather(build(expand(load_yaml(built.spec)), store=built.store), timing=False)


def _report(
    folder: Path, store: Path, output: Path, *options: str
) -> subprocess.CompletedProcess[str]:
    words = ("report", "kernels.yaml", "--store", store, "-j", "1", *options, "-o", output)
    return pallasc(folder, *words)
