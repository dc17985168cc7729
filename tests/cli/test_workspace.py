"""Files are named relative to the repository, as the CI service sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pallasc.cli.output.text import is_ci, relative_file, workspace_root


@pytest.mark.parametrize("name", ["GITHUB_WORKSPACE", "CI_PROJECT_DIR", "WORKSPACE"])
def test_the_ci_service_says_where_the_repository_is(name: str, tmp_path: Path) -> None:
    assert workspace_root({name: str(tmp_path)}) == tmp_path.resolve()


@pytest.mark.parametrize("environment", [{}, {"GITHUB_WORKSPACE": ""}])
def test_without_one_it_is_the_current_folder(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert workspace_root(environment) == tmp_path.resolve()


def test_a_file_below_it_is_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path / "src")
    root = tmp_path.resolve()
    assert relative_file("kernels.py", root) == "src/kernels.py"
    assert relative_file("../kernels.py", root) == "kernels.py"
    assert relative_file(str(tmp_path / "a b.py"), root) == "a b.py"
    assert relative_file("/usr/lib/x.py", root) is None
    assert relative_file(f"{tmp_path}-2/x.py", root) is None


def test_links_on_the_way_do_not_hide_it(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    link = tmp_path / "link"
    link.symlink_to(real)
    assert relative_file(str(link / "x.py"), workspace_root({"WORKSPACE": str(link)})) == "x.py"
    (real / "y.py").symlink_to(tmp_path / "elsewhere.py")
    assert relative_file(str(real / "y.py"), real.resolve()) == "y.py"


@pytest.mark.parametrize(("text", "expected"), [("true", True), ("1", True), ("False", False)])
def test_a_ci_service_is_known_by_its_variable(text: str, expected: bool) -> None:
    assert is_ci({"CI": text}) is expected
    assert not is_ci({"CI": ""})
    assert not is_ci({})
