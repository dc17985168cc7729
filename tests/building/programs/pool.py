"""Run a pool of one fake worker, say what it says, and wait to be killed: pool.py CODE."""

import json
import sys

from fakes import code, fakes, value

with fakes() as pool:
    tasks = [code(sys.argv[1]), code("import signal; signal.pause()", 1)]
    for kind, _, answer in pool.run(tasks):
        if kind == "done" and answer is not None:
            print(json.dumps(value(answer)), flush=True)
