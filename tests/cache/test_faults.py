"""The store under kills, damage, races and limits: never a wrong answer, always healed."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pallasc.cache.store import Store

sys.path.insert(0, str(Path(__file__).parent / "programs"))
import content

sys.path.pop(0)

MUTATIONS = 1000
NUMBERS = range(8)


def test_a_killed_publisher_leaves_no_wrong_answer_and_everything_heals(
    run_program: Callable[..., str], tmp_path: Path
) -> None:
    told = json.loads(run_program("kill.py", tmp_path, 60, 1))
    assert told["wrong"] == []
    assert told["interrupted"] >= 10, "the kills must hit processes that are publishing"


def test_eight_processes_that_publish_and_spoil_the_same_keys_never_see_a_wrong_answer(
    run_program: Callable[..., str], tmp_path: Path
) -> None:
    told = json.loads(run_program("race.py", tmp_path, 8, 250))
    assert told["wrong"] == []
    assert told["hits"] > 200
    assert told["puts"] > 200


def test_eight_processes_that_want_ten_cold_keys_make_each_once(
    run_program: Callable[..., str], tmp_path: Path
) -> None:
    assert run_program("flight.py", tmp_path, 8, 10).split() == ["10", "0"]
    assert list((tmp_path / "v1" / "locks").iterdir()) == []


def test_a_read_only_store_serves_hits_and_stores_nothing(run_program: Callable[..., str]) -> None:
    told = json.loads(run_program("limits.py", "read-only"))
    assert (told["hit"], told["stored"], told["manifest_stored"]) == (True, False, False)
    assert "Permission denied" in told["reason"]
    assert told["locked"] is False
    assert len(told["warnings"]) == 2


def test_a_file_that_cannot_grow_stores_nothing(run_program: Callable[..., str]) -> None:
    told = json.loads(run_program("limits.py", "file-size"))
    assert (told["hit"], told["stored"], told["manifest_stored"]) == (True, False, True)
    assert "File too large" in told["reason"]


def test_a_process_out_of_descriptors_misses_and_stores_nothing(
    run_program: Callable[..., str],
) -> None:
    told = json.loads(run_program("limits.py", "open-files"))
    assert (told["hit"], told["stored"], told["locked"]) == (False, False, False)
    assert len(told["warnings"]) == 3
    assert all("Too many open files" in text for text in told["warnings"])


# ---- damage


def _flip(dice: random.Random, path: Path, other: Path) -> None:
    data = bytearray(path.read_bytes())
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    path.write_bytes(data)


def _cut(dice: random.Random, path: Path, other: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: dice.randrange(1, len(data))])


def _extend(dice: random.Random, path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes() + dice.randbytes(dice.randrange(1, 100)))


def _empty(dice: random.Random, path: Path, other: Path) -> None:
    path.write_bytes(b"")


def _zero(dice: random.Random, path: Path, other: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _swap(dice: random.Random, path: Path, other: Path) -> None:
    mine, others = path.read_bytes(), other.read_bytes()
    path.write_bytes(others)
    other.write_bytes(mine)


DAMAGES = [_flip, _cut, _extend, _empty, _zero, _swap]


def _is_whole(store: Store, number: int) -> bool:
    """Read a number's artifact and manifest; tell whether both are hits, both right."""
    found = store.get_artifact(content.key(number), verify=True)
    assert found is None or content.is_right(found, number)
    manifest = store.get_manifest(content.key(number))
    assert manifest in (None, content.manifest(number))
    return found is not None and manifest is not None


def _files(store: Store) -> list[Path]:
    areas = (store.folder / area for area in ("cas", "ac", "man"))
    return sorted(path for area in areas for path in area.rglob("*") if path.is_file())


@pytest.mark.parametrize("seed", range(4))
def test_every_damage_is_detected_put_away_and_heals(store: Store, seed: int) -> None:
    dice = random.Random(seed)
    for number in NUMBERS:
        content.publish(store, number)
    paths = _files(store)
    for _ in range(MUTATIONS // 4):
        damage, (path, other) = dice.choice(DAMAGES), dice.sample(paths, 2)
        before = path.read_bytes()
        damage(dice, path, other)
        assert path.read_bytes() != before
        reader = Store(store.root)
        whole = [_is_whole(reader, number) for number in NUMBERS]
        assert not all(whole), (damage, path)
        for number in (number for number in NUMBERS if not whole[number]):
            content.publish(reader, number)
        # A blob behind a damaged record is not read until the record is made anew.
        for place in {path, other} if damage is _swap else {path}:
            assert any(place.name in text for text in reader.warnings), (damage, place)
        assert all(_is_whole(store, number) for number in NUMBERS)
