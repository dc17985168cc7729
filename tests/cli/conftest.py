"""What the tests of the command line share: a spec, a store it was built into once, ways to run."""

import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from commands import captured
from consoles import PATIENT, without_heartbeats

from pallasc.cache.remote import session
from pallasc.cache.store import Store
from pallasc.cli.main import main

SPEC = """\
schema: 1
targets: [sm_90a]
kernels:
  - name: add
    entry: pallasc.specs.library.elementwise:add
    args: {x: "{dtype}[{m}, 4096]", y: "{dtype}[{m}, 4096]"}
    static: {block_size: 2048}
    matrix: {m: [1024], dtype: [f32, bf16]}
    check: {m: 1}
"""


@dataclass(frozen=True, slots=True)
class Run:
    """What a run of the command line left behind, but for what a busy machine says meanwhile."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., Run]:
    """Run the command line in this process."""

    def run_here(*arguments: str | Path) -> Run:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return Run(code, out, without_heartbeats(err))

    return run_here


# Runs the command line and writes down which modules its process has loaded at the end.
LISTING = """
import atexit, pathlib, sys
listing = pathlib.Path(sys.argv.pop(1))
atexit.register(lambda: listing.write_text("\\n".join(sys.modules)))
from pallasc.cli.main import main
sys.exit(main())
"""


def run_process(*arguments: str | Path, modules: Path | None = None) -> Run:
    """Run the command line in a process of its own.

    Args:
        arguments: those of the command line.
        modules: a file to write the names of all modules to that the process has loaded.
    """
    start = ["-m", "pallasc"] if modules is None else ["-c", LISTING, str(modules)]
    result = captured([sys.executable, "-P", *start, *map(str, arguments)])
    return Run(result.returncode, result.stdout, without_heartbeats(result.stderr))


@pytest.fixture
def process() -> Callable[..., Run]:
    """Run the command line in a process of its own; `modules=` names a file for what it loaded."""
    return run_process


@dataclass(frozen=True, slots=True)
class Built:
    """A spec of two variants, the store it was built into, how that went, what it loaded.

    Tests add to `store`. `copy` is the store as it was after the first build.
    """

    spec: Path
    store: Path
    copy: Path
    first: Run
    modules: frozenset[str]

    @property
    def arguments(self) -> tuple[Path | str, ...]:
        """What every command takes to find both."""
        return (self.spec, "--store", self.store)


@pytest.fixture(scope="session")
def built(
    shared: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory, warm_store: Store
) -> Built:
    """Build the spec once, with real JAX and a real assembler; each process has copies."""

    def fill(folder: Path) -> None:
        spec, modules = folder / "kernels.yaml", folder / "modules"
        spec.write_text(SPEC)
        store = Path(shutil.copytree(warm_store.root, folder / "store"))
        first = run_process("build", spec, "--store", store, "--jobs", "1", modules=modules)
        (folder / "first.json").write_text(json.dumps(asdict(first)))

    made, folder = shared("cli-built", fill), tmp_path_factory.mktemp("built")
    spec = Path(shutil.copy(made / "kernels.yaml", folder))
    store, copy = (
        Path(shutil.copytree(made / "store", folder / name, symlinks=True))
        for name in ("store", "copy")
    )
    first = Run(**json.loads((made / "first.json").read_text()))
    return Built(spec, store, copy, first, frozenset((made / "modules").read_text().splitlines()))


@pytest.fixture
def own(built: Built, tmp_path: Path) -> tuple[Path, Path]:
    """The spec, and a store with its two variants that a test may damage."""
    return built.spec, Path(shutil.copytree(built.store, tmp_path / "store", symlinks=True))


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """Return a spec file that nothing was built from."""
    path = tmp_path / "kernels.yaml"
    path.write_text(SPEC)
    return path


def _load(name: str) -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent / "programs"))
        return importlib.import_module(name)


@pytest.fixture(scope="session")
def pretended() -> ModuleType:
    """Return the module that makes results of a build that never was."""
    return _load("pretended_build")


@pytest.fixture(scope="session")
def paper() -> Any:
    """Return the model of a terminal; it takes a number of columns."""
    return _load("paper").Paper


@pytest.fixture(scope="session")
def standin_gpu() -> ModuleType:
    """Return the module that plugs the stand-in driver in."""
    return _load("plugged_gpu")


@pytest.fixture
def gpu(standin_gpu: Any) -> Iterator[Any]:
    """Give a GPU of the stand-in's on which each launch takes 20 µs."""
    with standin_gpu.plugged_in() as driver:
        driver.configure(kernel_ns=20_000)
        yield driver


