"""`pallasc tune plan`: points of tuned kernels, those worth measuring in a job."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from json_outputs import check_output

from pallasc.cache.store import Store
from pallasc.cli.main import main
from pallasc.specs.bundle.bundle import open_bundle

SPEC = """\
schema: 1
targets: [h100-sxm]
kernels:
  - name: add
    entry: pallasc.specs.library.elementwise:add
    reference: references.py:add
    args: {x: "f32[{m}, 4096]", y: "f32[{m}, 4096]"}
    static: {block_size: "{block * times}"}
    matrix: {m: [256, 512]}
    exclude: [{m: 512, block: 3000}]
    tune:
      over: {block: [512, 1024, 2048, 3000], times: [1, 2]}
      default: {block: 1024, times: 1}
  - name: untuned
    entry: pallasc.specs.library.elementwise:add
    args: {x: "f32[256, 4096]", y: "f32[256, 4096]"}
    static: {block_size: 1024}
"""


@dataclass(frozen=True)
class Planned:
    """A job that was planned once for all tests, and what was printed as JSON."""

    spec: Path
    job: Path
    store: Path
    said: dict[str, Any]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory, library_store: Store) -> Planned:
    """Return a job of two keys."""
    folder = tmp_path_factory.mktemp("plan")
    (folder / "references.py").write_text("def add(x, y):\n    return x + y\n")
    (folder / "kernels.yaml").write_text(SPEC)
    place = folder / "printed"
    with pytest.MonkeyPatch.context() as patch, place.open("w") as printed:
        patch.setattr("sys.stdout", printed)
        code = main(_arguments(folder / "kernels.yaml", folder / "job.pallasc", library_store.root))
    assert code == 0
    check_output(["tune", "plan"], place.read_text())
    said = json.loads(place.read_text())
    return Planned(folder / "kernels.yaml", folder / "job.pallasc", library_store.root, said)


def _arguments(spec: Path, job: Path, store: Path) -> list[str]:
    return ["tune", "plan", str(spec), "-o", str(job), "--store", str(store), "--json"]


def test_all_points_are_kept_or_dropped_with_a_reason(planned: Planned) -> None:
    assert [point["id"] for point in planned.said["points"]] == [
        "add[m=256,block=512,times=1]@h100-sxm",
        "add[m=256,block=1024,times=1]@h100-sxm",
        "add[m=256,block=1024,times=2]@h100-sxm",
        "add[m=256,block=2048,times=2]@h100-sxm",
        "add[m=512,block=512,times=1]@h100-sxm",
        "add[m=512,block=1024,times=1]@h100-sxm",
        "add[m=512,block=1024,times=2]@h100-sxm",
    ]
    why = {point["id"]: (point["rule"], point["why"]) for point in planned.said["dropped"]}
    assert why["add[m=256,block=512,times=2]@h100-sxm"] == (
        "equal",
        "the same artifact as add[m=256,block=1024,times=1]@h100-sxm",
    )
    assert why["add[m=512,block=2048,times=2]@h100-sxm"] == (
        "rank",
        "rank 4 of 4",
    )
    rule, text = why["add[m=256,block=3000,times=1]@h100-sxm"]
    assert rule == "failed"
    assert text.startswith("ValueError: ")
    assert len(why) == 7
    assert planned.said["untuned"] == ["untuned"]


def test_the_job_has_ranks_and_no_rows(planned: Planned) -> None:
    ranks = {point["id"]: point["rank"] for point in planned.said["points"]}
    with open_bundle(planned.job) as bundle:
        size = planned.job.stat().st_size
        job = {"file": str(planned.job), "bytes": size, "digest": bundle.digest}
        assert planned.said["job"] == job
        found = {}
        for entry in bundle.entries():
            assert entry.tuning is not None
            assert entry.tuning.rows == ()
            own = dict(entry.params)
            assert entry.tuning.is_default is ((own["block"], own["times"]) == (1024, 1))
            found[entry.id] = entry.tuning.rank
            reference = bundle.reference(entry)
            assert reference is not None
            assert len(reference.outputs[0].values) == 4096
    assert found == ranks
    assert sorted(found.values()) == [1, 1, 2, 2, 3, 3, 4]


def test_text_has_a_line_for_each_point_by_rank(run: Any, planned: Planned, tmp_path: Path) -> None:
    place = (planned.spec, "-o", tmp_path / "job", "--store", planned.store)
    result = run("tune", "plan", *place, "-k", "m=512 and not untuned", "--most", "2")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0] == "add m=512 on h100-sxm: 2 of 6 points"
    assert [line.split(":")[0] for line in lines[1:]] == [
        "    1  block=512, times=1",
        "    2  block=1024, times=1",
        "    -  block=512, times=2",
        "    -  block=1024, times=2",
        "    -  block=2048, times=1",
        "    -  block=2048, times=2",
    ]
    assert lines[4].endswith(": rank 3 of 4")
    last = result.err.splitlines()[-2:]
    assert last[0] == (
        "dropped 4 of 6 points: 2 gave an artifact that another point gives, "
        "2 ranked behind the others"
    )
    assert last[1].startswith(f"wrote {tmp_path / 'job'}: 2 points, ")


def test_a_share_is_a_percentage(run: Any) -> None:
    for text in ("50%", "-1", "101", "half"):
        result = run("tune", "plan", "kernels.yaml", "-o", "job", "--keep", text)
        assert result.code == 2
        assert "Invalid value for '--keep'" in result.err
