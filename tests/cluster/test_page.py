"""The commands of docs/cluster.md, with a port that is free."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from clusters import answers_at, free_port, wait_for

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.once


def test_the_commands_by_hand_build_on_a_cluster(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "cluster.md").read_text()
    (by_hand,) = re.findall(r"^```text\n(dask scheduler.*?)^```$", page, re.MULTILINE | re.DOTALL)
    port = free_port()
    scheduler, worker, build = (
        shlex.split(line.replace("8786", str(port))) for line in by_hand.splitlines()
    )
    assert [scheduler[:2], worker[:2], build[:2]] == [
        ["dask", "scheduler"], ["dask", "worker"], ["pallasc", "build"]
    ]  # fmt: skip
    here = {**os.environ, "PALLASC_CACHE_DIR": str(tmp_path / "store"), "TMPDIR": str(tmp_path)}
    started = []
    try:
        for words in (scheduler, worker):
            own = ["--dashboard-address", "127.0.0.1:0"] if words is scheduler else []
            with (tmp_path / f"{words[1]}.log").open("wb") as log:
                command = [sys.executable, "-P", "-m", "dask", *words[1:], *own]
                process = subprocess.Popen(command, cwd=tmp_path, env=here, stdout=log, stderr=log)
            started.append(process)
            wait_for(lambda: answers_at(port), "the scheduler")
        subprocess.run(
            [sys.executable, "-P", "-m", "pallasc", "init", "specs"], cwd=tmp_path, check=True
        )
        told = subprocess.run(
            [sys.executable, "-P", "-m", *build], cwd=tmp_path, env=here,
            stderr=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
        assert "4 variants in" in told.stderr
        assert "4 compiled" in told.stderr
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(30)
