"""`pallasc tune run` with real processes on the stand-in driver, where importing JAX fails."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tuned_jobs
from consoles import fits
from json_outputs import check_output
from msgspec.structs import replace
from processes import captured
from tuned_jobs import point_id

from pallasc.cli.main import main
from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.gpus import resolve_target
from pallasc.specs.tuning import Tune
from pallasc.tuning.pick import TunedKernel, pick, with_model
from pallasc.tuning.results import Start, line_of, read_results

KERNELS: dict[str, dict[str, Any]] = {
    f"v{number}": {"us": 10 + number % 3, "noise": 0.01} for number in range(6)
}

DEADLINE_S = 900
KEYS = (4096, 16384, 65536)
PAGE = Path(__file__).parents[2] / "docs" / "tuning.md"

RunJob = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def jobs(_library: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Return a job of a key with three points, and one of three keys with two points each."""
    folder = tmp_path_factory.mktemp("jobs")
    return {
        count: tuned_jobs.write_job(folder / f"{count}.pallasc", keys=KEYS[:count], points=points)
        for count, points in ((1, 3), (3, 2))
    }


@pytest.fixture
def run_job(jobs: dict[int, Path], tmp_path: Path) -> RunJob:
    """Run `pallasc tune run` on the job with so many keys."""

    def run(output: Path, *options: str, keys: int = 3, end: str = "", **faults: Any) -> Any:
        kernels = {name: {**own, **faults.get(name, {})} for name, own in KERNELS.items()}
        environment = tuned_jobs.environment(tmp_path, kernels)
        return captured(
            tuned_jobs.command(jobs[keys], output, *options),
            env={**environment, "MADE_UP_END": end},
        )

    return run


