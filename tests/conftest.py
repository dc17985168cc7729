"""Fixtures and hooks of all tests: shared folders and stores, and reasons to skip GPU tests."""

import fcntl
import gc
import os
import shutil
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

import consoles  # noqa: F401 - imported here so that tests can import them by their names
import json_outputs  # noqa: F401
from commands import output_of
from sources import copy_sources

sys.path.pop(0)

from pallasc.cache import stat_digest
from pallasc.cache.store import Store
from pallasc.compiler.toolchain.setup import prepare

Shared = Callable[[str, Callable[[Path], None]], Path]

# Continuous integration machines are slow and shared, so examples have no time limits. Each run
# tries the same examples, so a change that breaks nothing always passes.
settings.register_profile(
    "pallasc",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("pallasc")

# Tests start over a thousand processes; without bytecode, each would compile every module again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The tests use all cores already: with one core each, a build in a test starts one worker.
if "PYTEST_XDIST_WORKER" in os.environ:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["PYTEST_XDIST_WORKER"][2:]) % len(cores)]})


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt ten thousand tests and their modules from garbage collection.

    They live until the end. Scanning them would take a tenth of a test process's time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


# Files and folders with few but long tests, the longest first. By default, xdist begins with the
# files that have the most tests: one process would run these at the end while the others wait.
_LONG = (
    "test_docs.py", "wheels/test_backends.py", "building/test_order.py",
    "xla_client/test_bad_input.py", "checks/test_command.py", "checks/test_artifact.py",
    "checks/test_both_levels.py", "coverage/test_coverage.py", "cluster/",
    "cache/remote/test_hostile.py", "building/test_api.py", "building/test_supervision.py",
    "runtime/test_gpu_script.py", "compiler/test_assemblers.py", "building/test_worker.py",
    "cache/test_faults.py", "test_packaging.py", "cli/test_watch.py", "wrong/", "test_site.py",
    "wheels/", "xla_client/",
)  # fmt: skip

# Long tests whose results depend neither on the version of Python nor on the version of JAX.
_NOT_ON_THE_OLDEST = (
    "analysis/test_disassembly.py", "building/test_closure.py", "building/test_collect.py",
    "building/test_isolation.py", "building/test_locks.py", "building/test_manifest.py",
    "building/test_order.py", "building/test_signed_store.py", "building/test_supervision.py",
    "building/test_worker.py", "bundle/test_bundling.py", "bundle/test_mutations.py",
    "cache/remote/", "cache/test_faults.py", "checks/test_both_levels.py", "checks/test_command.py",
    "checks/test_devices.py", "checks/test_emulation.py", "checks/test_limits.py",
    "checks/test_mutants.py", "checks/test_stored_results.py", "cli/test_diff.py",
    "cli/test_hostile_text.py", "cli/test_json.py", "cli/test_path_names.py", "cli/test_remote.py",
    "cli/test_run.py", "cli/test_shard.py", "cli/test_source_lines.py", "cli/test_watch.py",
    "cluster/", "emulator/test_collectives.py", "emulator/test_numbers.py",
    "emulator/test_opcodes.py", "emulator/test_races.py", "plans/", "reports/",
    "runtime/native/test_fuzz.py", "runtime/native/test_page.py", "runtime/test_gpu_script.py",
    "runtime/test_pages.py", "runtime/test_tune_run.py", "test_docs.py", "test_packaging.py",
    "test_site.py", "wheels/",
)  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False


def _place(item: pytest.Item) -> str:
    return item.nodeid.removeprefix("tests/")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the long files first."""

    def position(item: pytest.Item) -> int:
        return next(
            (n for n, long in enumerate(_LONG) if _place(item).startswith(long)), len(_LONG)
        )

    items.sort(key=position)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if sys.version_info < (3, 12) and _place(item).startswith(_NOT_ON_THE_OLDEST):
        pytest.skip("runs on Python 3.12 and newer")


@pytest.fixture(scope="session", autouse=True)
def _signals_as_on_a_terminal() -> None:
    """Restore signals that `nohup` or a background job of a shell has disabled for its children."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def _own_homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give tests and their processes other folders than the user's store and keys."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache-home")))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config-home")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _installed_files_are_hashed_once() -> Iterator[None]:
    """Hash each installed file once in this process, not once for each empty store.

    The toolchain has a gigabyte of them. Other files are hashed whenever the product asks for it.
    """
    hash_file, known = stat_digest._hash_file, {}

    def hash_once(place: str) -> tuple[Any, str, Any]:
        if not place.startswith(sys.prefix + os.sep):
            return hash_file(place)
        signature = stat_digest._signature(os.stat(place))
        if (place, signature) not in known:
            known[place, signature] = hash_file(place)
        return known[place, signature]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stat_digest, "_hash_file", hash_once)
        yield


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """Return a function for shared folders: the first test process that asks for one fills it."""
    base = tmp_path_factory.getbasetemp()
    top = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    top.mkdir(exist_ok=True)

    def get(name: str, fill: Callable[[Path], None]) -> Path:
        folder = top / name
        with (top / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "done").exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                fill(folder)
                (folder / "done").touch()
        return folder

    return get


@pytest.fixture(scope="session")
def wheel(shared: Shared) -> Path:
    """Build a source archive of this project, and a wheel from it."""

    def fill(folder: Path) -> None:
        command = [sys.executable, "-P", "-m", "build", "--no-isolation", "--outdir", folder]
        output_of([*command, copy_sources(folder / "sources")])

    (made,) = shared("wheel", fill).glob("*.whl")
    return made


@pytest.fixture(scope="session")
def warm_store(shared: Shared, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Return a store that has only the digests of the toolchain.

    Each test process has its own copy, because another process may still be writing the original.
    """

    def fill(folder: Path) -> None:
        store = Store(folder / "store")
        with prepare() as setup:
            context = setup.context(store)
            setup.record(context.digests)
        context.digests.save()

    own = tmp_path_factory.mktemp("warm") / "store"
    return Store(Path(shutil.copytree(shared("warm", fill) / "store", own)))


@pytest.fixture(scope="session")
def library_store(shared: Shared, warm_store: Store) -> Store:
    """Return the store that is shared by all tests that build `specs/library`."""

    def fill(folder: Path) -> None:
        shutil.copytree(warm_store.root, folder / "store")

    return Store(shared("library", fill) / "store")
