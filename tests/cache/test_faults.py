"""The store under kills, damage, races and limits: never a wrong answer, always healed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"


def test_a_killed_publisher_leaves_no_wrong_answer_and_everything_heals(
    run_program: Callable[..., str], tmp_path: Path
) -> None:
    told = json.loads(run_program("kill.py", tmp_path, 100, 1))
    assert told["wrong"] == []
    assert told["kills"] >= 100


def test_eight_processes_that_publish_spoil_and_evict_the_same_keys_see_no_wrong_answer(
    run_program: Callable[..., str], tmp_path: Path
) -> None:
    told = json.loads(run_program("race.py", tmp_path, 8, 250))
    assert told["wrong"] == []
    assert told["hits"] > 100
    assert told["puts"] > 100
    assert told["packs"] > 5


def test_sixteen_processes_that_want_twenty_cold_keys_make_each_once(
    run_program: Callable[..., str], tmp_path: Path
) -> None:
    assert run_program("flight.py", tmp_path, 16, 20).split() == ["20", "0"]
    assert list((tmp_path / "v1" / "locks").iterdir()) == []


def test_sixty_four_processes_open_a_new_store_at_once(
    run_program: Callable[..., str], tmp_path: Path
) -> None:
    assert json.loads(run_program("opening.py", tmp_path, 64))["wrong"] == []


def test_a_read_only_store_serves_hits_and_stores_nothing(run_program: Callable[..., str]) -> None:
    told = json.loads(run_program("limits.py", "read-only"))
    assert (told["hit"], told["stored"], told["manifest_stored"]) == (True, False, False)
    assert "Permission denied" in told["reason"]
    assert told["locked"] is False
    (warning,) = told["warnings"]
    assert "nothing is stored" in warning
    assert (told["entries"], told["pruned"], told["sound"]) == (1, 0, True)


def test_a_file_that_cannot_grow_stores_nothing(run_program: Callable[..., str]) -> None:
    told = json.loads(run_program("limits.py", "file-size"))
    assert (told["hit"], told["stored"], told["manifest_stored"]) == (True, False, True)
    assert (told["entries"], told["sound"]) == (1, True)
    assert "File too large" in told["reason"]


def test_a_process_out_of_descriptors_misses_and_stores_nothing(
    run_program: Callable[..., str],
) -> None:
    told = json.loads(run_program("limits.py", "open-files"))
    assert (told["hit"], told["stored"], told["locked"]) == (False, False, False)
    assert (told["entries"], told["pruned"], told["sound"]) == (0, 0, False)
    assert len(told["warnings"]) == 3
    assert all("Too many open files" in text for text in told["warnings"])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two other users")
def test_two_users_of_a_group_share_a_store(run_program: Callable[..., str]) -> None:
    told = json.loads(run_program("shared.py"))
    assert told["wrong"] == []
    assert told["steps"] > 20


@pytest.fixture(scope="module")
def fault_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the library that makes system calls fail, made from its source."""
    compilers = [name for name in ("cc", "gcc", "clang") if shutil.which(name)]
    if not compilers:
        pytest.skip("no C compiler (cc, gcc, clang) is installed: no system call can be spoilt")
    library = tmp_path_factory.mktemp("library") / "faults.so"
    source = PROGRAMS / "faults.c"
    command = [compilers[0], "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return library


def test_system_calls_that_fail_or_lie_give_no_wrong_answer_and_fail_no_build(
    run_program: Callable[..., str], fast_folder: Path, fault_library: Path
) -> None:
    told = json.loads(run_program("faults.py", fast_folder, 60, 1, preload=fault_library))
    assert told["wrong"] == []
    assert told["cases"] == 60
    assert told["injected"] >= 60
    assert len(told["by_kind"]) >= 20


def test_a_real_build_whose_store_fails_or_lies_gives_the_right_artifact(
    run_program: Callable[..., str], fast_folder: Path, fault_library: Path
) -> None:
    told = json.loads(run_program("build_faults.py", fast_folder, 0, 1, preload=fault_library))
    assert told["wrong"] == []
    assert told["ended"] == {"hit": 4, "compiled": 4}
    assert told["injected"] >= 20


def test_every_damage_of_a_file_is_seen_put_away_and_heals(
    run_program: Callable[..., str], fast_folder: Path
) -> None:
    told = json.loads(run_program("damage.py", fast_folder, 1000, 1))
    assert told["wrong"] == []
    assert told["mutations"] == 1000
    assert len(told["done"]) == 6


def test_a_damaged_index_says_what_the_records_say(
    run_program: Callable[..., str], fast_folder: Path
) -> None:
    told = json.loads(run_program("index_damage.py", fast_folder, 50, 1))
    assert told["wrong"] == []
    assert len(told["done"]) == 8
