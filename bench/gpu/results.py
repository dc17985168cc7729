"""The results of all runs: a file of JSON lines, each on disk as soon as it is known.

Every line is an object with `event`, `at` (seconds since 1970) and `run` (1, 2, …). Schema 2:

* `run`: a run starts: `schema`, `packed` (digest of the packed folder), `packed_by`, `budget_s`
* `machine`: see `part_machine.py`
* `begin`: `unit` is started, in its own process
* `thing`: a result of `unit`: its name `what`, and values; or `missing`, the reason why it cannot
  be measured here; or `error`, the error with all causes
* `end`: `unit` is over: `status`, `seconds`, and after a failure `reason` and `said`, its output
* `over`: the run is over: `seconds`, `left` (units left for the next run, by part)

A later line for the same `unit` and `what` replaces an earlier one. A truncated line is ignored;
the next result starts on a new line.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = "results.jsonl"
SCHEMA = 2
FINAL = ("done", "failed", "died", "timeout", "abandoned", "skipped")
"""Statuses after which a unit is not run again. A unit that the end of a run `cut` is run again."""

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
        """Append a line; it is on disk when this returns."""
        row = {"event": event, "at": round(time.time(), 3), "run": self.run, **values}
        os.write(self._file, (json.dumps(row, default=str) + "\n").encode())
        os.fsync(self._file)


@dataclass
class Known:
    """The contents of a file of results.

    Attributes:
        runs: number of runs.
        packed: digest of the folder that was checked.
        machines: the machine of each run.
        ends: unit -> its last `end` line, if it is not run again.
        begins: unit -> how often it was started since it last ended.
        things: unit -> what -> line.
    """

    runs: int = 0
    packed: str | None = None
    machines: list[Row] = field(default_factory=list)
    ends: dict[str, Row] = field(default_factory=dict)
    begins: Counter[str] = field(default_factory=Counter)
    things: dict[str, dict[str, Row]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "Known":
        """Return the contents of a file; nothing if there is none."""
        known = cls()
        for line in path.read_bytes().splitlines() if path.exists() else ():
            with suppress(ValueError):  # truncated when a run was killed
                known.add(json.loads(line))
        return known

    def add(self, row: Row) -> None:
        """Add a line."""
        unit, event = str(row.get("unit", "")), row["event"]
        if event == "run":
            self.runs, self.packed = int(row["run"]), str(row["packed"])
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
        """Return the results of a part's units, by their names."""
        start = f"{part}/"
        return {
            unit.removeprefix(start): things
            for unit, things in self.things.items()
            if unit.startswith(start)
        }
