"""`pallasc lock`, over a store that was built once."""

import json
from pathlib import Path
from typing import Any

import pytest

F32, BF16 = "add[m=1024,dtype=f32]@h100-sxm", "add[m=1024,dtype=bf16]@h100-sxm"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def check(run: Any, built: Any) -> Any:
    """Run the command for the spec that was built."""
    return lambda *options: run("lock", *built.arguments, *options)


@pytest.fixture
def lock(check: Any) -> Path:
    """Write the lock file."""
    result = check("--update")
    assert (result.code, result.err) == (0, "pallasc.lock is written: 2 added\n")
    assert result.out == f"+ {BF16}\n+ {F32}\n"
    return Path("pallasc.lock")


def test_a_lock_that_was_just_written_is_current_and_is_not_touched_again(
    check: Any, lock: Path
) -> None:
    result = check()
    assert (result.code, result.out, result.err) == (0, "", "pallasc.lock is current: 2 same\n")
    names = [line.split(": {")[0].strip() for line in lock.read_text().splitlines()[-2:]]
    assert names == [BF16, F32]
    lock.write_text(f"# by hand\n{lock.read_text()}")
    before = (lock.stat().st_ino, lock.stat().st_mtime_ns, lock.read_text())
    result = check("--update")
    assert (result.code, result.err) == (0, "pallasc.lock is current: 2 same\n")
    assert (lock.stat().st_ino, lock.stat().st_mtime_ns, lock.read_text()) == before


def test_a_selection_leaves_other_entries_alone_and_everything_drops_them(
    check: Any, lock: Path
) -> None:
    text = lock.read_text()
    lock.write_text(text.replace(F32, "gone@b200"))
    result = check()
    assert (result.code, result.out) == (3, f"+ {F32}\n- gone@b200\n")
    assert result.err == (
        "pallasc.lock is not current: 1 added, 1 dropped, 1 same\n"
        "  If that is intended: pallasc lock SPECS --update\n"
    )
    selected = check("--update", "-k", "dtype=f32")
    assert (selected.code, selected.out) == (0, f"+ {F32}\n")
    assert "gone@b200" in lock.read_text()
    assert check("-k", "dtype=f32").code == 0
    assert check("--target", "h100-sxm").code == 0
    everything = check("--update")
    assert (everything.code, everything.out) == (0, "- gone@b200\n")
    assert lock.read_text() == text


def test_a_lock_that_is_not_there_and_an_empty_store_are_told_what_to_do(
    run: Any, built: Any, check: Any
) -> None:
    result = check()
    assert (result.code, result.out) == (3, "")
    assert result.err == (
        "error: there is no pallasc.lock.\n  Make it with: pallasc lock SPECS --update\n"
    )
    assert check("--update").code == 0
    result = run("lock", built.spec, "--store", "empty")
    assert (result.code, result.out[:2]) == (3, "? ")
    assert result.err.endswith("  Build them first: pallasc build SPECS\n")


def test_the_differences_are_json(check: Any, lock: Path) -> None:
    text = lock.read_text()
    lock.write_text(text.replace(F32, "gone@b200"))
    result = check("--json")
    data = json.loads(result.out)
    entry = data["changes"][1]["before"]
    assert all(entry[field] in text for field in ("action", "artifact", "request"))
    added, dropped = {"before": None, "after": None}, {"before": entry, "after": None}
    assert (result.code, data) == (
        3,
        {
            "schema": 1,
            "lock": "pallasc.lock",
            "written": False,
            "totals": {"added": 1, "changed": 0, "dropped": 1, "same": 1, "unknown": 0},
            "toolchain": [],
            "changes": [
                {"id": F32, "change": "added", "reason": "", **added},
                {"id": "gone@b200", "change": "dropped", "reason": "", **dropped},
            ],
            "tables": [],
        },
    )
    updated = json.loads(check("--update", "--json").out)
    assert updated["written"] is True
    assert updated["changes"][0]["after"] == entry