def children_of_runs() -> list[str]:
    """Return the command lines of processes of points that are still there."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"pallasc.tuning.point_process" in words:
            parent = int(words[words.index(b"pallasc.tuning.point_process") + 1])
            if not Path(f"/proc/{parent}").exists():
                found.append(str(words))
    return found


def test_faults_lose_one_point(run_job: RunJob, jobs: dict[int, Path], tmp_path: Path) -> None:
    output = tmp_path / "results.jsonl"
    done = run_job(output, v1={"fail_at": 6, "code": 700}, v3={"wrong": True})
    assert done.returncode == 0, done.stderr
    warning, note, *lines = done.stderr.splitlines()
    assert warning.startswith("warning: Stand-in H100 is a model unknown to pallasc")
    assert "pallasc tune pick will reject" in warning
    assert note.startswith("note: clocks and temperatures not recorded: ")
    told = "\n".join([*lines, done.stdout]).replace(str(output), "results.jsonl")
    assert fits(told, shown_by_the_page())
    printed = run_job(output, "--json").stdout
    check_output(["tune", "run"], printed)
    report = json.loads(printed)
    assert [own["key"] for own in report["keys"]] == [[n] for n in KEYS]
    assert [own["winner"] for own in report["keys"]] == [point_id(n, 0) for n in KEYS]
    failed = {p["id"] for own in report["keys"] for p in own["points"] if p["failed"]}
    assert failed == {point_id(4096, 1), point_id(16384, 1)}
    results = read_results(output)
    assert (results.start.device, results.start.arch) == ("Stand-in H100", "sm_90")
    slow = list(results.contests.values())[-1].points[point_id(65536, 1)]
    assert slow.dropped.startswith("slower: +")
    assert slow.median_us == pytest.approx(12, rel=0.02)
    # A model's description is what the driver calls the GPU.
    model = replace(resolve_target("h100-sxm"), description="Stand-in H100")
    with open_bundle(jobs[3]) as bundle:
        digests = {entry.id: entry.digest for entry in bundle.entries()}
    kernel = TunedKernel(Tune(over={"block": (512, 1024)}, by=("n",)), digests, ())
    (decided,) = pick([with_model(results, [model])], {"scale_add": kernel}, 3)
    rows = {(row.key, row.use["block"], row.artifact) for row in decided.rows}
    assert rows == {((n,), 512, digests[point_id(n, 0)]) for n in KEYS}


def shown_by_the_page() -> str:
    """Return the output of `pallasc tune run` in docs/tuning.md."""
    command = "$ pallasc tune run job.pallasc -o results.jsonl\n"
    return PAGE.read_text("utf-8").partition(command)[2].partition("```")[0]


def test_a_killed_run_goes_on_and_keeps_wrong_results_out(run_job: RunJob, tmp_path: Path) -> None:
    output = tmp_path / "results.jsonl"
    rounds, torn, code = 0, "", -signal.SIGKILL
    wrong = {"v1": {"wrong_at": 7}}  # an element that the reference values do not cover
    for end in ("SIGKILL:7:9", "SIGTERM:5", ""):
        done = run_job(output, keys=1, end=end, **wrong)
        expected = code if "KILL" in end else 130 if end else 0
        assert done.returncode == expected, done.stderr
        assert done.stderr.count("warning: ") == 1 + bool(torn)
        assert f"warning: {torn}" in done.stderr
        results = read_results(output)
        now = sum(len(own.rounds) for own in results.contests.values())
        assert now > rounds
        rounds, torn = now, results.torn
        assert ("the last line was cut after" in torn) == (end.count(":") == 2)
    (contest,) = results.contests.values()
    first, second = point_id(4096, 0), point_id(4096, 1)
    assert contest.winner == first
    assert [own.id for own in contest.failed] == [second]
    told = contest.points[second].failed
    assert told.startswith(f"wrong result: out[7] is 0.0, but {first} gives ")
    assert "1 key, 3 points, 1 failed on GPU 0" in done.stdout
    before = output.read_bytes()
    again = run_job(output, "-q", keys=1)
    assert (again.returncode, again.stdout, again.stderr.count("\n")) == (0, "", 2)
    assert output.read_bytes() == before
    deadline = time.monotonic() + DEADLINE_S
    while left := children_of_runs():  # they are killed with the run, which does not wait for them
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def test_a_key_without_a_valid_point_ends_with_1(run_job: RunJob, tmp_path: Path) -> None:
    lost = {f"v{number}": {"end_at": 1} for number in range(3)}
    output = tmp_path / "results.jsonl"
    done = run_job(output, keys=1, **lost)
    assert done.returncode == 1
    assert "1 key, 3 points, 3 failed, 1 key without a valid point on GPU 0" in done.stdout
    before = output.read_bytes()
    done = run_job(output, keys=1)
    assert (done.returncode, output.read_bytes()) == (1, before)
    assert done.stdout.splitlines()[1] == "All keys were already done; the results are unchanged."


# ---- what is refused, before anything is launched


@pytest.fixture
def refused(
    runtime: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[[Path], tuple[int, str]]:
    """Return exit code and message of a run that is refused."""
    job = tuned_jobs.write_job(tmp_path / "job.pallasc", points=1)

    def run(output: Path, job: Path = job) -> tuple[int, str]:
        code = main(["tune", "run", str(job), "-o", str(output)])
        return code, capsys.readouterr().err

    return run


def start(**changed: Any) -> bytes:
    own = {"job": "5a" * 32, "device": "Stand-in H100", "model": None, "arch": "sm_90"}
    return line_of(Start(**{**own, "driver": "", "date": "", "settings": {}, **changed}))


def test_other_results_and_files_stay_as_they_are(refused: Any, tmp_path: Path) -> None:
    output = tmp_path / "results.jsonl"
    output.write_bytes(start() + b"torn")
    code, text = refused(output)
    assert (code, output.read_bytes()) == (2, start() + b"torn")
    assert text.startswith(f"error: {output} has results of another job: 5a5a5a5a5a5a…, and this")
    output.write_text("do not lose\n")
    code, text = refused(output)
    assert (code, output.read_text()) == (2, "do not lose\n")
    assert "this is not a file of results of pallasc tune run" in text


def test_a_machine_without_a_gpu_ends_with_4(refused: Any, runtime: Any, tmp_path: Path) -> None:
    runtime.configure(init_code=100)
    code, text = refused(tmp_path / "results.jsonl")
    assert code == 4
    assert "CUDA_ERROR_NO_DEVICE" in text
    assert not (tmp_path / "results.jsonl").exists()


def test_a_job_for_other_gpus_is_refused(refused: Any, runtime: Any, tmp_path: Path) -> None:
    runtime.devices("10.0")
    code, text = refused(tmp_path / "results.jsonl")
    assert code == 4
    assert "has nothing for GPU 0 (Stand-in B200, sm_100): its points are for sm_90a." in text


def test_what_is_no_job_is_refused(refused: Any, tmp_path: Path) -> None:
    import bundle_files

    spec = tmp_path / "kernels.yaml"
    spec.write_text("schema: 1\n")
    assert refused(tmp_path / "results.jsonl", spec) == (
        2,
        f"error: {spec} is not a job.\n  Make a job: pallasc tune plan SPECS -o job.pallasc\n",
    )
    job = bundle_files.write_bundle(tmp_path / "kernels.pallasc", "h100-sxm")
    code, text = refused(tmp_path / "results.jsonl", job)
    assert code == 2
    assert "is not a job: none of its kernels is tuned" in text
    tuned_jobs.write_job(job, points=2, ranked=False)
    code, text = refused(tmp_path / "results.jsonl", job)
    assert code == 2
    assert "is not a job: its variants were chosen already" in text
    assert "Make a job: pallasc tune plan SPECS -o job.pallasc" in text
    assert not (tmp_path / "results.jsonl").exists()
