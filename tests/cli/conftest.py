"""Fixtures of the tests of the command line: a built spec with its store, and ways to run."""

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
from json_outputs import check_output

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
    """The result of a run of the command line, without progress lines that busy machines print."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., Run]:
    """Return a function that runs the command line in this process, and checks its JSON output."""

    def run_here(*arguments: str | Path) -> Run:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        if "--json" in arguments and out:
            check_output(arguments, out)
        return Run(code, out, without_heartbeats(err))

    return run_here


# Runs the command line, and at its end lists the modules that the process has loaded.
LISTING = """
import atexit, pathlib, sys
listing = pathlib.Path(sys.argv.pop(1))
atexit.register(lambda: listing.write_text("\\n".join(sys.modules)))
from pallasc.cli.main import main
sys.exit(main())
"""


def run_process(*arguments: str | Path, modules: Path | None = None) -> Run:
    """Run the command line in a new process.

    Args:
        arguments: the arguments of the command.
        modules: a file for the names of all modules that the process has loaded.
    """
    start = ["-m", "pallasc"] if modules is None else ["-c", LISTING, str(modules)]
    result = captured([sys.executable, "-P", *start, *map(str, arguments)])
    return Run(result.returncode, result.stdout, without_heartbeats(result.stderr))


@pytest.fixture
def process() -> Callable[..., Run]:
    """Return `run_process`."""
    return run_process


@dataclass(frozen=True, slots=True)
class Built:
    """A spec of two variants, the store it was built into, the build's result and loaded modules.

    Tests add to `store`. `copy` is the store as it was after the first build.
    """

    spec: Path
    store: Path
    copy: Path
    first: Run
    modules: frozenset[str]

    @property
    def arguments(self) -> tuple[Path | str, ...]:
        """The arguments that name the spec and the store."""
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
    """Return the spec, and a store with its two variants that a test may damage."""
    return built.spec, Path(shutil.copytree(built.store, tmp_path / "store", symlinks=True))


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """Return a spec file that was not built."""
    path = tmp_path / "kernels.yaml"
    path.write_text(SPEC)
    return path


def _load(name: str) -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent / "programs"))
        return importlib.import_module(name)


@pytest.fixture(scope="session")
def pretended() -> ModuleType:
    """Return the module that makes results of pretended builds."""
    return _load("pretended_build")


@pytest.fixture(scope="session")
def paper() -> Any:
    """Return the class of terminal models; it takes a number of columns."""
    return _load("paper").Paper


@pytest.fixture(scope="session")
def standin_gpu() -> ModuleType:
    """Return the module that installs the stand-in driver."""
    return _load("plugged_gpu")


@pytest.fixture
def gpu(standin_gpu: Any) -> Iterator[Any]:
    """Yield a GPU of the stand-in driver, on which each launch takes 20 µs."""
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
    """A machine: a checkout of the project, and a store.

    Attributes:
        folder: the folder with both.
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
    """Return the start of a command line without time limits for remote stores."""
    return [sys.executable, "-P", "-c", PATIENT]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the time limits for remote stores from builds of this process.

    On a busy machine, an answer may take longer than the limit, and the build would do without.
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
    """Return a remote store that another machine has filled, and the output of its build."""

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
    """Return a machine with a copy of the filled remote store."""
    shutil.copytree(filled_remote[0], tmp_path / "remote")
    return _make_machine(tmp_path / "machine", warm_store, tmp_path / "remote")


@pytest.fixture
def make_machine(warm_store: Store) -> Callable[[Path, Path], Machine]:
    """Return a function that makes a machine from its folder and the folder of its remote store."""
    return lambda folder, remote: _make_machine(folder, warm_store, remote)
