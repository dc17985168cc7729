"""What is installed: all of it is listed, whatever is missing."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from pallasc.compiler.toolchain import toolchain
from pallasc.compiler.toolchain.toolchain import (
    Item,
    Package,
    inventory,
    jax_problem,
    problem_of,
)


def install(monkeypatch: pytest.MonkeyPatch, is_installed: Callable[[str], bool]) -> None:
    """Install some packages in version 1.0, without files."""

    def find_package(name: str) -> Package | None:
        return Package(name, "1.0", Path("/nonexistent")) if is_installed(name) else None

    monkeypatch.setattr(toolchain, "find_package", find_package)


def _by_name(items: list[Item]) -> dict[str, Item]:
    return {item.name: item for item in items}


def test_versions_are_those_of_the_installed_packages() -> None:
    items = _by_name(inventory())
    assert items["jax"].version == metadata.version("jax")
    assert items["llvmlite"].version == metadata.version("llvmlite")
    assert Path(items["ptxas"].path).is_file()
    assert items["ptxas"].version.split(".")[0] in ("12", "13")
    assert problem_of(list(items.values())) is None


def test_nothing_is_left_out_when_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = [item.name for item in inventory()]
    install(monkeypatch, lambda name: False)
    items = _by_name(inventory())
    assert sorted(items) == sorted(everything)
    wrong = [item for item in items.values() if item.needed and item.problem]
    assert {item.problem for item in wrong} == {"missing"}
    assert {item.fix for item in wrong} == {'pip install "pallasc[cuda13]"'}
    assert problem_of(list(items.values())) == (
        "nothing can be compiled: see jax, jaxlib, jax-cuda13-plugin, jax-cuda13-pjrt, ptxas, "
        "nvlink, libdevice, llvmlite, protobuf, cramjam in the list."
    )


def test_cuda_12_has_no_linker_and_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its plugin is installed here in name only, without a file of NVIDIA's wheels."""
    install(monkeypatch, lambda name: "cuda13" not in name)
    items = _by_name(inventory())
    assert (items["nvlink"].needed, items["nvlink"].fix) == (False, "")
    assert items["nvlink"].purpose == "NVIDIA's wheel for CUDA 12 has none"
    assert "ptxas" in (problem_of(list(items.values())) or "")
    assert problem_of([items["nvlink"]]) is None


def test_an_assembler_that_cannot_be_run_is_a_problem(tmp_path: Path) -> None:
    tool = tmp_path / "ptxas"
    tool.write_text("#!/bin/sh\necho nothing\n")
    tool.chmod(0o755)
    item = _by_name(inventory(tool))["ptxas"]
    assert (item.version, item.path) == ("", str(tool))
    assert "does not print a version" in item.problem


def test_the_parts_of_jax_must_be_of_one_version() -> None:
    assert jax_problem("jax", "0.12.0.1", "0.12.0.1") == ""
    assert jax_problem("jaxlib", "0.12.0", "0.12.0") == ""
    assert jax_problem("jaxlib", "0.10.2", "") == ""
    problem = jax_problem("jaxlib", "0.10.2", "0.12.0")
    assert problem == "JAX is 0.12.0: their versions must be equal"


def test_an_untested_jax_is_a_problem() -> None:
    assert jax_problem("jax", "99.1", "99.1").startswith("JAX 99.1 is not a version")


def test_what_is_not_needed_keeps_nothing_from_compiling() -> None:
    driver = Item("driver", "", "launches", needed=False, problem="none")
    assert problem_of([driver]) is None


def test_what_signs_is_listed_with_its_own_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, lambda name: name != "cryptography")
    item = _by_name(inventory())["cryptography"]
    assert (item.needed, item.problem, item.fix) == (
        False,
        "missing",
        'pip install "pallasc[sign]"',
    )
