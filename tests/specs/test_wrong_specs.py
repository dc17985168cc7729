"""Every mistake in `wrong/` gives exactly the message beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pallasc.errors import SpecError
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_specs

FOLDER = Path(__file__).parent / "wrong"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_spec_gives_its_exact_message(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)
    with pytest.raises(SpecError) as caught:
        expand(load_specs([f"{name}.yaml"]))
    assert f"{caught.value}\n" == (FOLDER / f"{name}.txt").read_text("utf-8")
    assert caught.value.exit_code == 2


def test_every_message_has_a_spec_and_there_are_many() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.txt")) == NAMES
    assert len(NAMES) >= 90


@pytest.mark.parametrize("name", NAMES)
def test_every_message_names_file_and_line(name: str) -> None:
    first = (FOLDER / f"{name}.txt").read_text("utf-8").partition(": ")[0]
    assert first == "file_empty.yaml" or first.startswith((f"{name}.yaml:", "tables/rows.yaml:"))
