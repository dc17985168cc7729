"""What an sdist carries, so that a wheel can be built from it, and what its build requires."""

import base64
from pathlib import Path

import pytest

from pallasc.errors import SpecError
from pallasc.hooks import bundles
from pallasc.hooks.bundles import build_requirements, source_files
from pallasc.hooks.settings import read_settings

FILES = (
    *("kernels.yaml", "other.py", "notes.txt", "made.pallasc", "other.lock", "pallasc.lock"),
    *("kernels/matmul.yaml", "kernels/matmul.py", "kernels/tables/tiles.json"),
    *("kernels/__pycache__/matmul.cpython-312.pyc", "kernels/.hidden/notes"),
    "kernels/kernels.pallasc",
)
OF_KERNELS = ["kernels/matmul.py", "kernels/matmul.yaml", "kernels/tables/tiles.json"]


def sources(folder: Path, value: str) -> list[str]:
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    text = f'[tool.pallasc.bundles]\n"mylib/kernels.pallasc" = {value}\n'
    (folder / "pyproject.toml").write_text(text)
    return source_files(read_settings(folder, {}), folder)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ('"kernels/"', [*OF_KERNELS, "pallasc.lock"]),
        ('"kernels/matmul.yaml"', [*OF_KERNELS, "pallasc.lock"]),
        ('"kernels.yaml"', ["kernels.yaml", "other.py", "pallasc.lock"]),
        ('"made.pallasc"', ["made.pallasc"]),
        ('{specs = "kernels", lock = "other.lock"}', [*OF_KERNELS, "other.lock"]),
    ],
)
def test_what_lies_beside_a_spec_travels_with_it(
    value: str, expected: list[str], tmp_path: Path
) -> None:
    assert sources(tmp_path, value) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ('"kernel"', "'kernel' does not exist.\n  Did you mean 'kernels'?"),
        (
            '{specs = "kernels", lock = "palasc.lock"}',
            "'palasc.lock' does not exist.\n  Did you mean 'pallasc.lock'?",
        ),
        ('"nowhere/at/all.yaml"', "'nowhere/at/all.yaml' does not exist."),
    ],
)
def test_what_is_named_and_not_there_is_refused(value: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        sources(tmp_path, value)
    place = "pyproject.toml:2: tool.pallasc.bundles.mylib/kernels.pallasc: "
    assert str(caught.value) == f"{place}{message}"


PROJECT = '[tool.pallasc.bundles]\n"mylib/k.pallasc" = "kernels/"\n'
READY = '[tool.pallasc.bundles]\n"mylib/k.pallasc" = "before.pallasc"\n'


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
    project: str, remote: str, required: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(project)
    assert build_requirements(tmp_path, {"PALLASC_REMOTE": remote}) == []  # all is installed
    find = bundles.find_package
    monkeypatch.setattr(
        bundles, "find_package", lambda name: None if name == "obstore" else find(name)
    )
    assert build_requirements(tmp_path, {"PALLASC_REMOTE": remote}) == required
    if remote:
        file.write_text(f'[tool.pallasc]\nremote = "{remote}"\n{project}')
        assert build_requirements(tmp_path, {}) == required
        assert build_requirements(tmp_path, {"PALLASC_REMOTE": "none"}) == []


def test_a_wrong_remote_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[tool.pallasc]\nremote = "ftp://x"\n{PROJECT}')
    with pytest.raises(SpecError, match="begins with ftp://") as caught:
        build_requirements(tmp_path, {})
    assert str(caught.value.location) == f"{tmp_path}/pyproject.toml:2"


@pytest.mark.parametrize(
    ("project", "environ", "required"),
    [
        (PROJECT, {"PALLASC_SIGN_KEY": "/release.key"}, ["pallasc[sign]"]),
        (PROJECT, {"PALLASC_STORE_KEY": "/store.key"}, ["pallasc[sign]"]),
        (PROJECT, {"PALLASC_REQUIRE_SIGNATURE": "1"}, []),
        (PROJECT, {"PALLASC_REQUIRE_SIGNED_STORE": "1", "PALLASC_TRUSTED_KEYS": "{}/trusted.pub"},
         ["pallasc[sign]"]),
        (READY, {}, []),
        (READY, {"PALLASC_REQUIRE_SIGNATURE": "1"}, ["pallasc[sign]"]),
    ],
)  # fmt: skip
def test_a_key_needs_the_package_that_signs_where_it_is_used(
    project: str,
    environ: dict[str, str],
    required: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "pyproject.toml").write_text(project)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    key = f"ed25519:{base64.b64encode(bytes(32)).decode()}\n"
    (tmp_path / "trusted.pub").write_text(key)
    for name, value in environ.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    assert build_requirements(tmp_path, environ) == []
    monkeypatch.setattr(bundles, "find_package", lambda name: None)
    assert build_requirements(tmp_path, environ) == required
