"""Provoke what the stand-in driver only models, on whatever driver is here; compare both.

Usage: error_codes.py FOLDER CASE runs one case in this process and prints a JSON list for each
answer. `pack.py` does so on the stand-in and keeps its answers, `check_gpu.py` on the real driver.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cases_limits
import cases_loading
import cases_maps
import cases_state
from cases import CASES, Case
from ground import Ground

_MODULES = (cases_loading, cases_limits, cases_maps, cases_state)
"""Importing them fills the table of cases."""

_LONGEST_S = 120
ABSENT = "no answer"


def run_case(folder: Path, case: Case, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run a case in a process of its own; return label -> answer.

    Where the process does not end well, the last answer is what it ended with.
    """
    command = [sys.executable, "-P", __file__, str(folder), case.name]
    path = [str(Path(__file__).parent), environment.get("PYTHONPATH", "")]
    given = {**environment, **case.environment, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    try:
        done = subprocess.run(
            command, env=given, capture_output=True, text=True, check=False, timeout=_LONGEST_S
        )
        output, code, error = done.stdout, done.returncode, done.stderr
    except subprocess.TimeoutExpired as expired:
        output, code, error = _text(expired.stdout), 0, ""
        output += json.dumps(["end", f"none within {_LONGEST_S} s"])
    answers = dict(json.loads(line) for line in output.splitlines() if line.startswith("["))
    if code < 0:
        answers["end"] = f"killed by {signal.Signals(-code).name}"
    elif code:
        answers["end"] = (error.strip().splitlines() or ["?"])[-1]
    return answers


def _text(data: str | bytes | None) -> str:
    return data.decode() if isinstance(data, bytes) else data or ""


def run_cases(
    folder: Path,
    environment: Mapping[str, str],
    *,
    names: Iterable[str] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, dict[str, Any]]:
    """Run cases, all where none are named; return name -> label -> answer."""
    found = {}
    for name in CASES if names is None else names:
        found[name] = run_case(folder, CASES[name], environment)
        say(f"{len(found[name]):4d} answers  {name}")
    return found


def compare_answers(
    real: Mapping[str, Mapping[str, Any]], standin: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return one row for each answer: case, label, both answers, whether they are the same."""
    rows = []
    for name, answers in real.items():
        known = standin.get(name, {})
        for label in dict.fromkeys([*answers, *known]):
            pair = {
                "real": answers.get(label, ABSENT),
                "standin": known.get(label, ABSENT),
            }
            same = pair["real"] == pair["standin"]
            rows.append({"case": name, "label": label, **pair, "same": same})
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table of those rows that differ."""
    differing = [row for row in rows if not row["same"]]
    lines = [f"{len(rows) - len(differing)} of {len(rows)} answers are the same"]
    for name in dict.fromkeys(row["case"] for row in differing):
        lines.append(name)
        lines += [
            f"    {row['label']}: real {row['real']}, stand-in {row['standin']}"
            for row in differing
            if row["case"] == name
        ]
    return lines


def main() -> None:
    """Run one case and print each answer as soon as it is there."""
    case, ground = CASES[sys.argv[2]], Ground(Path(sys.argv[1]))
    if case.starts:
        ground.start()
    for label, answer in case.run(ground):
        print(json.dumps([label, answer], default=str), flush=True)


if __name__ == "__main__":
    main()
