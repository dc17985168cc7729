"""Run `check_gpu.py` and cut it off, with SIGKILL to its process group, at several moments.

Usage: gpu_cuts.py RESULTS MOMENTS COMMAND… with MOMENTS a JSON list of [event, start of a unit].
A moment has come when the run writes such a line. Each run goes on where the last one was cut; the
last one is not. Prints one JSON object: the exit status of that, and how many lines there were at
each cut.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_POLL_S = 0.01
_LONGEST_S = 1800


def lines(path: Path) -> list[dict[str, object]]:
    """Return what a file of results has in whole lines."""
    text = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in text.split(b"\n")[:-1] if line]


def cut(path: Path, event: str, start: str, command: Sequence[str]) -> int:
    """Run a command until it writes such a line, and kill it; return how many lines there are."""
    before = len(lines(path))
    process = subprocess.Popen(command, start_new_session=True)
    until = time.monotonic() + _LONGEST_S
    while time.monotonic() < until:
        new = lines(path)[before:]
        if any(r["event"] == event and str(r.get("unit", "")).startswith(start) for r in new):
            break
        if process.poll() is not None:
            raise SystemExit(f"it ended with {process.returncode} before {event} {start}")
        time.sleep(_POLL_S)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return len(lines(path))


def main() -> None:
    """Cut it off at each moment, then let it run."""
    path, moments, command = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]
    counts = [cut(path, event, start, command) for event, start in moments]
    status = subprocess.run(command, check=False).returncode
    print(json.dumps({"status": status, "lines": counts}))


main()
