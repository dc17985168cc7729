"""Tuned kernels in bundles: what is said of them is kept, or refused as contradictory."""

import json
import math
from typing import Any

import pytest
from made_bundles import make_artifact, make_items
from msgspec.structs import replace
from taken_apart import Parts

from pallasc.errors import CorruptError, SpecError
from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.bundle.manifest import Item, pack_entries, parse_entry
from pallasc.specs.bundle.tuned import Reference, Sampled, pack_reference, parse_reference
from pallasc.specs.bundle.verify import verify
from pallasc.specs.bundle.writer import build_bundle
from pallasc.specs.canonical import canonical_json
from pallasc.specs.tuning import Measured, Row, Tuning

TUNING = Tuning(by=("m",), over=("tile",), buckets={"m": "pow2"}, pad={"m": {"x": 0, "out": 0}})
REFERENCE = Reference(3, 0.01, 0.001, (Sampled((0, 511), (1.5, -2)),))


def row(m: int, us: float = 10.0, date: str = "2026-11-23", gpu: str = "h100-sxm") -> Row:
    return Row(gpu, (m,), {"tile": 0}, measured=Measured(us, date=date))


def item(tile: int, *rows: Row, m: int = 16, **changes: Any) -> Item:
    tuning = replace(TUNING, rows=rows, **changes)
    artifact = make_artifact(tile, shape=(m, 32))
    return Item("k", {"m": m, "tile": tile}, artifact, tuning=tuning)


def test_rows_and_reference_values_come_back_from_a_bundle_of_version_1_2() -> None:
    first = item(1, row(16), is_default=True)
    artifact = make_artifact(2, shape=(16, 32))
    job = Item(
        "k", {"m": 16, "tile": 2}, artifact, tuning=TUNING, reference=pack_reference(REFERENCE)
    )
    with open_bundle(build_bundle([first, job])) as bundle:
        verify(bundle)
        assert bundle.reader.head.minor == 2
        items = make_items(2)
        older = (items, [replace(own, lines=b"{}") for own in items])
        assert [open_bundle(build_bundle(own)).reader.head.minor for own in older] == [0, 1]
        tuned, other = bundle.entries()
        assert first.tuning is not None
        assert tuned.tuning is not None
        expected = replace(row(16), use={"tile": 1})
        assert tuned.tuning == replace(first.tuning, rows=(expected,))
        assert (bundle.reference(tuned), bundle.reference(other)) == (None, REFERENCE)
        again = build_bundle(bundle.items())
    with open_bundle(again) as copy:
        assert copy.digest == bundle.digest
        assert list(copy.entries())[1].reference is not None


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (item(2, row(16)), r"disagree on the row for h100-sxm and m=16\."),
        (item(2, is_default=True), r"k\[.*tile=1\].* and k\[.*tile=2\].* disagree on the default"),
        (item(2, buckets={}), r"disagree on `tune`\."),
        (item(1, buckets={}), r"two copies of k\[.* have different tuning\."),
    ],
)
def test_variants_that_disagree_are_refused(other: Item, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        build_bundle([item(1, row(16), is_default=True), other])
    assert caught.value.exit_code == 2
    assert "same specs" in str(caught.value.hint)


def test_a_forged_bundle_whose_variants_disagree_does_not_verify() -> None:
    parts = Parts.of(build_bundle([item(1, row(16)), item(2)]))

    def change(about: Any) -> bytes:
        about["tune"]["buckets"] = {"m": [16]}
        return json.dumps(about, sort_keys=True, separators=(",", ":")).encode()

    parts.change_entry(1, change)
    with pytest.raises(CorruptError, match="disagree on"):
        verify(open_bundle(parts.data()))


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        ({"over": []}, "missing required field `by`"),
        ({"by": ["n"], "over": []}, "it has no parameter n"),
        ({"by": ["m"], "over": ["tile"], "rank": -1}, "Expected `int` >= 0"),
        ({"by": ["m"], "over": [], "rows": [{"gpu": "h100-sxm", "key": []}]}, "0 values, not 1"),
        ({"by": ["m"], "over": [], "buckets": {"m": [4, 4]}}, "are not ascending edges"),
        ({"by": ["m"], "over": [], "pad": {"m": {"y": 0}}}, "there is no dimension 0 of y"),
        (
            {"by": ["m"], "over": [], "pad": {"m": {"x": 2}}},
            r"there is no dimension 2 of x \(they count from 0\)",
        ),
        ({"by": ["m"], "over": [], "pad": {"dtype": {"x": 0}}}, "dtype must be a positive whole"),
        ({"by": ["m"], "over": [], "pad": {"m": {"x": 0}, "tile": {"x": 1}}}, "for m and for tile"),
    ],
)
def test_what_is_said_by_strangers_is_checked(tune: dict[str, object], message: str) -> None:
    artifact = make_artifact(1)
    made = Item("k", {"m": 16, "tile": 1, "dtype": "bf16"}, artifact, tuning=TUNING)
    (entry,) = open_bundle(build_bundle([made])).entries()
    key, _, about = pack_entries([entry])[4:].partition(b"\n")
    text = key + b"\n" + json.dumps({**json.loads(about), "tune": tune}).encode()
    with pytest.raises(CorruptError, match=message):
        parse_entry(text, lambda _: "a" * 64)


# ---- reference values


def test_reference_values_come_back_those_without_a_number_in_json_too() -> None:
    values = (1.5, -2, math.inf, -math.inf)
    reference = Reference(9, 0.01, 0.0, (Sampled((0, 1, 5, 7), values), Sampled((), ())))
    assert parse_reference(pack_reference(reference), [(2, 4), ()]) == reference
    nan = Reference(9, 0, 0, (Sampled((0,), (math.nan,)),))
    assert math.isnan(parse_reference(pack_reference(nan), [()]).outputs[0].values[0])


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({"positions": [0], "values": []}, "1 positions for 0 values"),
        ({"positions": [1, 0], "values": [1, 2]}, "not ascending"),
        ({"positions": [8], "values": [1]}, "position 8 is not in an output of 8 elements"),
        ({"positions": [-1], "values": [1]}, "Expected `int` >= 0"),
        ({"positions": [0], "values": ["many"]}, "Invalid enum value 'many'"),
        ({"positions": [0], "values": [True]}, "got `bool`"),
        ({"values": []}, "missing required field `positions`"),
    ],
)
def test_other_reference_values_are_refused(output: object, message: str) -> None:
    data = canonical_json({"schema": 1, "seed": 0, "rtol": 0, "atol": 0, "outputs": [output]})
    with pytest.raises(CorruptError, match=message):
        parse_reference(data, [(8,)])


def test_reference_values_of_another_schema_or_number_of_outputs_are_refused() -> None:
    data = pack_reference(Reference(0, 0, 0, ()))
    with pytest.raises(CorruptError, match="for 0 outputs, not 1"):
        parse_reference(data, [(8,)])
    with pytest.raises(CorruptError, match="schema 2 instead of 1"):
        parse_reference(data.replace(b'"schema":1', b'"schema":2'), [])
