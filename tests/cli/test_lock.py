"""`pallasc lock`, over a store that was built once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RunCommand = Callable[..., Any]

F32, BF16 = "add[m=1024,dtype=f32]@h100-sxm", "add[m=1024,dtype=bf16]@h100-sxm"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def lock(run: RunCommand, built: Any) -> Path:
    """Write the lock file of the spec that was built."""
    result = run("lock", *built.arguments, "--update")
    assert (result.code, result.err) == (0, "pallasc.lock is written: 2 added\n")
    assert result.out == f"+ {BF16}\n+ {F32}\n"
    return Path("pallasc.lock")


def test_a_lock_that_is_not_there_is_not_current(run: RunCommand, built: Any) -> None:
    result = run("lock", *built.arguments)
    assert (result.code, result.out) == (3, "")
    assert result.err == (
        "error: there is no pallasc.lock.\n  Make it with: pallasc lock SPECS --update\n"
    )


def test_a_lock_that_was_just_written_is_current(run: RunCommand, built: Any, lock: Path) -> None:
    result = run("lock", *built.arguments)
    assert (result.code, result.out, result.err) == (0, "", "pallasc.lock is current: 2 same\n")
    names = [line.split(": {")[0].strip() for line in lock.read_text().splitlines()[-2:]]
    assert names == [BF16, F32]


def test_a_lock_that_is_current_is_not_touched(run: RunCommand, built: Any, lock: Path) -> None:
    lock.write_text(f"# by hand\n{lock.read_text()}")
    before = (lock.stat().st_ino, lock.stat().st_mtime_ns, lock.read_text())
    result = run("lock", *built.arguments, "--update")
    assert (result.code, result.err) == (0, "pallasc.lock is current: 2 same\n")
    assert (lock.stat().st_ino, lock.stat().st_mtime_ns, lock.read_text()) == before


def test_a_selection_leaves_other_entries_alone_and_everything_drops_them(
    run: RunCommand, built: Any, lock: Path
) -> None:
    text = lock.read_text()
    lock.write_text(text.replace(F32, "gone@b200"))
    result = run("lock", *built.arguments)
    assert (result.code, result.out) == (3, f"+ {F32}\n- gone@b200\n")
    assert result.err == (
        "pallasc.lock is not current: 1 added, 1 dropped, 1 same\n"
        "  If that is intended: pallasc lock SPECS --update\n"
    )
    selected = run("lock", *built.arguments, "--update", "-k", "dtype=f32")
    assert (selected.code, selected.out) == (0, f"+ {F32}\n")
    assert "gone@b200" in lock.read_text()
    assert run("lock", *built.arguments, "-k", "dtype=f32").code == 0
    assert run("lock", *built.arguments, "--target", "h100-sxm").code == 0
    everything = run("lock", *built.arguments, "--update")
    assert (everything.code, everything.out) == (0, "- gone@b200\n")
    assert lock.read_text() == text


def test_an_empty_store_is_told_to_be_filled(
    run: RunCommand, built: Any, lock: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result = run("lock", built.arguments[0], "--store", tmp_path / "empty")
    assert (result.code, result.out[:2]) == (3, "? ")
    assert result.err.endswith("  Build them first: pallasc build SPECS\n")


def test_another_file_can_be_the_lock(run: RunCommand, built: Any) -> None:
    result = run("lock", *built.arguments, "--update", "--lock", "py.lock")
    assert (result.code, os.listdir()) == (0, ["py.lock"])
    assert run("lock", *built.arguments, "--lock", "py.lock").code == 0
    Path("py.lock").write_text(Path("py.lock").read_text().replace(F32, "gone@b200"))
    assert run("lock", *built.arguments, "--lock", "py.lock").err.endswith(
        "If that is intended: pallasc lock SPECS --update --lock py.lock\n"
    )


def test_the_differences_are_json(run: RunCommand, built: Any, lock: Path) -> None:
    text = lock.read_text()
    lock.write_text(text.replace(F32, "gone@b200"))
    result = run("lock", *built.arguments, "--json")
    data = json.loads(result.out)
    entry = data["changes"][1]["before"]
    assert all(entry[field] in text for field in ("action", "artifact", "request"))
    assert (result.code, data) == (
        3,
        {
            "schema": 1,
            "lock": "pallasc.lock",
            "written": False,
            "totals": {"added": 1, "changed": 0, "dropped": 1, "same": 1, "unknown": 0},
            "toolchain": [],
            "changes": [
                {"id": F32, "change": "added", "before": None, "after": None, "reason": ""},
                {
                    "id": "gone@b200",
                    "change": "dropped",
                    "before": entry,
                    "after": None,
                    "reason": "",
                },
            ],
            "tables": [],
        },
    )
    updated = json.loads(run("lock", *built.arguments, "--update", "--json").out)
    assert updated["written"] is True
    assert updated["changes"][0]["after"] == entry


def test_a_merge_conflict_ends_with_2_and_the_line(run: RunCommand, built: Any, lock: Path) -> None:
    text = lock.read_text()
    lock.write_text(text.replace("variants:\n", "variants:\n<<<<<<< HEAD\n"))
    line = text.splitlines().index("variants:") + 2
    for options in ((), ("--update",)):
        result = run("lock", *built.arguments, *options)
        assert (result.code, result.out) == (2, "")
        assert result.err.startswith(
            f"error: pallasc.lock:{line}: the lock holds the marks of a merge conflict.\n"
        )


def test_a_lock_of_another_toolchain_ends_with_3(
    run: RunCommand, built: Any, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_hlo_as_text")
    result = run("lock", *built.arguments)
    assert (result.code, result.err) == (
        3,
        "error: pallasc.lock is for another toolchain: variable XLA_FLAGS: only here.\n"
        "  Install what it was made with, or run: pallasc lock SPECS --update\n",
    )


def test_a_variant_that_fails_leaves_the_lock_as_it_is(
    run: RunCommand, built: Any, lock: Path
) -> None:
    text = lock.read_text()
    spec = Path("kernels.yaml")
    spec.write_text(
        "schema: 1\ntargets: [sm_90a]\nkernels:\n"
        "  - {name: fails, entry: 'kernels.py:fails', args: {x: 'f32[8]'}}\n"
    )
    Path("kernels.py").write_text("def fails(x): raise ValueError(x.shape)\n")
    result = run("lock", spec, "--update", "--store", built.store)
    assert (result.code, result.out) == (1, "")
    assert "ValueError: (8,)" in result.err
    assert result.err.endswith("pallasc.lock is unchanged.\n")
    assert lock.read_text() == text


def test_an_update_takes_a_time_limit_for_each_variant(run: RunCommand, built: Any) -> None:
    Path("kernels.yaml").write_text(
        "schema: 1\ntargets: [sm_90a]\nkernels:\n"
        "  - {name: sleeps, entry: 'kernels.py:sleeps', args: {x: 'f32[8]'}}\n"
    )
    Path("kernels.py").write_text("import time\ndef sleeps(x): time.sleep(600)\n")
    options = ("--update", "--store", built.store, "--timeout", "0.5", "--memory", "4GiB")
    result = run("lock", "kernels.yaml", *options)
    assert (result.code, result.out, os.path.exists("pallasc.lock")) == (1, "", False)
    assert "--timeout 0.5" in result.err


def test_a_size_that_is_none_is_a_mistake(run: RunCommand) -> None:
    result = run("lock", "kernels.yaml", "--update", "--memory", "much")
    assert (result.code, result.out) == (2, "")
    assert "--memory" in result.err


def test_neither_a_check_nor_an_update_of_what_is_built_starts_jax(
    process: RunCommand, built: Any, tmp_path: Path
) -> None:
    for options in (("--update",), ()):
        listing = tmp_path / "modules"
        result = process("lock", *built.arguments, *options, modules=listing)
        assert result.code == 0
        loaded = set(listing.read_text().splitlines())
        assert "pallasc.compiler.builds.relock" in loaded
        assert loaded & {"jax", "jaxlib", "numpy", "llvmlite"} == set()
