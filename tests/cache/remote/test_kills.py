"""A push, pull or merge that is killed leaves nothing wrong, and is completed later."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import kills
outcome = kills.run(Path(sys.argv[2]), kills=int(sys.argv[3]), seed=int(sys.argv[4]))
print(json.dumps([outcome.kills, outcome.completed, outcome.wrong]))
"""


def test_all_stores_verify_after_kills(fast_folder: Path) -> None:
    here = Path(__file__).parent
    command = [sys.executable, "-c", _PROGRAM, str(here), str(fast_folder), "30", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    kills, _, wrong = json.loads(done.stdout)
    assert wrong == []
    assert min(kills.values()) >= 10
