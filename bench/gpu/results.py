"""What runs have found: a file of JSON lines, each on the disk the moment it is known.

Every line is an object with `event`, `at` (seconds since 1970) and `run` (1, 2, …). Schema 1:

* `run`: a run starts: `schema`, `packed` (the digest of the packed folder), `budget_s`
* `machine`: the machine that it is on, see `machine.py`
* `begin`: `unit` is started, in a process of its own
* `thing`: `unit` has found something: `what` it is called, and its values; `missing` is the reason
  why something could not be asked here, `error` what went wrong, with all of its causes
* `end`: `unit` is over: `status`, `seconds`; `reason`, `error` and `said` where there are such
* `over`: the run is over: `seconds`, `left` (how many units are for the next run)

A later line for the same `unit` and `what` takes the place of an earlier one. A line that was cut
short is not counted, and the next one starts on a line of its own.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = "results.jsonl"
SCHEMA = 1
FINAL = ("done", "failed", "died", "timeout", "abandoned", "skipped")
"""How a unit can be over for good; one that was `cut` by the end of a run is begun again."""

MOST_BEGINS = 3
"""A unit that was begun so often and never ended takes the machine with it: it is abandoned."""

Row = Mapping[str, Any]


class Results:
    """Appends lines to a file of results.

    Args:
        path: the file.
        run: number of this run.
    """

    def __init__(self, path: Path, run: int) -> None:
        self.path, self.run = path, run
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        if (size := os.fstat(self._file).st_size) and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")

    def write(self, event: str, **values: Any) -> None:
        """Append a line; it is on the disk when this returns."""
        row = {"event": event, "at": round(time.time(), 3), "run": self.run, **values}
        os.write(self._file, (json.dumps(row, default=str) + "\n").encode())
        os.fsync(self._file)


@dataclass
class Known:
    """What a file of results says.

    Attributes:
        runs: how many there were.
        damaged: how many lines cannot be read.
        packed: digest of the folder that the results are of.
        machines: what the runs were on.
        ends: unit -> its last `end` line, where it is over for good.
        begins: unit -> how often it was begun since it last ended.
        things: unit -> what -> line.
    """

    runs: int = 0
    damaged: int = 0
    packed: str | None = None
    machines: list[Row] = field(default_factory=list)
    ends: dict[str, Row] = field(default_factory=dict)
    begins: Counter[str] = field(default_factory=Counter)
    things: dict[str, dict[str, Row]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Known:
        """Return what a file says; nothing where there is none."""
        rows, damaged = read_rows(path)
        known = cls(damaged=damaged)
        known.add(rows)
        return known

    def add(self, rows: Iterable[Row]) -> None:
        """Take in lines, in order."""
        for row in rows:
            unit, event = str(row.get("unit", "")), row.get("event")
            if event == "run":
                self.runs = max(self.runs, int(row["run"]))
                self.packed = self.packed or str(row["packed"])
            elif event == "machine":
                self.machines.append(row)
            elif event == "begin":
                self.begins[unit] += 1
            elif event == "thing":
                self.things.setdefault(unit, {})[str(row["what"])] = row
            elif event == "end":
                self.begins[unit] = 0
                if row["status"] in FINAL:
                    self.ends[unit] = row

    def of_part(self, part: str) -> dict[str, dict[str, Row]]:
        """Return what the units of a part have found, by the units' names."""
        start = f"{part}/"
        return {
            unit.removeprefix(start): things
            for unit, things in self.things.items()
            if unit.startswith(start)
        }


def read_rows(path: Path) -> tuple[Sequence[Row], int]:
    """Return the lines of a file, and how many there are that cannot be read."""
    rows, damaged = [], 0
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or "event" not in row:
                raise ValueError("no line of results")
            rows.append(row)
        except ValueError:
            damaged += bool(line.strip())
    return rows, damaged
