"""Hostile servers, damaged remotes, and kills: `hostile.py` and `kills.py`, in own processes."""

import json
import sys
from pathlib import Path

from commands import output_of


def test_no_answer_and_no_damaged_file_makes_a_build_wrong_slow_or_large() -> None:
    script = Path(__file__).with_name("hostile.py")
    options = ["--json", "--mutations", "40", "--patience", "1.0"]
    command = [sys.executable, "-W", "ignore", str(script), *options]
    said = output_of(command, timeout=900)
    rows = json.loads(said)
    assert "secret" not in said
    assert len(rows) > 70
    assert [row for row in rows if row["wrong"]] == []
    assert [row for row in rows if row["growth_bytes"] > 64 * 2**20] == []
    assert [row["hits"] for row in rows[:1]] == [6]


_PROGRAM = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import kills
outcome = kills.run(Path(sys.argv[2]), kills=int(sys.argv[3]), seed=int(sys.argv[4]))
print(json.dumps([outcome.kills, outcome.wrong]))
"""


def test_all_stores_verify_after_kills(fast_folder: Path) -> None:
    here = Path(__file__).parent
    command = [sys.executable, "-c", _PROGRAM, str(here), str(fast_folder), "30", "7"]
    kills, wrong = json.loads(output_of(command, timeout=900))
    assert wrong == []
    assert min(kills.values()) >= 10
