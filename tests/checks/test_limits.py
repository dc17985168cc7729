"""`--timeout` and `--memory` of `pallasc check`: what a level may take, and how it says so."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pallasc.checks.worker import out_of_memory
from pallasc.compiler.workers.messages import Failed

MORE = """

def a_row(x):
    def body(x, o, bar, smem):
        plgpu.copy_gmem_to_smem(x.at[0, pl.ds(0, 128)], smem, bar)
        plgpu.barrier_wait(bar)
        o[...] = smem[...]

    return kernel(body)(x)


def first(x):
    return x[0, :128]
"""


WORDS = ("spec.yaml", "--json", "--level", "artifact", "--schedules", "2", "--memory", "3GiB")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, checking: Any) -> Path:
    made = tmp_path_factory.mktemp("limits")
    (made / "kernels.py").write_text(checking.KERNELS + checking.LASTING + MORE)
    large = {"args": ["f32[32768, 32768]"], "reference": "kernels.py:first"}
    kernels = [{"name": "sound"}, {"name": "lasting"}, {"name": "a_row", **large}]
    (made / "spec.yaml").write_text(checking.spec_of(*kernels))
    return made


@pytest.fixture(scope="module")
def ran(folder: Path, checking: Any) -> Any:
    return checking.check(folder, *WORDS, "-k", "name=sound or name=a_row", "--jobs", "1")


def test_a_level_that_takes_too_long_says_in_which_schedule(folder: Path, checking: Any) -> None:
    # A processor is busy for all of that time; on a slow one the schedules begin later.
    for seconds in (4, 12, 60, 600):
        ran = checking.check(folder, *WORDS, "-k", "name=lasting", "--timeout", str(seconds))
        assert ran.code == 1
        (lasting,) = ran.report["variants"]
        if "schedule" in json.dumps(lasting["results"]):
            break
    (result,) = lasting["results"]
    assert (result["status"], result["stopped"]) == ("not checked", True)
    told = f"it took longer than {seconds} s (--timeout), in schedule 1 of 2"
    assert result["reason"] == told
    assert not result["from_store"]


def test_arrays_that_no_process_may_hold_end_their_check_alone(ran: Any) -> None:
    result = ran.results["a_row"]
    assert (result["status"], result["stopped"]) == ("not checked", True)
    assert "memory" in result["reason"]


def test_the_others_are_checked_all_the_same(ran: Any) -> None:
    assert ran.results["sound"]["status"] == "passed", ran.results["sound"]


def test_memory_that_runs_out_is_told_as_such() -> None:
    error = out_of_memory("k", MemoryError("Unable to allocate 4.00 GiB"))
    told = "not enough memory to execute k: Unable to allocate 4.00 GiB"
    assert error.message == told
    assert Failed.because_of(error).out_of_memory


def test_an_interrupted_check_writes_whole_reports_of_what_it_did(folder: Path, ran: Any) -> None:
    """`ran` has checked `sound`; while `lasting` is checked, the signal comes."""
    words = (*WORDS, "--junit", "j.xml", "--sarif", "s.sarif", "-k", "name=sound or name=lasting")
    command = [sys.executable, "-P", "-m", "pallasc", "check", *words, "--store", "store"]
    check = subprocess.Popen([*command, "--jobs", "1"], cwd=folder, stdout=-1, stderr=-1, text=True)
    assert check.stderr is not None
    assert any("checking 1: lasting@h100-sxm (artifact)" in line for line in check.stderr)
    check.send_signal(signal.SIGTERM)
    out, err = check.communicate(timeout=600)
    assert check.returncode == 130
    assert "interrupted, 1 variant left" in err
    report = json.loads(out)
    assert report["interrupted"]
    left = {row["name"]: (row["interrupted"], len(row["results"])) for row in report["variants"]}
    assert left == {"sound": ([], 1), "lasting": (["artifact"], 0)}
    (suite,) = ElementTree.parse(folder / "j.xml").getroot()
    assert (suite.get("tests"), suite.get("errors")) == ("2", "1")
    (run,) = json.loads((folder / "s.sarif").read_text())["runs"]
    told = json.dumps(run["invocations"])
    assert "not checked  artifact     lasting@h100-sxm: interrupted" in told
