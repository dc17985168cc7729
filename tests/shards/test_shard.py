"""Which shard has a variant: exactly one, the same everywhere, and as much to do as the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pallasc.compiler.shards.costs import Costs
from pallasc.compiler.shards.shard import (
    MOST_SHARDS,
    START_MS,
    Division,
    Shard,
    architecture_of,
    assign,
    parse_shard,
)
from pallasc.errors import SpecError

TARGETS = ["h100-sxm", "h200", "b200", "sm_90a", "mine"]
IDS = st.builds(
    lambda name, number, target: f"{name}[m={number}]@{target}",
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    st.integers(0, 50),
    st.sampled_from(TARGETS),
)
RECORDS = st.dictionaries(IDS, st.floats(0, 1000), max_size=60)


@given(RECORDS, st.integers(1, 12), st.data())
def test_every_variant_is_in_exactly_one_shard_whatever_lists_the_jobs_have(
    record: Mapping[str, float], shards: int, data: st.DataObject
) -> None:
    known = st.sampled_from(sorted(record)) if record else st.nothing()
    lists = [data.draw(st.lists(IDS | known, max_size=30)) for _ in range(shards)]
    own = [
        {name for name in listed if Division(Costs(record), shards).shard_of(name) == number}
        for number, listed in enumerate(lists, 1)
    ]
    counts = Counter(name for names in own for name in names)
    assert all(number == 1 for number in counts.values())
    in_all = set(lists[0]).intersection(*lists)
    assert in_all <= counts.keys()


@given(RECORDS, st.integers(1, 12), st.randoms())
def test_the_order_of_the_record_does_not_matter(
    record: dict[str, float], shards: int, random: object
) -> None:
    shuffled = list(record.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    first, second = Costs(record), Costs(dict(shuffled))
    assert first.digest == second.digest
    assert assign(first.milliseconds, shards) == assign(second.milliseconds, shards)


def load_ms(record: Mapping[str, int], names: list[str]) -> int:
    """Return what a shard has to do, starts of workers included."""
    return sum(record[n] for n in names) + START_MS * len({architecture_of(n) for n in names})


@given(st.dictionaries(IDS, st.integers(0, 10**6), max_size=60), st.integers(1, 12))
@example({f"a[m={n}]@h100-sxm": 300 for n in range(200)}, 8)
def test_no_shard_is_ahead_by_more_than_one_variant_and_the_starts_of_its_workers(
    record: dict[str, int], shards: int
) -> None:
    assigned = assign(record, shards)
    assert assigned.keys() == record.keys()
    assert set(assigned.values()) <= set(range(1, shards + 1))
    names = [[n for n in record if assigned[n] == k] for k in range(1, shards + 1)]
    loads = [load_ms(record, each) for each in names]
    longest = max(record.values(), default=0)
    assert max(loads) - min(loads) <= longest + START_MS


def test_two_architectures_keep_apart_until_somebody_would_wait() -> None:
    record = {f"k[m={n}]@{target}": 1000 for n in range(40) for target in ("h100-sxm", "b200")}
    assigned = assign(record, 4)
    archs = [{architecture_of(n) for n in record if assigned[n] == k} for k in range(1, 5)]
    assert archs.count({"sm_90a"}) == archs.count({"sm_100a"}) == 2
    alone = {**dict.fromkeys(record, 1000), **{n: 0 for n in record if n.endswith("b200")}}
    assert len(set(assign({n: c for n, c in alone.items() if c}, 4).values())) == 4


def test_variants_without_a_record_are_spread() -> None:
    division = Division(Costs({}), 8)
    counts = Counter(division.shard_of(f"matmul[m={n}]@h100-sxm") for n in range(8000))
    assert sorted(counts) == list(range(1, 9))
    assert max(counts.values()) < 1150


def test_an_id_with_half_a_surrogate_pair_has_a_shard_too() -> None:
    assert Division(Costs({}), 3).shard_of("\ud800") in (1, 2, 3)


PROGRAM = """
import json, sys
from pallasc.compiler.shards.costs import Costs
from pallasc.compiler.shards.shard import Division
names = {f"k{n}[m={n}]@{t}" for n in range(200) for t in ("h100-sxm", "b200")}
costs = Costs({name: len(name) * 0.1 for name in names if "7" in name})
division = Division(costs, 7)
print(json.dumps([costs.digest, {n: division.shard_of(n) for n in sorted(names)}]))
"""


def test_neither_the_process_nor_its_hash_seed_matters() -> None:
    told = [
        subprocess.run(
            [sys.executable, "-P", "-c", PROGRAM],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1", "4242")
    ]
    assert told[0] == told[1] == told[2]
    assert len(set(json.loads(told[0])[1].values())) == 7


@pytest.mark.parametrize(
    ("text", "shard"),
    [("3/8", Shard(3, 8)), ("1/1", Shard(1, 1)), (" 8 / 8 ", Shard(8, 8)), ("03/08", Shard(3, 8))],
)
def test_a_shard_is_its_number_and_how_many_there_are(text: str, shard: Shard) -> None:
    assert parse_shard(text) == shard


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0/8", "the first is 1/8 and the last 8/8.\n  Shards are numbered from 1: add 1"),
        ("9/8", "--shard 9/8: of 8 shards, the first is 1/8 and the last 8/8."),
        ("3-8", "--shard must be K/N, such as 3/8, got '3-8'."),
        ("3", "--shard must be K/N"),
        ("", "--shard must be K/N"),
        ("/", "--shard must be K/N"),
        ("1/0", "there are 1 to 10,000 shards, got 0."),
        ("-1/8", "--shard must be K/N"),
        ("1.5/8", "--shard must be K/N"),
        ("٣/8", "--shard must be K/N"),
        (f"1/{MOST_SHARDS + 1}", "there are 1 to 10,000 shards, got 10,001."),
        (f"1/{'9' * 5000}", "--shard must be K/N"),
    ],
)
def test_what_is_no_shard_is_a_clear_mistake(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_shard(text)
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


def test_the_expected_time_counts_variants_and_starts() -> None:
    division = Division(Costs({"a@h100-sxm": 1.5, "b@h200": 2.0, "c@b200": 4.0}), 2)
    assert division.expected_s(["a@h100-sxm", "b@h200", "new@h200"]) == 3.5 + START_MS / 1000
    assert division.expected_s(["a@h100-sxm", "c@b200"]) == 5.5 + 2 * START_MS / 1000
    assert division.expected_s([]) == 0
