"""What identifies the toolchain: contents, and nothing that does not matter."""

import os
import shutil
from pathlib import Path

import pytest

from pallasc.cache.stat_digest import FileDigests
from pallasc.cache.store import Store
from pallasc.compiler.toolchain.identity import own_digest, package_digest, tree_digest
from pallasc.compiler.toolchain.setup import prepare
from pallasc.compiler.toolchain.toolchain import toolchain_files
from pallasc.errors import ToolError
from pallasc.specs import settings


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a package of some version, installed in a folder."""
    folder = tmp_path / "site" / "mypkg"
    (folder / "inner" / "library").mkdir(parents=True)
    (folder / "include").mkdir()
    (folder / "__init__.py").write_text('__version__ = "1.0"\n')
    (folder / "inner" / "code.py").write_text("ONE = 1\n")
    (folder / "inner" / "library" / "kernel.py").write_text("TWO = 2\n")
    (folder / "include" / "table.h").write_text("3\n")
    (folder / "data.bin").write_bytes(bytes(range(256)))
    return folder


def tree(folder: Path) -> str:
    return tree_digest([folder], FileDigests().digest)


def test_an_installed_package_or_module_is_found_by_name(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, digests = package.parent, FileDigests()
    monkeypatch.syspath_prepend(site)
    before = package_digest("mypkg", digests.digest)
    assert before == tree(package)
    (package / "inner" / "library" / "kernel.py").write_text("TWO = 3\n")
    assert package_digest("mypkg", FileDigests().digest) != before
    assert package_digest("no_such_package", digests.digest) is None
    (site / "single.py").write_text("ONE = 1\n")
    assert package_digest("single", digests.digest) == digests.digest(site / "single.py")
    for name in ("first", "second"):  # of a shared namespace
        (site / "shared" / name).mkdir(parents=True)
        (site / "shared" / name / "__init__.py").write_text(f"# {name}\n")
    shared = package_digest("shared.first", FileDigests().digest)
    (site / "shared" / "second" / "__init__.py").write_text("# changed\n")
    assert package_digest("shared.first", FileDigests().digest) == shared
    (site / "shared" / "first" / "__init__.py").write_text("# changed\n")
    assert package_digest("shared.first", FileDigests().digest) != shared


def test_what_workers_see_in_their_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = own_digest(FileDigests().digest)
    monkeypatch.setitem(settings.FIXED, "TERM", "another")
    assert own_digest(FileDigests().digest) != before


def test_the_identity_names_everything_that_compiles(warm_store: Store) -> None:
    with prepare() as setup:
        context = setup.context(warm_store)
        found = context.identity
        packages = {package.name for package in setup.toolchain.packages}
        tools = {label for label, _ in toolchain_files(setup.toolchain)}
    assert set(found) == packages | tools | {"python", "pallasc", "computed with", "traced with"}
    assert tools == {"libdevice", "nvlink", "plugin", "ptxas"}
    assert all(len(value) == 64 for label, value in found.items() if label != "python")
    assert context.digests.hashed < 50, "the store remembers the digests of the toolchain"


# ---- getting ready to compile


def test_the_wheels_assembler_or_a_named_one_comes_first_on_the_workers_path(
    tmp_path: Path,
) -> None:
    with prepare() as setup:
        first = Path(setup.environment["PATH"].split(os.pathsep)[0])
        assert (first / "ptxas").samefile(setup.toolchain.ptxas)
        assert setup.environment["JAX_PLATFORMS"] == "cpu"
        named = tmp_path / "my-ptxas"
        shutil.copyfile(setup.toolchain.ptxas, named)
    with prepare(named) as setup:
        first = Path(setup.environment["PATH"].split(os.pathsep)[0])
        assert (first / "ptxas").samefile(named)
        assert (first / "nvlink").samefile(setup.toolchain.nvlink)
    assert not first.exists()
    with pytest.raises(ToolError, match="There is no assembler"):
        prepare(tmp_path / "none")
