"""Run the cases of what the stand-in driver only models; `pack.py` does so on the stand-in.

Usage: error_codes.py FOLDER CASE runs one case in this process and prints a JSON list for each
answer. On a real driver the same cases run as the part `codes` of `check_gpu.py`.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from cases import CASES, Case
from ground import Ground

_MODULES = ("cases_loading", "cases_limits", "cases_maps", "cases_state")
_LONGEST_S = 120


def load_cases() -> None:
    """Fill the table of cases."""
    for name in _MODULES:
        importlib.import_module(name)


def run_case(folder: Path, case: Case, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run a case in a process of its own; return label -> answer.

    Where the process does not end well, the last answer is what it ended with.
    """
    command = [sys.executable, "-P", __file__, str(folder), case.name]
    path = [str(Path(__file__).parent), environment.get("PYTHONPATH", "")]
    given = {**environment, **case.environment, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    done = subprocess.run(
        command, env=given, capture_output=True, text=True, check=False, timeout=_LONGEST_S
    )
    answers = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    if done.returncode < 0:
        answers["end"] = f"killed by {signal.Signals(-done.returncode).name}"
    elif done.returncode:
        answers["end"] = (done.stderr.strip().splitlines() or ["?"])[-1]
    return answers


def run_cases(
    folder: Path,
    environment: Mapping[str, str],
    *,
    names: Iterable[str] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, dict[str, Any]]:
    """Run cases, all where none are named; return name -> label -> answer."""
    load_cases()
    found = {}
    for name in CASES if names is None else names:
        found[name] = run_case(folder, CASES[name], environment)
        say(f"{len(found[name]):4d} answers  {name}")
    return found


def main() -> None:
    """Run one case and print each answer as soon as it is there."""
    load_cases()
    case, ground = CASES[sys.argv[2]], Ground(Path(sys.argv[1]))
    if case.starts:
        ground.start()
    for label, answer in case.run(ground):
        print(json.dumps([label, answer], default=str), flush=True)


if __name__ == "__main__":
    main()
