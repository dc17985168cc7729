"""Run one unit: `worker.py FOLDER RESULTS RUN UNIT OPTIONS PARENT`, the options as JSON.

The unit's results are appended to the file RESULTS. The process ends when its parent ends.
"""

import ctypes
import importlib
import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from desk import Desk, describe
from results import Results

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Have this process killed when the process that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def main() -> int:
    """Run the unit; return 1, and write a line with the reason, if it fails as a whole."""
    folder, path, run, unit, options, parent = sys.argv[1:]
    end_with_parent(int(parent))
    desk = Desk(Path(folder), unit, Results(Path(path), int(run)), json.loads(options))
    try:
        importlib.import_module(f"part_{unit.partition('/')[0]}").run(desk)
    except Exception as error:  # noqa: BLE001 - it belongs in the results
        desk.tell("failure", error=describe(error))
        return 1
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # after a sticky error, libraries may hang or crash at exit
