"""Environments as users have them, with wheels that were built from a fresh copy of the project."""

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

import launching  # noqa: F401 - found here for the tests, which import it by its name
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
    """Give an environment that builds wheels: JAX, build backends, pallasc, and one store."""

    def fill(folder: Path) -> None:
        made = make_environment(folder / "env", folder / "store")
        # All that the tests have, but behind what is installed here.
        tests = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *linked_folders()}
        (made.packages / "tests.pth").write_text("".join(f"{place}\n" for place in sorted(tests)))
        made.install(wheel)
        shutil.copytree(warm_store.root, folder / "store", dirs_exist_ok=True)

    folder = shared("builder", fill)
    return Environment(folder / "env", variables(folder / "store"))


@pytest.fixture(scope="session")
def bare(shared: Shared, wheel: Path) -> Path:
    """Give the folder of an environment with pallasc and what it needs: without JAX."""

    def fill(folder: Path) -> None:
        made = make_environment(folder / "env", folder / "store")
        made.link(["click", "pyyaml", "cuda-bindings", "zstandard", "msgspec", "rich"])
        made.link(["numpy", "ml-dtypes"])
        made.install(wheel)

    return shared("bare", fill) / "env"


@pytest.fixture
def user(bare: Path, tmp_path: Path) -> Environment:
    """Give a user's own environment: that without JAX, and nothing else yet."""
    made = make_environment(tmp_path / "user", tmp_path / "user-store")
    (packages,) = (bare / "lib").glob("python*/site-packages")
    (made.packages / "bare.pth").write_text(f"{packages}\n")
    return made


@pytest.fixture
def developer(builder: Environment, tmp_path: Path) -> Environment:
    """Give a developer's own environment: all that the builder's has."""
    made = make_environment(tmp_path / "developer", tmp_path / "developer-store")
    tests = (builder.packages / "tests.pth").read_text()
    (made.packages / "builder.pth").write_text(f"{builder.packages}\n{tests}")
    return made


@pytest.fixture
def copy_example(tmp_path: Path) -> Callable[..., Path]:
    """Return what copies an example, as if it were cloned, into a folder of its own."""

    def copy(name: str, to: str = "clone") -> Path:
        return Path(shutil.copytree(EXAMPLES / name, tmp_path / to, ignore=NOT_SOURCES))

    return copy


@pytest.fixture(scope="session")
def example_wheel(shared: Shared, builder: Environment) -> Path:
    """Give the wheel of the example, built from a copy; it has warmed the builder's store."""

    def fill(folder: Path) -> None:
        clone = shutil.copytree(EXAMPLES / "fused_ops", folder / "clone", ignore=NOT_SOURCES)
        done = builder.build(clone, folder, "--wheel")
        assert done.returncode == 0, done.stdout
        (folder / "output").write_text(done.stdout)
        (folder / "left").write_text("\n".join(sorted(tree(clone))))

    return wheel_in(shared("example", fill))


@pytest.fixture(scope="session")
def standin() -> Any:
    """Give the module that builds the stand-in driver."""
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
    """Give a bundle that was made before."""
    (data,) = bundles_in(example_wheel).values()
    return data
