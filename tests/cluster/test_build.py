"""Builds on a cluster: a real scheduler, real workers and real kernels."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from clusters import Cluster, cluster, is_alive, wait_for

from pallasc.cache.remote.settings import read_settings
from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.compiler.builds.report import Report
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml

KERNELS = """
import json
import os
import time
from pathlib import Path

from inner.helper import size_of
from pallasc.specs.library.elementwise import add

def run(x, y, *, rows):
    table = json.loads(Path("table.json").read_text())
    return add(x, y, block_size=size_of(table))

def wrong(x, y):
    raise ValueError("no such tile")

def bad_argument(x, y, *, block_size):
    return add(x, y, block_size=block_size)

def dies_with_place(x, y):
    print("ERROR: lost a bank", flush=True)
    os._exit(9)

def waits(x, y, *, told):
    Path(told).write_text(str(os.getpid()))
    time.sleep(3600)
"""
ARGS = {"x": "f32[8, 128]", "y": "f32[8, 128]"}


@dataclass
class Project:
    """A folder of specs, and stores that know the toolchain's digests."""

    folder: Path
    warm: Store
    stores: int = 0

    def store(self) -> Store:
        self.stores += 1
        place = self.folder.parent / f"store{self.stores}"
        shutil.copytree(self.warm.folder, Store(place).folder)
        return Store(place)

    @property
    def known(self) -> dict[str, str]:
        """Variables that give workers a store with the digests of the toolchain."""
        return {"PALLASC_CACHE_DIR": str(self.warm.root)}

    def spec(self, name: str, *kernels: dict[str, Any]) -> Path:
        """Write a spec of kernels; their functions have their names."""
        given = [{"entry": f"kernels.py:{k['name']}", "args": ARGS, **k} for k in kernels]
        spec = {"schema": 1, "targets": ["sm_90a"], "kernels": given}
        (self.folder / name).write_text(json.dumps(spec))
        return self.folder / name

    def build(
        self, store: Store, name: str = "spec.yaml", on_event: Any = str, **options: Any
    ) -> Report:
        given = Options(**{"jobs": 2, **options})
        variants = expand(load_yaml(self.folder / name))
        return build(variants, store=store, options=given, on_event=on_event)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, warm_store: Store) -> Project:
    folder = tmp_path_factory.mktemp("project") / "specs"
    (folder / "inner").mkdir(parents=True)
    for name, text in {
        "kernels.py": KERNELS,
        "inner/__init__.py": "",
        "inner/helper.py": "def size_of(table): return table['block']\n",
        "table.json": '{"block": 512}',
    }.items():
        (folder / name).write_text(text)
    project = Project(folder, warm_store)
    rows = {"args": dict.fromkeys("xy", "f32[{rows}, 128]"), "static": {"rows": "{rows}"}}
    matrix = {"rows": [128, 256, 512, 1024]}
    project.spec("spec.yaml", {"name": "run", "files": ["table.json"], "matrix": matrix, **rows})
    return project


@pytest.fixture(scope="module")
def at_home(project: Project) -> Store:
    """Return a store that was filled by processes here."""
    store = project.store()
    assert not project.build(store).failed
    return store


def content(store: Store) -> dict[str, bytes]:
    """Return all artifacts of a store, and the names of its manifests."""
    files = [path for area in ("ac", "cas") for path in (store.folder / area).rglob("*")]
    held = {path.name: path.read_bytes() for path in files if path.is_file()}
    return held | {path.name: b"" for path in (store.folder / "man").rglob("*") if path.is_file()}


def test_a_cluster_gives_the_artifacts_of_home(
    project: Project, at_home: Store, two: Cluster
) -> None:
    store = project.store()
    report = project.build(store, executor=two.address)
    assert {result.status for result in report.results} == {"compiled"}
    assert content(store) == content(at_home)
    assert {result.status for result in project.build(store).results} == {"hit"}


def test_a_cluster_in_the_build_does_so_too_and_a_remote_gets_one_pack(
    project: Project, at_home: Store, tmp_path: Path
) -> None:
    store = project.store()
    remote = read_settings({}, url=f"file://{tmp_path}/remote", write=True)
    report = project.build(store, executor="dask:", remote=remote)
    assert {result.status for result in report.results} == {"compiled"}
    assert content(store) == content(at_home)
    assert report.remote is not None
    assert report.remote.offered == len(report.results)
    assert report.remote.requests <= 5


