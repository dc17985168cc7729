"""The garbage collector, while thousands of lasting objects are made."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from pallasc.specs.objects import collector_past

with collector_past():
    assert not gc.isenabled()
    kept = [[number] for number in range(1000)]
assert gc.isenabled()
assert gc.get_freeze_count() > 1000
known = {id(item) for item in gc.get_objects()}
assert not any(id(item) in known for item in kept)
cycle = []
cycle.append(cycle)
del cycle
assert gc.collect() > 0
"""


def _run(program: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


def test_what_lasts_is_not_walked_and_what_comes_later_is_collected() -> None:
    assert _run(PROGRAM) == (0, "")