_KERNELS = '''\
"""A kernel with a helper beside it."""

from pathlib import Path

from helper import add


def there(x, y, *, block_size):
    Path("/data/tiles.json").exists()
    return add(x, y, block_size=block_size)
'''
_HELPER = '''\
"""What both kernels call."""

from pallasc.specs.library.elementwise import add as add_of_library


def add(x, y, *, block_size):
    return add_of_library(x, y, block_size=block_size)
'''
_PROJECT = """\
schema: 1
targets: [sm_90a]
kernels:
  - name: add
    entry: helper.py:add
    args: {x: "{dtype}[{m}, 4096]", y: "{dtype}[{m}, 4096]"}
    static: {block_size: 2048}
    matrix: {m: [1024], dtype: [f32, bf16]}
    check: {m: 1}
"""
_BOUND = """\
  - name: there
    entry: kernels.py:there
    args: {x: "f32[1024, 4096]", y: "f32[1024, 4096]"}
    static: {block_size: 2048}
"""


@dataclass(frozen=True)
class Machine:
    """A machine: a checkout of the project and a store of its own.

    Attributes:
        folder: where both lie.
        remote: the folder of the remote store.
    """

    folder: Path
    remote: Path

    @property
    def spec(self) -> Path:
        return self.folder / "project" / "spec.yaml"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def arguments(self) -> tuple[Any, ...]:
        return (self.spec, "--store", self.store, "--jobs", "1")

    @property
    def url(self) -> str:
        return f"file://{self.remote}"


@pytest.fixture(scope="session")
def patient_command() -> list[str]:
    """Return the start of a command line that waits for a remote store as long as that takes."""
    return [sys.executable, "-P", "-c", PATIENT]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have builds of this process wait for a remote store for as long as that takes.

    A busy machine may need longer than a build waits, which then takes nothing from the remote.
    """
    monkeypatch.setattr(session, "PATIENCE_S", 1e9)


def _make_machine(folder: Path, warm: Store, remote: Path, *, more: str = "") -> Machine:
    project = folder / "project"
    project.mkdir(parents=True)
    (project / "kernels.py").write_text(_KERNELS)
    (project / "helper.py").write_text(_HELPER)
    (project / "spec.yaml").write_text(_PROJECT + more)
    shutil.copytree(warm.root, folder / "store")
    return Machine(folder, remote)


@pytest.fixture(scope="session")
def filled_remote(
    shared: Callable[..., Path], warm_store: Store, patient_command: list[str]
) -> tuple[Path, str]:
    """Return a remote that another machine has filled, and what that machine's build said."""

    def fill(folder: Path) -> None:
        machine = _make_machine(folder, warm_store, folder / "remote", more=_BOUND)
        command = [*patient_command, "build", *map(str, machine.arguments)]
        ran = captured([*command, "--remote", machine.url, "--remote-write"])
        assert ran.returncode == 0, ran.stderr
        (folder / "said").write_text(without_heartbeats(ran.stderr))

    folder = shared("cli-remote", fill)
    return folder / "remote", (folder / "said").read_text()


@pytest.fixture
def machine(
    filled_remote: tuple[Path, str], tmp_path: Path, warm_store: Store, patient: None
) -> Machine:
    """Return a machine with a copy of that remote."""
    shutil.copytree(filled_remote[0], tmp_path / "remote")
    return _make_machine(tmp_path / "machine", warm_store, tmp_path / "remote")


@pytest.fixture
def make_machine(warm_store: Store) -> Callable[[Path, Path], Machine]:
    """Return a function that makes a machine in a folder, with the folder of its remote."""
    return lambda folder, remote: _make_machine(folder, warm_store, remote)