def test_a_kernel_of_an_installed_package_is_compiled_on_a_worker(
    project: Project, two: Cluster
) -> None:
    module = "jax.experimental.pallas.ops.gpu.hopper_matmul_mgpu"
    tiles = {"tile_m": 64, "tile_n": 64, "tile_k": 64, "max_concurrent_steps": 2}
    matmul = {
        "entry": f"{module}:matmul",
        "args": {"a": "f16[128, 128]", "b": "f16[128, 128]", "c": None},
        "static": {"config": {"$call": f"{module}:TuningConfig", **tiles}},
    }
    project.spec("installed.yaml", {"name": "matmul", **matmul})
    report = project.build(project.store(), "installed.yaml", executor=two.address)
    assert [(r.status, str(r.error)) for r in report.results] == [("compiled", "None")]


def test_failures_read_as_at_home(project: Project, two: Cluster) -> None:
    project.spec(
        "wrong.yaml", {"name": "wrong"}, {"name": "dies_with_place"},
        {"name": "bad_argument", "static": {"block_size": 7}},
    )  # fmt: skip
    here = project.build(project.store(), "wrong.yaml", jobs=1)
    there = project.build(project.store(), "wrong.yaml", executor=two.address)
    for mine, theirs in zip(here.results, there.results, strict=True):
        assert (mine.status, theirs.status) == ("failed", "failed")
        assert error_of(mine) == error_of(theirs)
        assert mine.died == theirs.died
    assert there.results[0].error is not None
    assert str(project.folder / "kernels.py") in str(there.results[0].error.location)


def error_of(result: Any) -> tuple[object, ...]:
    error = result.error
    hint = error.hint and error.hint.partition("--store")[0]
    return error.message, error.location, hint, error.exit_code, error.kind


def test_a_worker_killed_while_it_compiles_changes_no_digest(
    project: Project, at_home: Store, tmp_path: Path
) -> None:
    store = project.store()
    told: list[str] = []
    with cluster(tmp_path, project.known) as own:

        def on_event(event: Any) -> None:
            told.append(getattr(event, "kind", "tick"))
            if told.count("compiled") == 2:
                own.workers["worker0"].kill()

        report = project.build(store, executor=own.address, on_event=on_event)
    assert {result.status for result in report.results} == {"compiled"}
    assert told.count("started") == len(report.results)
    assert own.workers["worker0"].returncode == -signal.SIGKILL
    assert content(store) == content(at_home)


def test_a_worker_with_another_toolchain_is_passed_over(
    project: Project, at_home: Store, tmp_path: Path
) -> None:
    (other := tmp_path / "other").mkdir()
    (other / "sitecustomize.py").write_text("changed = True\n")
    with cluster(tmp_path, project.known, workers=0) as own:
        own.start_worker("other", PYTHONPATH=str(other))
        own.wait_for_workers()
        refused = project.build(project.store(), executor=own.address)
        own.start_worker("same")
        own.wait_for_workers()
        store = project.store()
        report = project.build(store, executor=own.address)
    assert {result.status for result in refused.results} == {"failed"}
    error = refused.results[0].error
    assert error is not None
    assert error.exit_code == 4
    assert error.message.startswith(f"no worker of {own.address} compiles it as this ")
    assert "python: other content of the same version" in error.message
    assert not report.failed
    assert content(store) == content(at_home)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_end_of_a_build_ends_what_the_cluster_compiles_for_it(
    project: Project, two: Cluster, tmp_path: Path, number: int
) -> None:
    told = tmp_path / "told"
    spec = project.spec("waits.yaml", {"name": "waits", "static": {"told": str(told)}})
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "pallasc", "build", str(spec), "--executor", two.address,
         "--store", str(project.store().root)],
        stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    wait_for(lambda: told.exists() and bool(told.read_text()), "the kernel")
    compiling = int(told.read_text())
    assert is_alive(compiling)
    process.send_signal(number)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == (130 if number == signal.SIGINT else -number), errors
    wait_for(lambda: not is_alive(compiling), "the end of what was compiled")


def test_a_warm_build_needs_neither_dask_nor_a_scheduler(project: Project, at_home: Store) -> None:
    program = (
        "import sys; from pallasc.cli.main import main; code = main(sys.argv[1:]); "
        "print(code, 'distributed' in sys.modules, 'dask' in sys.modules)"
    )
    told = subprocess.run(
        [sys.executable, "-P", "-c", program, "build", str(project.folder / "spec.yaml"),
         "--store", str(at_home.root)],
        stdout=subprocess.PIPE, text=True, check=True,
        env={**os.environ, "PALLASC_EXECUTOR": "dask://127.0.0.1:1"},
    )  # fmt: skip
    assert told.stdout.split() == ["0", "False", "False"]
