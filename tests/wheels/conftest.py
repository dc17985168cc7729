"""Environments like those of users, with wheels built from a new copy of the project."""

import shutil
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sources import NOT_SOURCES

from pallasc.cache.store import Store

sys.path.insert(0, str(Path(__file__).parent))

import launching  # noqa: F401 - imported here so that tests can import it by its name
from environments import (
    EXAMPLES,
    ROOT,
    Environment,
    bundles_in,
    linked_folders,
    make_environment,
    tree,
    variables,
    wheel_in,
)

sys.path.pop(0)

Shared = Callable[[str, Callable[[Path], None]], Path]


@pytest.fixture(scope="session")
def builder(shared: Shared, wheel: Path, warm_store: Store) -> Environment:
    """Return an environment that builds wheels: JAX, build backends, pallasc, and one store."""

    def fill(folder: Path) -> None:
        made = make_environment(folder / "env", folder / "store")
        # The tests' own packages; packages that are installed here take precedence.
        tests = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *linked_folders()}
        (made.packages / "tests.pth").write_text("".join(f"{place}\n" for place in sorted(tests)))
        made.install(wheel)
        shutil.copytree(warm_store.root, folder / "store", dirs_exist_ok=True)

    folder = shared("builder", fill)
    return Environment(folder / "env", variables(folder / "store"))


@pytest.fixture(scope="session")
def bare(shared: Shared, wheel: Path) -> Path:
    """Return the folder of an environment with pallasc and its requirements, without JAX."""

    def fill(folder: Path) -> None:
        made = make_environment(folder / "env", folder / "store")
        made.link(["click", "pyyaml", "cuda-bindings", "zstandard", "msgspec", "rich"])
        made.link(["numpy", "ml-dtypes"])
        made.install(wheel)

    return shared("bare", fill) / "env"


@pytest.fixture
def user(bare: Path, tmp_path: Path) -> Environment:
    """Return a user's new environment, which also finds the packages of `bare`."""
    made = make_environment(tmp_path / "user", tmp_path / "user-store")
    (packages,) = (bare / "lib").glob("python*/site-packages")
    (made.packages / "bare.pth").write_text(f"{packages}\n")
    return made


@pytest.fixture
def developer(builder: Environment, tmp_path: Path) -> Environment:
    """Return a developer's new environment, which also finds the packages of `builder`."""
    made = make_environment(tmp_path / "developer", tmp_path / "developer-store")
    tests = (builder.packages / "tests.pth").read_text()
    (made.packages / "builder.pth").write_text(f"{builder.packages}\n{tests}")
    return made


@pytest.fixture
def copy_example(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies an example into a new folder, like a clone."""

    def copy(name: str, to: str = "clone") -> Path:
        return Path(shutil.copytree(EXAMPLES / name, tmp_path / to, ignore=NOT_SOURCES))

    return copy


@pytest.fixture(scope="session")
def example_wheel(shared: Shared, builder: Environment) -> Path:
    """Return the wheel of the example, built from a copy; the build fills the builder's store."""

    def fill(folder: Path) -> None:
        clone = shutil.copytree(EXAMPLES / "fused_ops", folder / "clone", ignore=NOT_SOURCES)
        done = builder.build(clone, folder, "--wheel")
        assert done.returncode == 0, done.stdout
        (folder / "output").write_text(done.stdout)
        (folder / "left").write_text("\n".join(sorted(tree(clone))))

    return wheel_in(shared("example", fill))


@pytest.fixture(scope="session")
def standin() -> Any:
    """Return the module that builds the stand-in driver."""
    place = str(ROOT / "tests" / "runtime")
    sys.path.insert(0, place)
    try:
        import standin as control
    finally:
        sys.path.remove(place)
    if reason := control.why_not():
        pytest.skip(reason)
    control.build()
    return control


@pytest.fixture
def ready(example_wheel: Path) -> bytes:
    """Return the bytes of a bundle that already exists."""
    (data,) = bundles_in(example_wheel).values()
    return data
