"""What results decide: which rows a table has, and what is refused."""

import itertools
from typing import Any

import pytest
from made_results import H100, TUNE, all_ids, made_digest, made_lines, made_results, point_id
from msgspec import structs
from msgspec.structs import replace

from pallasc.errors import CorruptError, PallascError, SpecError
from pallasc.specs.gpus import resolve_target
from pallasc.specs.tuning import Row, Tune
from pallasc.tuning.pick import Picked, TunedKernel, pick, with_model
from pallasc.tuning.results import Results, parse_results

TIMES = {
    256: {64: 10.0, 128: 10.1, 256: 20.0},
    512: {64: 14.0, 128: 12.0, 256: 12.1},
    1024: {64: 30.0, 128: 20.1, 256: 20.0},
}
"""128 is within 3 % everywhere, and the best of one key only."""


def decided(
    *files: Results, tune: Tune = TUNE, rows: tuple[Row, ...] = (), **options: Any
) -> Picked:
    """Return what results decide of the one kernel."""
    ids = {
        own.id for file in files for each in file.contests.values() for own in each.points.values()
    }
    kernel = TunedKernel(tune, options.pop("ids", ids), rows)
    (own,) = pick(files, {"matmul": kernel}, options.pop("within", 3), **options)
    return own


def uses(own: Picked) -> dict[object, object]:
    """Return the tile of each row."""
    return {row.key[0]: row.use["tile"] for row in own.rows}


def test_one_configuration_that_is_near_the_best_everywhere_is_enough() -> None:
    own = decided(made_results(TIMES))
    assert uses(own) == {256: 128, 512: 128, 1024: 128}
    assert own.loss_percent()[1] == pytest.approx(1.0, abs=0.1)
    row = own.rows[0]
    assert (row.gpu, row.artifact) == ("h100-sxm", made_digest(row.key[0], 128))
    assert row.measured is not None
    assert (row.measured.rounds, row.measured.date) == (24, "2026-11-23")


def test_a_tight_limit_gives_each_key_its_best_and_a_limit_of_rows_says_which_lose() -> None:
    assert uses(decided(made_results(TIMES), within=0.2)) == {256: 64, 512: 128, 1024: 256}
    own = decided(made_results(TIMES), within=0.2, most=1)
    assert len(own.uses) == 1
    assert own.beyond == [(1024,), (256,)]
    assert own.default == {"tile": 128}


@pytest.mark.parametrize("made", [{"rounds": 5}, {"noise": 0.3}])
def test_what_is_uncertain_does_not_count_as_within(made: dict[str, Any]) -> None:
    assert uses(decided(made_results(TIMES, **made))) == {256: 64, 512: 128, 1024: 256}


def test_the_order_of_files_and_what_they_are_called_change_nothing() -> None:
    parts = [made_results({m: own}, f"{m}.jsonl") for m, own in TIMES.items()]
    first = decided(*parts).changes
    for order in itertools.permutations(parts):
        assert decided(*order).changes == first
    assert decided(*(replace(own, file="x") for own in parts)).changes == first


def test_equal_numbers_of_different_types_are_different_keys() -> None:
    lines = [*made_lines({1: {64: 1.0, 128: 2.0}}), *made_lines({True: {64: 2.0, 128: 1.0}})[1:]]
    own = decided(parse_results(b"".join(lines), "r"))
    assert [(row.key, row.use["tile"]) for row in own.rows] == [((1,), 64), ((True,), 128)]


# Buckets and padding.

POW2 = replace(TUNE, buckets={"m": "pow2"})


def test_a_bucket_gets_one_row_and_exceptions_of_their_own() -> None:
    times = {
        600: {64: 10.0, 128: 10.1},
        700: {64: 10.0, 128: 15.0},
        1024: {64: 12.2, 128: 12.0},
        1500: {64: 20.0, 128: 19.0},
    }
    own = decided(made_results(times), tune=POW2)
    assert uses(own) == {1024: 64, 2048: 128}
    times[1024] = {64: 14.0, 128: 12.0}
    own = decided(made_results(times), tune=POW2)
    assert uses(own) == {1024: 128, 700: 64, 2048: 128}
    (bucket,) = [row for row in own.rows if row.key == (1024,)]
    assert bucket.artifact == made_digest(1024, 128)


def test_a_key_beyond_the_last_edge_and_an_end_that_was_not_measured_have_no_shared_row() -> None:
    tune = replace(TUNE, buckets={"m": (512, 1024)})
    times = {m: {64: 1.0, 128: 2.0} for m in (500, 900, 3000)}
    assert uses(decided(made_results(times), tune=tune)) == {512: 64, 1024: 64, 3000: 64}
    padded = replace(POW2, pad={"m": {"a": 0}})
    own = decided(made_results({600: {64: 1.0}, 700: {64: 1.0}}), tune=padded)
    assert uses(own) == {600: 64, 700: 64}


# What becomes of the rows of a table.


def test_the_same_results_of_a_bucket_change_nothing_the_second_time() -> None:
    times = {600: {64: 15.0, 128: 10.0}, 700: {64: 10.0, 128: 15.0}}
    first = decided(made_results(times), tune=POW2)
    rows = tuple(change.row for change in first.changes)
    second = decided(made_results(times), tune=POW2, rows=rows)
    assert {change.kind for change in second.changes} == {"same"}


