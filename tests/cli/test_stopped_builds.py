"""A build that is stopped from outside keeps what it has, leaves nothing, and is gone on with."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pallasc.cache.store import Store

KERNELS = """
import pathlib
import time

from pallasc.specs.library.elementwise import add


def wait_or_add(x, y, *, wait):
    if wait:
        pathlib.Path(__file__).with_name("waits").touch()
        while pathlib.Path(__file__).with_name("flag").exists():
            time.sleep(0.05)
    return add(x, y)
"""
SPEC = """
schema: 1
targets: [sm_90a]
kernels:
  - name: waits
    entry: kernels.py:wait_or_add
    args: {x: "f32[{m}, 2048]", y: "f32[{m}, 2048]"}
    static: {wait: "{wait}"}
    include:
      - {m: 1, wait: false}
      - {m: 2, wait: false}
      - {m: 3, wait: true}
      - {m: 4, wait: false}
"""
DEADLINE_S = 900


@pytest.fixture
def place(tmp_path: Path, warm_store: Store) -> Path:
    """Return a folder with a spec whose third variant waits, a store, and an empty folder `tmp`."""
    shutil.copytree(warm_store.root, tmp_path / "store")
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "flag").touch()
    (tmp_path / "tmp").mkdir()
    return tmp_path


def start(place: Path, *more: str) -> subprocess.Popen[str]:
    """Start a build of one process in a store and a temporary folder of its own."""
    command = [sys.executable, "-P", "-m", "pallasc", "build", "spec.yaml", "--jobs", "1", *more]
    return subprocess.Popen(
        [*command, "--store", "store"],
        cwd=place,
        env={**os.environ, "TMPDIR": str(place / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def processes_of(place: Path) -> list[int]:
    """Return the processes that have the place's temporary folder in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            environment = (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if str(place / "tmp").encode() in environment and state != "Z":
            found.append(int(entry.name))
    return found


def until_it_waits(build: subprocess.Popen[str], place: Path) -> None:
    """Wait until two variants are compiled and the kernel of the third runs."""
    assert build.stderr is not None
    compiled = (line for line in build.stderr if "compiled  waits" in line)
    assert ["m=1," in next(compiled), "m=2," in next(compiled)] == [True, True]
    wait(lambda: (place / "waits").exists())


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_interrupted_build_keeps_what_it_has_and_is_gone_on_with(place: Path) -> None:
    build = start(place, "--json", "--junit", "report.xml")
    until_it_waits(build, place)
    build.send_signal(signal.SIGTERM)
    out, err = build.communicate(timeout=DEADLINE_S)
    assert build.returncode == 130
    assert "interrupted: 2 of 4 left; finished variants are kept:\n  waits[m=3," in err
    assert "Traceback" not in err
    report = json.loads(out)
    assert report["interrupted"] is True
    assert [item["status"] for item in report["variants"]] == [
        "compiled", "compiled", "skipped", "skipped",
    ]  # fmt: skip
    assert (place / "report.xml").read_text().count("<skipped") == 2
    wait(lambda: not processes_of(place))
    assert list((place / "tmp").iterdir()) == []
    assert list(place.glob("store/*/tmp/*")) == list(place.glob("store/*/leases/*")) == []

    for options, code, status in ((["--frozen"], 3, "failed"), ([], 0, "compiled")):
        (place / "flag").unlink(missing_ok=True)
        rest = start(place, "--json", *options)
        out, err = rest.communicate(timeout=DEADLINE_S)
        statuses = [item["status"] for item in json.loads(out)["variants"]]
        assert (rest.returncode, statuses) == (code, ["hit", "hit", status, status]), err


def test_a_killed_build_leaves_no_process_behind(place: Path) -> None:
    build = start(place)
    until_it_waits(build, place)
    assert len(processes_of(place)) > 1
    build.kill()
    build.communicate(timeout=DEADLINE_S)
    wait(lambda: not processes_of(place))
