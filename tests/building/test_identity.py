"""What identifies the toolchain: contents, and nothing that does not matter."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pallasc.errors
from pallasc.cache.stat_digest import FileDigests
from pallasc.cache.store import Store
from pallasc.compiler.toolchain import identity
from pallasc.compiler.toolchain.identity import (
    COMPILING,
    own_digest,
    package_digest,
    reached,
    recorded,
    toolchain_identity,
    tree_digest,
)
from pallasc.compiler.toolchain.setup import prepare
from pallasc.compiler.toolchain.toolchain import toolchain_files
from pallasc.specs import variables


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


def test_an_empty_folder_does_not_change_the_digest(package: Path) -> None:
    before = tree(package)
    (package / "empty").mkdir()
    assert tree(package) == before


def test_links_are_followed_but_not_in_circles(package: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "far.py").write_text("1\n")
    (package / "linked").symlink_to(outside)
    (package / "round").symlink_to(package.parent)
    before = tree(package)
    (outside / "far.py").write_text("2\n")
    assert tree(package) != before


def test_what_cannot_be_read_counts_by_its_name(package: Path) -> None:
    before = tree(package)
    (package / "dangling").symlink_to(package / "nowhere")
    with_link = tree(package)
    assert with_link != before
    server = socket.socket(socket.AF_UNIX)
    with server:
        server.bind(str(package / "s"))
        assert tree(package) not in (before, with_link)


def test_an_installed_package_is_found_by_name(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(package.parent)
    digest = FileDigests().digest
    before = package_digest("mypkg", digest)
    assert before == tree(package)
    (package / "inner" / "library" / "kernel.py").write_text("TWO = 3\n")
    assert package_digest("mypkg", FileDigests().digest) != before
    assert package_digest("no_such_package", digest) is None


def test_a_module_of_one_file_is_a_package_too(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (package.parent / "single.py").write_text("ONE = 1\n")
    monkeypatch.syspath_prepend(package.parent)
    digests = FileDigests()
    assert package_digest("single", digests.digest) == digests.digest(package.parent / "single.py")


def test_a_package_in_a_shared_namespace_has_a_digest_of_its_own(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):
        (package.parent / "shared" / name).mkdir(parents=True)
        (package.parent / "shared" / name / "__init__.py").write_text(f"# {name}\n")
    monkeypatch.syspath_prepend(package.parent)
    before = package_digest("shared.first", FileDigests().digest)
    (package.parent / "shared" / "second" / "__init__.py").write_text("# changed\n")
    assert package_digest("shared.first", FileDigests().digest) == before
    (package.parent / "shared" / "first" / "__init__.py").write_text("# changed\n")
    assert package_digest("shared.first", FileDigests().digest) != before


def test_what_compiles_counts_and_no_other_module_of_pallasc(tmp_path: Path) -> None:
    here = Path(identity.__file__).resolve().parents[2]
    for name in ("compiler", "specs"):
        shutil.copytree(here / name, tmp_path / name)
    before = own_digest(FileDigests().digest)
    assert own_digest(FileDigests().digest, top=tmp_path) == before
    for module in ("specs/library/elementwise.py", "compiler/workers/pool.py"):
        (tmp_path / module).write_text("")
        assert own_digest(FileDigests().digest, top=tmp_path) == before
    lower = tmp_path / "compiler" / "lowering" / "lower.py"
    lower.write_text(f"from pallasc.specs.library import elementwise\n{lower.read_text()}")
    assert "specs.library.elementwise" in reached(COMPILING, tmp_path).values()
    (tmp_path / "specs" / "artifacts" / "plan.py").write_text("")
    assert own_digest(FileDigests().digest, top=tmp_path) != before


def test_a_clone_and_an_install_have_one_identity(tmp_path: Path) -> None:
    here = Path(identity.__file__).resolve().parents[2]
    for name in ("compiler", "specs"):
        shutil.copytree(here / name, tmp_path / name)
    clone = own_digest(FileDigests().digest, top=tmp_path)
    shutil.copy(pallasc.errors.__file__, tmp_path)  # where a wheel has it
    assert own_digest(FileDigests().digest, top=tmp_path) == clone


def test_what_workers_see_in_their_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = own_digest(FileDigests().digest)
    monkeypatch.setitem(variables.FIXED, "TERM", "another")
    assert own_digest(FileDigests().digest) != before


def test_what_the_compiling_modules_import_is_what_python_says() -> None:
    names = reached(COMPILING, Path(identity.__file__).resolve().parents[2]).values()
    code = f"import sys\nfor n in {sorted(names)!r}: __import__('pallasc.' + n)\n"
    code += "print(*(n for n in sys.modules if n.startswith('pallasc.')))"
    result = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    loaded = {name.removeprefix("pallasc.") for name in result.stdout.split()}
    packages = {name for name in loaded if any(n.startswith(f"{name}.") for n in loaded)}
    assert {*names} <= loaded
    assert {n for n in loaded - packages if n.startswith(COMPILING)} <= {*names}


def test_the_identity_names_everything_that_compiles(warm_store: Store) -> None:
    with prepare() as setup:
        found = setup.context(warm_store).identity
        packages = {package.name for package in setup.toolchain.packages}
        tools = {label for label, _ in toolchain_files(setup.toolchain)}
    assert set(found) == packages | tools | {"python", "pallasc", "computed with", "traced with"}
    assert tools == {"libdevice", "nvlink", "plugin", "ptxas"}
    assert all(len(value) == 64 for label, value in found.items() if label != "python")


def test_another_assembler_is_another_identity(warm_store: Store, tmp_path: Path) -> None:
    with prepare() as setup:
        digests = FileDigests(warm_store.root)
        plain = toolchain_identity(setup.toolchain, digests.digest)
        other = tmp_path / "ptxas"
        other.write_bytes(setup.toolchain.ptxas.read_bytes() + b"\0")
        other.chmod(0o755)
    with prepare(other) as setup:
        now = toolchain_identity(setup.toolchain, digests.digest)
    assert [label for label in now if now[label] != plain[label]] == ["ptxas"]


def test_the_identity_is_had_without_importing_what_compiles(
    run_program: Callable[..., Any], warm_store: Store
) -> None:
    answer = run_program("identify.py", warm_store.root)
    assert answer["loaded"] == []
    assert answer["hashed"] < 50, "the store did not remember the digests of the toolchain"
    assert answer["identity"]["ptxas"]


def test_recorded_packages_differ_from_absent_ones() -> None:
    assert recorded(["numpy"]) == recorded(["numpy"])
    assert len({recorded(["numpy"]), recorded(["no-such-dist"]), recorded([])}) == 3
