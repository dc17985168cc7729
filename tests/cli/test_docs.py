"""The generated pages of docs/ are current, and a stale one is noticed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
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


def test_the_pages_in_the_repository_are_current() -> None:
    script = [sys.executable, "-P", str(ROOT / "docs" / "generate.py"), "--check"]
    result = subprocess.run(script, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_page_that_is_missing_or_changed_is_stale(generate: ModuleType, tmp_path: Path) -> None:
    for name, text in generate.pages().items():
        (tmp_path / name).write_text(text)
    assert generate.stale(tmp_path) == []
    (tmp_path / "cli.md").write_text("old")
    (tmp_path / "targets.md").unlink()
    assert generate.stale(tmp_path) == ["cli.md", "targets.md"]


def test_the_reference_has_every_command(generate: ModuleType) -> None:
    page = generate.pages()["cli.md"]
    assert [f"\n## pallasc {name}\n" in page for name in COMMANDS] == [True] * len(COMMANDS)


def test_a_stale_page_is_written_again_and_fails_the_first_time(
    generate: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(generate, "DOCS", tmp_path)
    monkeypatch.setattr(generate, "declared", recorded(generate))
    assert generate.main(["--write"]) == 0
    (tmp_path / "coverage.md").write_text("old")
    capsys.readouterr()
    assert generate.main(["--check"]) == 1
    assert (tmp_path / "coverage.md").read_text() == "old"
    assert capsys.readouterr().err == "docs/coverage.md was not current: run `make docs`.\n"
    assert generate.main([]) == 1
    assert capsys.readouterr().err.startswith("docs/coverage.md was not current: it is written ")
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0


def recorded(generate: ModuleType) -> Callable[[], dict[str, list[str]]]:
    """Return a function that declares the kernels that there are results of."""
    _, results = generate.coverage_page.all_results().popitem()
    return lambda: {name: [*case["targets"]] for name, case in results["cases"].items()}


def test_results_of_other_kernels_are_not_current(generate: ModuleType) -> None:
    kernels = recorded(generate)()
    assert generate.unrecorded(kernels) == []
    (name, architectures), *_ = kernels.items()
    del kernels[name]
    told = [f"the results of JAX {v} are not those of the kernel {name}" for v in ("0.10", "0.12")]
    assert generate.unrecorded(kernels) == told
    assert generate.unrecorded({**kernels, name: architectures[:-1]}) == told
    missing = [f"the results of JAX {v} are not those of the kernel new" for v in ("0.10", "0.12")]
    assert generate.unrecorded({**kernels, name: architectures, "new": ["sm_80"]}) == missing


def test_a_wrong_argument_is_refused(generate: ModuleType) -> None:
    assert generate.main(["--chekc"]) == 2
