"""The generated pages of docs/ are current, and a stale one is noticed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from pallasc.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """Return docs/generate.py as a module."""
    location = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert location is not None
    assert location.loader is not None
    module = importlib.util.module_from_spec(location)
    location.loader.exec_module(module)
    return module


def test_the_pages_in_the_repository_are_current(
    generate: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate.main(["--check"]) == 0, capsys.readouterr().err
    page = generate.pages()["cli.md"]
    assert [name for name in COMMANDS if f"\n## pallasc {name}\n" not in page] == []
    assert generate.main(["--chekc"]) == 2


def test_a_stale_page_is_noticed_and_written_again(
    generate: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, results = generate.coverage_page.all_results().popitem()
    kernels = {name: [*case["targets"]] for name, case in results["cases"].items()}
    monkeypatch.setattr(generate, "DOCS", tmp_path)
    monkeypatch.setattr(generate, "declared", lambda: kernels)
    assert generate.main(["--write"]) == 0
    (tmp_path / "coverage.md").write_text("old")
    capsys.readouterr()
    assert generate.main(["--check"]) == 1
    assert (tmp_path / "coverage.md").read_text() == "old"
    assert capsys.readouterr().err == "docs/coverage.md was not current: run `make docs`.\n"
    assert generate.main([]) == 1
    assert capsys.readouterr().err.startswith("docs/coverage.md was not current: it is written ")
    (tmp_path / "targets.md").unlink()
    assert generate.stale(tmp_path) == ["targets.md"]
    assert generate.main([]) == 1
    assert generate.main(["--check"]) == 0


def test_results_of_other_kernels_are_not_current(generate: ModuleType) -> None:
    _, results = generate.coverage_page.all_results().popitem()
    kernels = {name: [*case["targets"]] for name, case in results["cases"].items()}
    assert generate.unrecorded(kernels) == []
    told = "the results of JAX {} are not those of the kernel {}"
    (name, architectures) = kernels.popitem()
    wanted = [told.format(version, name) for version in ("0.10", "0.12")]
    assert generate.unrecorded(kernels) == wanted
    assert generate.unrecorded({**kernels, name: architectures[:-1]}) == wanted
    added = {**kernels, name: architectures, "new": ["sm_80"]}
    assert generate.unrecorded(added) == [told.format(v, "new") for v in ("0.10", "0.12")]
