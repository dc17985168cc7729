"""What a wheel's build needs installed for a remote store."""

from __future__ import annotations

from pathlib import Path

import pytest

from pallasc.errors import SpecError
from pallasc.hooks import bundles
from pallasc.hooks.bundles import build_requirements

PROJECT = '[tool.pallasc.bundles]\n"mylib/k.pallasc" = "kernels/"\n'
READY = '[tool.pallasc.bundles]\n"mylib/k.pallasc" = "before.pallasc"\n'


@pytest.fixture
def without_obstore(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the package for remote stores is not installed; the compiler is."""
    find = bundles.find_package
    monkeypatch.setattr(
        bundles, "find_package", lambda name: None if name == "obstore" else find(name)
    )


@pytest.mark.usefixtures("without_obstore")
@pytest.mark.parametrize(
    ("project", "remote", "required"),
    [
        (PROJECT, "", []),
        (PROJECT, "s3://bucket/prefix", ["pallasc[remote]"]),
        (PROJECT, "file:///srv/kernels", ["pallasc[remote]"]),
        (READY, "s3://bucket/prefix", []),
    ],
)
def test_a_remote_store_needs_its_packages_where_specs_are_built(
    project: str, remote: str, required: list[str], tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").write_text(project)
    assert build_requirements(tmp_path, {"PALLASC_REMOTE": remote}) == required
    if remote:
        setting = f'[tool.pallasc]\nremote = "{remote}"\n'
        (tmp_path / "pyproject.toml").write_text(f"{setting}{project}")
        assert build_requirements(tmp_path, {}) == required
        assert build_requirements(tmp_path, {"PALLASC_REMOTE": "none"}) == []


def test_packages_that_are_there_are_not_required(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    assert build_requirements(tmp_path, {"PALLASC_REMOTE": "s3://bucket/prefix"}) == []


def test_a_wrong_remote_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[tool.pallasc]\nremote = "ftp://x"\n{PROJECT}')
    with pytest.raises(SpecError, match="begins with ftp://") as caught:
        build_requirements(tmp_path, {})
    assert str(caught.value.location) == f"{tmp_path}/pyproject.toml:2"
