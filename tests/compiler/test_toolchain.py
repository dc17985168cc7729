"""The installed compiler: it is found, listed, and refused if it was not tested."""

from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from pallasc.cache.stat_digest import FileDigests
from pallasc.compiler.toolchain import toolchain as module
from pallasc.compiler.toolchain.setup import prepare
from pallasc.compiler.toolchain.toolchain import (
    Item,
    Package,
    check_versions,
    find_toolchain,
    inventory,
    problem_of,
    tool_version,
    toolchain_files,
)
from pallasc.errors import ToolError


def _packages(*versions: str) -> tuple[Package, ...]:
    names = ("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda13-pjrt")
    return tuple(
        Package(name, version, Path()) for name, version in zip(names, versions, strict=True)
    )


def _tool(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_the_installed_toolchain_is_found_and_recorded() -> None:
    with prepare() as setup:
        toolchain, record = setup.toolchain, setup.record(FileDigests())
    assert toolchain.packages[0].version == metadata.version("jax")
    for path in (toolchain.ptxas, toolchain.libdevice, toolchain.plugin):
        assert path.is_file()
        assert "site-packages" in str(path)
    assert record["ptxas"] == tool_version(toolchain.ptxas)
    assert tool_version(toolchain.ptxas).count(".") == 2
    labels = [label for label, _ in toolchain_files(toolchain)]
    assert labels == sorted(labels)
    assert isinstance(record["digests"], dict)
    assert list(record["digests"]) == labels


def test_the_assembler_on_the_path_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = _tool(tmp_path / "ptxas", "\x7fELF another assembler")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_toolchain().ptxas != other
    assert find_toolchain(other).ptxas == other


def test_an_assembler_that_is_a_script_or_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="is a script, not an assembler"):
        find_toolchain(_tool(tmp_path / "ptxas", '#!/bin/sh\nexec /opt/ptxas "$@"\n'))
    with pytest.raises(ToolError, match=r"There is no assembler .*nowhere"):
        find_toolchain(tmp_path / "nowhere")


@pytest.mark.parametrize("version", ["0.10.2", "0.11.2", "0.12.0.1", "0.12.9"])
def test_a_version_that_was_tested_is_accepted(version: str) -> None:
    check_versions(_packages(version, version, version, version))


@pytest.mark.parametrize("version", ["0.9.0", "0.10.1", "0.11.0", "0.13.0", "1.0"])
def test_another_version_is_refused_with_those_that_were_tested(version: str) -> None:
    with pytest.raises(ToolError) as caught:
        check_versions(_packages(version, version, version, version))
    assert caught.value.message == (
        f"JAX {version} is not a version that pallasc was tested with: "
        "0.10.2, 0.11.2, 0.12.0, 0.12.0.1."
    )
    assert caught.value.exit_code == 4


def test_parts_of_different_versions_are_refused() -> None:
    with pytest.raises(
        ToolError, match=r"JAX is 0.10.2, but jax-cuda13-pjrt 0.11.2: their versions must be equal"
    ):
        check_versions(_packages("0.10.2", "0.10.2", "0.10.2", "0.11.2"))


@pytest.mark.parametrize("text", ["#!/bin/sh\necho hello\n", "no program"])
def test_what_prints_no_version_is_no_tool(tmp_path: Path, text: str) -> None:
    tool = _tool(tmp_path / "ptxas", text)
    with pytest.raises(ToolError, match=r"ptxas (--version does not print|cannot be run)"):
        tool_version(tool)
    item = _inventory(tool)["ptxas"]
    assert (item.version, item.path) == ("", str(tool))
    assert "does not print a version" in item.problem or "cannot be run" in item.problem


def _install(monkeypatch: pytest.MonkeyPatch, is_installed: Callable[[str], bool]) -> None:
    """Install some packages in version 1.0, without files."""

    def find_package(name: str) -> Package | None:
        return Package(name, "1.0", Path("/nonexistent")) if is_installed(name) else None

    monkeypatch.setattr(module, "find_package", find_package)


def _inventory(*tools: Path) -> dict[str, Item]:
    return {item.name: item for item in inventory(*tools)}


def test_the_inventory_has_everything_also_if_nothing_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    everything = _inventory()
    assert everything["jax"].version == metadata.version("jax")
    assert everything["llvmlite"].version == metadata.version("llvmlite")
    assert Path(everything["ptxas"].path).is_file()
    assert everything["ptxas"].version.split(".")[0] in ("12", "13")
    assert problem_of(list(everything.values())) is None
    _install(monkeypatch, lambda name: False)
    items = _inventory()
    assert sorted(items) == sorted(everything)
    wrong = [item for item in items.values() if item.needed and item.problem]
    assert {item.problem for item in wrong} == {"missing"}
    assert {item.fix for item in wrong} == {'pip install "pallasc[cuda13]"'}
    assert problem_of(list(items.values())) == (
        "nothing can be compiled: see jax, jaxlib, jax-cuda13-plugin, jax-cuda13-pjrt, llvmlite, "
        "protobuf, cramjam, ptxas, nvlink, libdevice in the list."
    )
    signs = items["cryptography"]
    assert (signs.needed, signs.problem) == (False, "missing")
    assert signs.fix == 'pip install "pallasc[sign]"'


def test_cuda_12_has_no_linker_and_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its plugin is installed here in name only, without a file of NVIDIA's wheels."""
    _install(monkeypatch, lambda name: "cuda13" not in name)
    items = _inventory()
    assert (items["nvlink"].needed, items["nvlink"].fix) == (False, "")
    assert items["nvlink"].purpose == "NVIDIA's wheel for CUDA 12 has none"
    assert "ptxas" in (problem_of(list(items.values())) or "")
    assert problem_of([items["nvlink"]]) is None
