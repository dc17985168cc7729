"""Finding the installed compiler, and refusing one that was not tested."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from pallasc.cache.stat_digest import FileDigests
from pallasc.compiler.toolchain.setup import prepare
from pallasc.compiler.toolchain.toolchain import (
    Package,
    check_versions,
    find_toolchain,
    tool_version,
    toolchain_files,
)
from pallasc.errors import ToolError


def _packages(*versions: str) -> tuple[Package, ...]:
    names = ("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda13-pjrt")
    return tuple(
        Package(name, version, Path()) for name, version in zip(names, versions, strict=True)
    )


def test_the_installed_toolchain_is_found() -> None:
    toolchain = find_toolchain()
    assert toolchain.packages[0].version == metadata.version("jax")
    for path in (toolchain.ptxas, toolchain.libdevice, toolchain.plugin):
        assert path.is_file()
        assert "site-packages" in str(path)


def test_the_assembler_on_the_path_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "ptxas"
    other.write_bytes(b"\x7fELF another assembler")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_toolchain().ptxas != other
    assert find_toolchain(other).ptxas == other


def test_a_script_is_no_assembler(tmp_path: Path) -> None:
    script = tmp_path / "ptxas"
    script.write_text('#!/bin/sh\nexec /opt/ptxas "$@"\n')
    with pytest.raises(ToolError, match="is a script, not an assembler"):
        find_toolchain(script)


def test_an_assembler_that_is_not_there_is_refused(tmp_path: Path) -> None:
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


def test_a_tool_prints_its_version() -> None:
    assert tool_version(find_toolchain().ptxas).count(".") == 2


def test_a_tool_is_asked_again_when_its_file_has_changed(tmp_path: Path) -> None:
    tool, asked = tmp_path / "ptxas", tmp_path / "asked"
    for version, times in (("V13.0.1", 1), ("V13.0.1", 1), ("V13.11.2", 2)):
        if not asked.exists() or version != "V13.0.1":
            tool.write_text(f"#!/bin/sh\necho {version}\necho asked >> {asked}\n")
            tool.chmod(0o755)
        assert tool_version(tool) == version[1:]
        assert asked.read_text().count("asked") == times


@pytest.mark.parametrize("text", ["#!/bin/sh\necho hello\n", "no program"])
def test_what_prints_no_version_is_no_tool(tmp_path: Path, text: str) -> None:
    tool = tmp_path / "ptxas"
    tool.write_text(text)
    tool.chmod(0o755)
    with pytest.raises(ToolError, match=r"ptxas (--version does not print|cannot be run)"):
        tool_version(tool)


def test_the_record_names_versions_and_digests() -> None:
    with prepare() as setup:
        toolchain, record = setup.toolchain, setup.record(FileDigests())
    assert record["ptxas"] == tool_version(toolchain.ptxas)
    labels = [label for label, _ in toolchain_files(toolchain)]
    assert labels == sorted(labels)
    assert isinstance(record["digests"], dict)
    assert list(record["digests"]) == labels
