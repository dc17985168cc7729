"""What identifies the toolchain: contents, and nothing that does not matter."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
from pathlib import Path

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
from pallasc.compiler.workers.messages import Introduction
from pallasc.errors import ToolError
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


def test_links_are_followed_but_not_in_circles_and_empty_folders_do_not_count(
    package: Path, tmp_path: Path
) -> None:
    plain = tree(package)
    (package / "empty").mkdir()
    assert tree(package) == plain
    (tmp_path / "outside").mkdir()
    far = tmp_path / "outside" / "far.py"
    far.write_text("1\n")
    (package / "linked").symlink_to(tmp_path / "outside")
    (package / "round").symlink_to(package.parent)
    before = tree(package)
    far.write_text("2\n")
    assert tree(package) != before


def test_what_cannot_be_read_counts_by_its_name(package: Path) -> None:
    found = [tree(package)]
    (package / "dangling").symlink_to(package / "nowhere")
    found.append(tree(package))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(package / "s"))
        found.append(tree(package))
    assert len({*found}) == 3


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


def test_what_compiles_counts_and_no_other_module_of_pallasc(tmp_path: Path) -> None:
    here = Path(identity.__file__).resolve().parents[2]
    for name in ("compiler", "specs"):
        shutil.copytree(here / name, tmp_path / name)
    before = own_digest(FileDigests().digest)
    assert own_digest(FileDigests().digest, top=tmp_path) == before
    shutil.copy(pallasc.errors.__file__, tmp_path)  # where a wheel has it
    assert own_digest(FileDigests().digest, top=tmp_path) == before
    for module in ("specs/library/elementwise.py", "compiler/workers/pool.py"):
        (tmp_path / module).write_text("")
        assert own_digest(FileDigests().digest, top=tmp_path) == before
    lower = tmp_path / "compiler" / "lowering" / "lower.py"
    lower.write_text(f"from pallasc.specs.library import elementwise\n{lower.read_text()}")
    assert "specs.library.elementwise" in reached(COMPILING, tmp_path).values()
    (tmp_path / "specs" / "artifacts" / "plan.py").write_text("")
    assert own_digest(FileDigests().digest, top=tmp_path) != before


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
        context = setup.context(warm_store)
        found = context.identity
        packages = {package.name for package in setup.toolchain.packages}
        tools = {label for label, _ in toolchain_files(setup.toolchain)}
    assert set(found) == packages | tools | {"python", "pallasc", "computed with", "traced with"}
    assert tools == {"libdevice", "nvlink", "plugin", "ptxas"}
    assert all(len(value) == 64 for label, value in found.items() if label != "python")
    assert context.digests.hashed < 50, "the store remembers the digests of the toolchain"


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


def test_recorded_packages_differ_from_absent_ones() -> None:
    assert recorded(["numpy"]) == recorded(["numpy"])
    assert len({recorded(["numpy"]), recorded(["no-such-dist"]), recorded([])}) == 3


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


def test_what_jax_sets_itself_is_in_no_key(
    warm_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=0")
    with prepare() as setup:
        before = setup.context(warm_store).variables
    assert before["XLA_FLAGS"] == "--xla_gpu_autotune_level=0"
    found = set_by_jax()
    assert {"MOSAIC_GPU_CUDA_ROOT", "TPU_SKIP_MDS_QUERY"} <= found.keys()
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    with prepare() as setup:
        assert setup.context(warm_store).variables == before


def set_by_jax() -> dict[str, str]:
    """Return the variables that JAX sets when it and Mosaic GPU are imported."""
    program = (
        "import json, os; before = dict(os.environ)\n"
        "from jax.experimental.mosaic import gpu\n"
        "print(json.dumps(dict(os.environ.items() - before.items())))"
    )
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    ran = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, str] = json.loads(ran.stdout)
    return found


def test_workers_are_told_all_that_they_need(warm_store: Store) -> None:
    with prepare() as setup:
        context = setup.context(warm_store)
        told = Introduction.of(setup, context, warm_store)
    assert told.identity == context.for_actions()
    assert (told.ptxas.is_file(), told.store) == (True, warm_store.root)
    assert pickle.loads(pickle.dumps(told)) == told
