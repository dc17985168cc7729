"""Python imports this first: in a process with MADE_UP_KERNELS, kernels do what that file says.

The file is JSON, of each kernel by name: `us`, what a launch takes on the clock of events; `noise`,
its relative spread, drawn from `seed` and the number of the launch; and, all from the launch of a
number on, `hang_at`, `fail_at` with the driver's `code`, `end_at`. `wrong` makes its output wrong,
`wrong_at` only the element of that number; `starts` names a file for the number of a process that
the first launch starts, which sleeps. Without any of it, `out = 2 * a`, both `f32[64]`.

MADE_UP_END=SIGKILL:7 lets the run, which syncs a file for each line of its results, get this signal
at the seventh; with SIGKILL:7:5 the last five bytes of the file are lost, too.
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any


def _install(file: str) -> None:
    sys.path.append(str(Path(__file__).parents[1]))
    import standin

    kernels = json.loads(Path(file).read_text())
    driver = standin.load()
    driver.configure(kernel_ns=1)
    counts: Counter[str] = Counter()

    def launched(launch: Any) -> int:
        counts[launch.kernel] += 1
        number, own = counts[launch.kernel], kernels[launch.kernel]
        if number == 1 and "starts" in own:
            sleeping = subprocess.Popen(["sleep", "1000"])
            Path(own["starts"]).write_text(str(sleeping.pid))
        if number >= own.get("end_at", number + 1):
            os._exit(3)
        while number >= own.get("hang_at", number + 1):
            signal.pause()
        source = random.Random(f"{own.get('seed', 0)} {launch.kernel} {number}")
        us = own["us"] * (1 + own.get("noise", 0.0) * source.gauss(0, 1))
        driver.configure(kernel_ns=max(1, round(1000 * us)))
        taken, given = (launch.array(index, "float32", (64,)) for index in range(2))
        given[...] = 0 if own.get("wrong") else 2 * taken
        if "wrong_at" in own:
            given[own["wrong_at"]] = 0
        return int(own["code"]) if number >= own.get("fail_at", number + 1) else 0

    driver.kernel("*")(launched)


def _end_at(text: str) -> None:
    name, number, *lost = text.split(":")
    synced, sync = Counter[str](), os.fsync

    def syncing(descriptor: int) -> None:
        synced["files"] += 1
        if synced["files"] == int(number):
            if lost:
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - int(lost[0]))
            os.kill(os.getpid(), getattr(signal, name))
        sync(descriptor)

    os.fsync = syncing


if named := os.environ.get("MADE_UP_KERNELS"):
    _install(named)
if moment := os.environ.pop("MADE_UP_END", ""):
    _end_at(moment)
