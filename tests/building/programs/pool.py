"""Run a pool of one fake worker, say what it says, and wait to be killed: pool.py CODE."""

from __future__ import annotations

import json
import os
import sys

from pallasc.compiler.workers.pool import Pool, Task

with Pool(1, os.environ, program="fake_worker") as pool:
    tasks = [Task(0, ("", ""), {"op": "do", "code": sys.argv[1]})]
    tasks.append(Task(1, ("", ""), {"op": "do", "code": "import signal; signal.pause()"}))
    for kind, _, answer in pool.run(tasks):
        if kind == "done" and answer.message is not None:
            print(json.dumps(answer.message["value"]), flush=True)
