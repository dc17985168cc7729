"""Fixtures of the tests of building: projects, and checks that nothing is left behind."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache.manifests import Manifest
from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.collect import SpecReader
from pallasc.compiler.builds.options import Options
from pallasc.compiler.builds.report import Report, VariantResult
from pallasc.compiler.inputs.lookup import Lookup
from pallasc.compiler.toolchain.setup import Context, prepare
from pallasc.compiler.workers import worker_process
from pallasc.specs.loading.matrix import expand
from pallasc.specs.spec import Variant

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="module", autouse=True)
def _own_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give this process and its children a private temporary folder."""
    folder = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", None)
        yield folder


@pytest.fixture(scope="module", autouse=True)
def _patient_builds() -> Iterator[None]:
    """Give workers minutes to write their stacks, and to end after their pipe has closed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_process, "_CLOSED_S", 300.0)
        patch.setattr(worker_process, "_STACK_S", 300.0)
        yield


@pytest.fixture(autouse=True)
def _nothing_is_left(_own_temporary_folder: Path) -> Iterator[None]:
    """Check that a test leaves no processes and no temporary files."""
    before = children()
    yield
    assert children() <= before
    assert [p.name for p in _own_temporary_folder.iterdir() if p.name.startswith("pallasc")] == []


def children() -> set[int]:
    """Return the child processes of this process, including zombies."""
    found = set()
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                found.add(int(place.name))
    return found


@dataclass
class Project:
    """A folder of specs and a store."""

    folder: Path
    store: Store
    events: list[Any] = field(default_factory=list)
    digest: str = ""
    key: str | None = None

    def write(self, name: str, text: str) -> Path:
        """Write a file of the folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def spec(self, *kernels: dict[str, Any], name: str = "spec.yaml", **top: Any) -> Path:
        """Write a spec of kernels, which by default take `x: f32[8, 128]`."""
        given = [{"args": {"x": "f32[8, 128]"}, **kernel} for kernel in kernels]
        content = {"schema": 1, "targets": ["sm_90a"], **top, "kernels": given}
        return self.write(name, json.dumps(content))  # JSON is YAML

    def variants(self, *names: str) -> list[Variant]:
        """Return the variants of spec files of the folder."""
        paths = [str(self.folder / name) for name in names or ("spec.yaml",)]
        return expand(SpecReader(store=self.store).specs(paths))

    def build(self, *names: str, **options: Any) -> Report:
        """Build spec files of the folder with one worker: another would cost more than it gains."""
        self.events = []
        variants = self.variants(*names)
        store = options.pop("store", self.store)
        given = Options(**{"jobs": 1, **options})
        return build(variants, store=store, options=given, on_event=self.events.append)

    def context(self) -> Context:
        """Return the context of keys: the toolchain's identity and the digests of files."""
        with prepare() as setup:
            return setup.context(self.store)

    def manifests(self, variants: Sequence[Variant]) -> dict[str, Manifest]:
        """Return the manifest of each variant by its kernel's name."""
        lookup = Lookup(self.context(), self.store)
        found = {v.name: list(self.store.sets(lookup.key(v))) for v in variants}
        return {name: sets[0][1] for name, sets in found.items() if sets}

    def copy(self, place: Path) -> "Project":
        """Return a project with copies of all files and of the store."""
        shutil.copytree(self.folder, place / "specs")
        shutil.copytree(self.store.root, place / "store")
        return replace(self, folder=place / "specs", store=Store(place / "store"), events=[])


@pytest.fixture(scope="session")
def make_project(
    tmp_path_factory: pytest.TempPathFactory, warm_store: Store
) -> Callable[[], Project]:
    """Return a function that makes a project without specs, whose store has only the toolchain."""

    def make() -> Project:
        place = tmp_path_factory.mktemp("project")
        (place / "specs").mkdir()
        store = Store(place / "store")
        shutil.copytree(warm_store.folder, store.folder)
        return Project(place / "specs", store)

    return make


@pytest.fixture
def project(make_project: Callable[[], Project]) -> Project:
    """Return an empty project."""
    return make_project()


def by_name(report: Report) -> dict[str, VariantResult]:
    """Return the results by kernel."""
    return {result.variant.name: result for result in report.results}


@pytest.fixture
def results() -> Callable[[Report], dict[str, VariantResult]]:
    """Return the function that maps kernels to results."""
    return by_name


@pytest.fixture(scope="session")
def start_program() -> Callable[..., subprocess.Popen[str]]:
    """Return a function that starts a program of this folder."""

    def start(
        name: str, *arguments: object, python: str = sys.executable, **variables: str
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [python, str(PROGRAMS / name), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
            # A shell starts background jobs with interrupts ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    return start


@pytest.fixture(scope="session")
def run_program(start_program: Callable[..., subprocess.Popen[str]]) -> Callable[..., Any]:
    """Return a function that runs a program of this folder and returns its parsed JSON output."""

    def run(name: str, *arguments: object, **options: Any) -> Any:
        process = start_program(name, *arguments, **options)
        output, errors = process.communicate(timeout=600)
        assert process.returncode == 0, output + errors
        return json.loads(output)

    return run
