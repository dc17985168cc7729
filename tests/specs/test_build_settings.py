"""`[tool.pallasc]` of `pyproject.toml`, as builds read it."""

from pathlib import Path

import pytest

from pallasc.errors import SpecError
from pallasc.specs.settings import build_settings, cache_salt

WHOLE = """\
[project]
name = "kernels"

[tool.pallasc]
env = ["KERNEL_TILE"]
remote = "s3://kernels/cache"
remote-write = false
remote-signed = "required"
cache-salt = "2026-03"
"""


def write(folder: Path, text: str) -> Path:
    (folder / "pyproject.toml").write_text(text)
    return folder


def test_the_nearest_project_says_what_holds_for_builds(tmp_path: Path) -> None:
    inner = tmp_path / "specs" / "deep"
    inner.mkdir(parents=True)
    found = build_settings(write(tmp_path, WHOLE) / "specs" / "deep")
    assert found[:4] == ("s3://kernels/cache", False, "required", "2026-03")
    assert str(found.where["remote"]) == f"{tmp_path}/pyproject.toml:6"
    write(inner, "[project]\n")
    assert build_settings(inner) == ("", None, "", "", "", {})
    for text in ("", "[tool.other]\nremote = 3\n", "tool = 3\n", "[[tool]]\n"):
        write(inner, f"# pallasc remote\n{text}")
        assert build_settings(inner) == ("", None, "", "", "", {})
    with pytest.raises(SpecError, match="not valid TOML") as caught:
        build_settings(write(inner, "[tool.pallasc]\nremote =\n"))
    assert str(caught.value.location) == f"{inner}/pyproject.toml"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("remote = 3", "tool.pallasc.remote: expected a URL, got 3."),
        ('remote-write = "yes"', "tool.pallasc.remote-write: expected true or false, got 'yes'."),
        (
            'remote-signed = "require"',
            "tool.pallasc.remote-signed: expected 'required' or 'optional', got 'require'.",
        ),
        ('cache-salt = "a\\nb"', "tool.pallasc.cache-salt: expected a line of at most 200 "),
        ('remotes = "s3://b"', "tool.pallasc: unknown key 'remotes'."),
    ],
)
def test_a_wrong_value_is_told_with_its_line(line: str, told: str, tmp_path: Path) -> None:
    text = f"[project]\nname = 'x'\n\n[tool.pallasc]\nenv = []\n{line}\n"
    with pytest.raises(SpecError) as caught:
        build_settings(write(tmp_path, text))
    assert str(caught.value.location) == f"{tmp_path}/pyproject.toml:6"
    assert caught.value.message.startswith(told)


def test_the_salt_of_the_environment_comes_before_the_projects(tmp_path: Path) -> None:
    write(tmp_path, WHOLE)
    assert cache_salt({"PALLASC_CACHE_SALT": ""}, tmp_path) == "2026-03"
    assert cache_salt({"PALLASC_CACHE_SALT": "after the leak"}, tmp_path) == "after the leak"
    for salt in ("a\nb", "é", "x" * 201):
        with pytest.raises(SpecError, match=r"^PALLASC_CACHE_SALT is '.*, which is not a line of"):
            cache_salt({"PALLASC_CACHE_SALT": salt}, tmp_path)
