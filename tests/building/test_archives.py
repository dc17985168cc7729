"""Kernels imported from a zip archive: zipapps, pexes, zipped eggs."""

import zipfile
from pathlib import Path
from typing import Any

import pytest

FILES = {
    "zipped/__init__.py": "",
    "zipped/kernels.py": "from zipped.factors import FACTOR\ndef run(x): return x * FACTOR\n",
    "zipped/factors.py": "FACTOR = 3\n",
}


def write_archive(path: Path, files: dict[str, str]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


def test_a_kernel_in_an_archive_is_a_hit_until_the_archive_changes(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = project.folder.parent / "app.pyz"
    write_archive(archive, FILES)
    monkeypatch.syspath_prepend(str(archive))
    monkeypatch.setenv("PYTHONPATH", str(archive))  # for the workers
    project.spec({"name": "zipped", "entry": "zipped.kernels:run"})
    assert [r.status for r in project.build().results] == ["compiled"]
    assert [r.status for r in project.build().results] == ["hit"]

    later = {**FILES, "zipped/unused.py": "", "zipped/factors.py": "FACTOR = 4\n"}
    write_archive(archive, {**later, "zipped/factors.py": FILES["zipped/factors.py"]})
    assert [r.status for r in project.build().results] == ["lowered"]
    write_archive(archive, later)
    report = project.build()
    assert [(r.status, r.reason) for r in report.results] == [
        ("compiled", f"zipped ({archive}/zipped/__init__.py) has changed")
    ]
    assert not report.notes

    write_archive(archive, {**later, "zipped/factors.py": "FACTOR = (\n"})
    (result,) = project.build().results
    assert result.status == "failed"
    assert "SyntaxError" in str(result.error)
