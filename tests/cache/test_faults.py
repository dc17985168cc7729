"""The store under kills, races and limits: never a wrong answer, always healed."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import output_of

PROGRAMS = Path(__file__).parent / "programs"


def test_sixteen_processes_that_want_twenty_cold_keys_make_each_once(
    run_program: Callable[..., str], tmp_path: Path
) -> None:
    assert run_program("flight.py", tmp_path, 16, 20).split() == ["20", "0"]
    assert list((tmp_path / "v1" / "locks").iterdir()) == []


@pytest.mark.parametrize(
    ("program", "counts", "done"),
    [
        ("kill.py", (50, 1), {"kills": 50}),
        ("race.py", (8, 250), {"hits": 100, "puts": 100, "packs": 1}),
    ],
)
def test_kills_and_races_give_no_wrong_answer_and_everything_heals(
    run_program: Callable[..., str],
    fast_folder: Path,
    program: str,
    counts: tuple[int, ...],
    done: dict[str, int],
) -> None:
    told = json.loads(run_program(program, fast_folder, *counts))
    assert told["wrong"] == []
    assert [name for name, least in done.items() if told[name] < least] == []


def test_a_read_only_store_serves_hits_and_stores_nothing(
    run_program: Callable[..., str], fast_folder: Path
) -> None:
    told = json.loads(run_program("read_only.py", fast_folder / "store"))
    assert "nothing is stored" in told.pop("warning")
    assert "Permission denied" in told.pop("reason")
    assert told == {
        "hit": True, "stored": False, "manifest_stored": False, "locked": False, "entries": 1,
        "pruned": 0, "sound": True,
    }  # fmt: skip


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two other users")
def test_two_users_of_a_group_share_a_store(run_program: Callable[..., str]) -> None:
    told = json.loads(run_program("shared.py"))
    assert told["wrong"] == []
    assert told["steps"] > 15


@pytest.fixture(scope="module")
def fault_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the library that makes system calls fail, made from its source."""
    compilers = [name for name in ("cc", "gcc", "clang") if shutil.which(name)]
    if not compilers:
        pytest.skip("no C compiler (cc, gcc, clang) is installed: no system call can be spoilt")
    library = tmp_path_factory.mktemp("library") / "faults.so"
    source = PROGRAMS / "faults.c"
    command = [compilers[0], "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    output_of(command)
    return library


def test_system_calls_that_fail_or_lie_give_no_wrong_answer_and_fail_no_build(
    run_program: Callable[..., str], fast_folder: Path, fault_library: Path
) -> None:
    told = json.loads(run_program("faults.py", fast_folder, 60, 1, preload=fault_library))
    assert told["wrong"] == []
    assert told["cases"] == 60
    assert told["injected"] >= 60
    assert len(told["by_kind"]) >= 20
