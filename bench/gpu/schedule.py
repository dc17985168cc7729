"""Units of work, each run in its own process with a time limit, within the budget of a run."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from results import Known, Results

_MOST_BEGINS = 3
"""A unit that was started this often and never ended is abandoned: it may crash the machine."""
_MOST_SAID = 4000
_DYING_S = 10


@dataclass(frozen=True)
class Unit:
    """The work of one process.

    Attributes:
        part, name: `part/name` is its id.
        limit_s: time limit.
        needs_s: time that it usually takes; if less time is left, it is not started.
        environment: additional variables of its process.
        reason: why it cannot run on this machine, None if it can.
    """

    part: str
    name: str
    limit_s: float = 60
    needs_s: float = 2
    environment: Mapping[str, str] = field(default_factory=dict)
    reason: str | None = None

    @property
    def id(self) -> str:
        """The unit's id in results."""
        return f"{self.part}/{self.name}"


@dataclass
class Schedule:
    """Runs units within the budget of a run.

    Attributes:
        results: the file for results.
        known: the results of earlier runs and of this run.
        command: unit -> its command.
        environment: environment variables of all processes.
        ends_at: `time.monotonic()` when everything must be over.
        patience: factor for all time limits.
    """

    results: Results
    known: Known
    command: Callable[[Unit], Sequence[str]]
    environment: Mapping[str, str]
    ends_at: float
    patience: float = 1.0
    _running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    _is_over: bool = False

    def left(self, units: Iterable[Unit]) -> list[Unit]:
        """Return the units that are still to be run."""
        return [unit for unit in units if unit.id not in self.known.ends]

    def run(self, units: Iterable[Unit], *, at_once: int, until: float) -> None:
        """Run the remaining units as far as time allows.

        Args:
            units: the units, in order.
            at_once: number of units that run at the same time.
            until: `time.monotonic()` after which no units are started.
        """
        for unit in self.left(units):
            if unit.reason is not None:
                self._end(unit, "skipped", reason=unit.reason)
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(lambda unit: self._run(unit, min(until, self.ends_at)), self.left(units)))

    def kill(self) -> None:
        """Kill all running units, and start no more."""
        self._is_over = True
        for process in list(self._running):
            _kill_group(process)

    def _run(self, unit: Unit, until: float) -> None:
        if self.known.begins[unit.id] >= _MOST_BEGINS:
            reason = f"started {_MOST_BEGINS} times, and each time the run ended before it did"
            self._end(unit, "abandoned", reason=reason)
        elif not self._is_over and time.monotonic() + unit.needs_s <= until:
            self.results.write("begin", unit=unit.id)
            own_s = unit.limit_s * self.patience
            limit_s = min(own_s, self.ends_at - time.monotonic())
            with tempfile.TemporaryFile() as log:
                began = time.monotonic()
                code = self._wait(unit, log, limit_s)
                more = {"seconds": round(time.monotonic() - began, 2)}
                status, reason = _status(code, limit_s)
                if self._is_over or (code is None and limit_s < own_s):
                    self._end(unit, "cut", reason="the time of the run is spent", **more)
                elif code == 0:
                    self._end(unit, status, **more)
                else:
                    log.seek(max(0, log.seek(0, os.SEEK_END) - _MOST_SAID))
                    said = log.read().decode(errors="replace")
                    self._end(unit, status, reason=reason, said=said, **more)

    def _wait(self, unit: Unit, log: Any, limit_s: float) -> int | None:
        """Run the process of a unit; return its exit code, None if the time limit was reached."""
        process = subprocess.Popen(
            self.command(unit),
            env={**self.environment, **unit.environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,
        )
        self._running.add(process)
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            _kill_group(process)
            with suppress(subprocess.TimeoutExpired):  # a driver may keep it alive
                process.wait(_DYING_S)
            return None
        finally:
            self._running.discard(process)

    def _end(self, unit: Unit, status: str, **values: Any) -> None:
        row = {"unit": unit.id, "status": status, **values}
        self.results.write("end", **row)
        self.known.add({"event": "end", **row})
        reason = f"  ({values['reason']})" if "reason" in values else ""
        say(f"{status:9} {values.get('seconds', 0):6.1f} s  {unit.id}{reason}")


def say(text: str) -> None:
    """Print a line for the user."""
    print(text, file=sys.stderr, flush=True)


def _status(code: int | None, limit_s: float) -> tuple[str, str]:
    if code is None:
        return "timeout", f"not over after {limit_s:.0f} s"
    if code < 0:
        return "died", f"killed by {signal.Signals(-code).name}"
    return ("done", "") if code == 0 else ("failed", f"exit status {code}")


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
