"""What an sdist carries, so that a wheel can be built from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pallasc.errors import SpecError
from pallasc.hooks.bundles import source_files
from pallasc.hooks.settings import read_settings

FILES = (
    "kernels.yaml",
    "other.py",
    "notes.txt",
    "made.pallasc",
    "other.lock",
    "pallasc.lock",
    "kernels/matmul.yaml",
    "kernels/matmul.py",
    "kernels/tables/tiles.json",
    "kernels/__pycache__/matmul.cpython-312.pyc",
    "kernels/.hidden/notes",
    "kernels/kernels.pallasc",
)


def sources(folder: Path, value: str) -> list[str]:
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    text = f'[tool.pallasc.bundles]\n"mylib/kernels.pallasc" = {value}\n'
    (folder / "pyproject.toml").write_text(text)
    return source_files(read_settings(folder, {}), folder)


OF_KERNELS = ["kernels/matmul.py", "kernels/matmul.yaml", "kernels/tables/tiles.json"]


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
        (
            '"kernel"',
            "pyproject.toml:2: tool.pallasc.bundles.mylib/kernels.pallasc: "
            "'kernel' does not exist.\n  Did you mean 'kernels'?",
        ),
        (
            '{specs = "kernels", lock = "palasc.lock"}',
            "pyproject.toml:2: tool.pallasc.bundles.mylib/kernels.pallasc: "
            "'palasc.lock' does not exist.\n  Did you mean 'pallasc.lock'?",
        ),
        (
            '"nowhere/at/all.yaml"',
            "pyproject.toml:2: tool.pallasc.bundles.mylib/kernels.pallasc: "
            "'nowhere/at/all.yaml' does not exist.",
        ),
    ],
)
def test_what_is_named_and_not_there_is_refused(value: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        sources(tmp_path, value)
    assert str(caught.value) == message
