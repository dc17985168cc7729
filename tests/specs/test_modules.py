"""Loading files of the user's as modules."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pallasc.errors import SpecError
from pallasc.specs.entries import load_module, module_name


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_a_file_is_executed_once_unless_asked(tmp_path: Path) -> None:
    file = tmp_path / "once.py"
    file.write_text("value = object()\n")
    first = load_module(file)
    assert load_module(file) is first
    assert load_module(file, fresh=True) is not first
    assert sys.modules[module_name(file)].__name__ == "_pallasc_spec_once"


def test_files_of_one_stem_do_not_mix(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "near_by.py").touch()
        (tmp_path / name / "same.py").write_text(f"import near_by\nvalue = {name!r}\n")
    assert load_module(tmp_path / "one/same.py").value == "one"
    assert load_module(tmp_path / "two/same.py").value == "two"


def test_a_file_that_raises_leaves_no_module(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("x = 1\nraise ValueError('no')\n")
    with pytest.raises(SpecError) as caught:
        load_module(tmp_path / "bad.py")
    assert str(caught.value) == f"{tmp_path}/bad.py:2: ValueError: no"
    assert "_pallasc_spec_bad" not in sys.modules
