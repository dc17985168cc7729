"""Hostile servers and damaged remotes, in a process whose memory is measured: `hostile.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_no_answer_and_no_damaged_file_makes_a_build_wrong_slow_or_large() -> None:
    script = Path(__file__).with_name("hostile.py")
    options = ["--json", "--mutations", "40", "--patience", "0.4"]
    command = [sys.executable, "-W", "ignore", str(script), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert "secret" not in done.stdout
    assert len(rows) > 90
    assert [row for row in rows if row["wrong"]] == []
    assert [row for row in rows if row["growth_bytes"] > 64 * 2**20] == []
    assert [row["hits"] for row in rows[:1]] == [6]
    everywhere = [row for row in rows if row["name"].endswith(", everywhere")]
    assert len(everywhere) >= 20
