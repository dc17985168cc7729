"""Run `check_gpu.py` and have it killed with SIGKILL at several moments.

Usage: gpu_cuts.py RESULTS MOMENTS COMMAND… with MOMENTS a JSON list of [event, start of a unit].
A moment has come when the run has written such a line (`gpu_device/sitecustomize.py`). Each run
goes on where the last one was cut; the last one is not. Prints one JSON object: the exit status of
that, and how many lines there were at each cut.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def lines(path: Path) -> list[dict[str, object]]:
    """Return what a file of results has in whole lines."""
    text = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in text.split(b"\n")[:-1] if line]


def cut(path: Path, moment: Sequence[str], command: Sequence[str]) -> int:
    """Run a command until a moment at which it is killed; return how many lines there are."""
    environment = {**os.environ, "GPU_CUT": json.dumps(moment)}
    status = subprocess.run(
        command, env=environment, start_new_session=True, check=False
    ).returncode
    if status != -signal.SIGKILL:
        raise SystemExit(f"it ended with {status} before {moment}")
    return len(lines(path))


def main() -> None:
    """Cut it off at each moment, then let it run."""
    path, moments, command = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]
    counts = [cut(path, moment, command) for moment in moments]
    status = subprocess.run(command, check=False).returncode
    print(json.dumps({"status": status, "lines": counts}))


main()