def test_rows_of_other_gpus_and_of_other_keys_stay() -> None:
    old = (
        Row("b200", (256,), {"tile": 64}, "b" * 64),
        Row("h100-sxm", (4096,), {"tile": 256}, "c" * 64),
        Row("h100-sxm", (256,), {"tile": 64}, "d" * 64),
        Row("h100-sxm", (700,), {"tile": 64}, "e" * 64),
    )
    times = {**TIMES, 700: {64: 10.0, 128: 10.0}}
    own = decided(made_results(times), tune=replace(POW2), rows=old)
    kinds = {(change.row.gpu, change.row.key[0]): change.kind for change in own.changes}
    assert kinds == {
        ("b200", 256): "same",
        ("h100-sxm", 256): "changed",
        ("h100-sxm", 512): "added",
        ("h100-sxm", 700): "dropped",
        ("h100-sxm", 1024): "added",
        ("h100-sxm", 4096): "same",
    }


def test_keys_that_were_not_measured_to_the_end_are_told_and_their_rows_stay() -> None:
    old = (Row("h100-sxm", (256,), {"tile": 256}, "b" * 64),)
    own = decided(made_results(TIMES, done=False), rows=old)
    assert own.unfinished == [(1024,), (256,), (512,)]
    assert [change.kind for change in own.changes] == ["same"]


def test_points_that_failed_or_that_specs_have_no_more_are_not_used() -> None:
    own = decided(made_results(TIMES), ids=all_ids(TIMES) - {point_id(512, 128)})
    assert (uses(own)[512], own.unknown) == (256, 1)
    own = decided(made_results(TIMES, failed={point_id(512, 128)}))
    assert uses(own)[512] == 256
    own = decided(made_results(TIMES, failed=all_ids({512: TIMES[512]})))
    assert (uses(own).keys(), own.without) == ({256, 1024}, [(512,)])


# What is refused, by name.

B200 = structs.replace(H100, device="NVIDIA B200", model="b200")
UNKNOWN = structs.replace(H100, device="NVIDIA H100 PCIe", model=None)


def refused(*files: Results, **options: Any) -> PallascError:
    with pytest.raises(PallascError) as caught:
        decided(*files, **options)
    return caught.value


REFUSED: list[tuple[list[Results], str]] = [
    ([made_results(TIMES), made_results(TIMES, "b200.jsonl", start=B200)],
     "b200.jsonl has results of NVIDIA B200, and results.jsonl of NVIDIA H100"),
    ([made_results(TIMES, start=B200)],
     "was measured on b200, and its points are compiled for h100-sxm"),
    ([made_results(TIMES), made_results({256: TIMES[256]}, "rest.jsonl")],
     "rest.jsonl has results of matmul, key [256], and so has another file"),
    ([made_results(TIMES), made_results(TIMES)], "so has another file.\n  Give one of"),
    ([made_results(TIMES, start=UNKNOWN)], "which is no model of a GPU that pallasc knows"),
]  # fmt: skip


@pytest.mark.parametrize(("files", "message"), REFUSED)
def test_results_that_do_not_fit_are_refused(files: list[Results], message: str) -> None:
    error = refused(*files)
    assert isinstance(error, SpecError)
    assert message in str(error)


def test_a_model_that_only_specs_know_is_taken_from_them() -> None:
    own = replace(resolve_target("h100-sxm"), name="h100-pcie", description="NVIDIA H100 PCIe")
    assert with_model(made_results(TIMES, start=UNKNOWN), [own]).start.model == "h100-pcie"


def test_a_file_whose_end_is_missing_or_of_another_schema_is_refused() -> None:
    content = b"".join(made_lines(TIMES))
    error = refused(parse_results(content[:-9], "results.jsonl"))
    assert isinstance(error, CorruptError)
    assert "results.jsonl: the last line was cut" in str(error)
    with pytest.raises(SpecError, match="the results have schema 0, and this pallasc reads 1"):
        parse_results(content.replace(b'"schema":1', b'"schema":0', 1), "results.jsonl")


def test_results_are_as_old_as_their_rounds_and_not_as_a_run_that_found_them_done() -> None:
    later = structs.replace(H100, date="2026-12-24", driver="590.10")
    again = [*made_lines(TIMES), *made_lines({}, start=later)]
    own = decided(parse_results(b"".join(again), "again.jsonl"))
    assert own.changes == decided(made_results(TIMES)).changes


def test_a_kernel_that_no_spec_tunes_is_refused() -> None:
    with pytest.raises(SpecError, match="no spec tunes kernel 'matmul' for h100-sxm"):
        pick([made_results(TIMES)], {"matmull": TunedKernel(TUNE, (), ())}, 3)


@pytest.mark.parametrize("by", [(), ("tile",), ("m", "tile")])
def test_results_for_other_key_parameters_are_refused(by: tuple[str, ...]) -> None:
    error = refused(made_results(TIMES), tune=replace(TUNE, by=by))
    assert "the results are for other keys than the spec's, which have 'by': " in str(error)
