"""Units of work, each run in a process of its own with a time limit, within a budget."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from results import MOST_BEGINS, Known, Results

_MOST_SAID = 4000
_DYING_S = 10


@dataclass(frozen=True)
class Unit:
    """What one process does.

    Attributes:
        part, name: `part/name` is what lines of results call it.
        limit_s: seconds that it may take.
        needs_s: seconds that it takes if all goes well; it is not started where fewer are left.
        environment: variables that its process has more.
        reason: why it is not run at all, None where it is.
    """

    part: str
    name: str
    limit_s: float = 60
    needs_s: float = 2
    environment: Mapping[str, str] = field(default_factory=dict)
    reason: str | None = None

    @property
    def id(self) -> str:
        """What lines of results call it."""
        return f"{self.part}/{self.name}"


@dataclass(frozen=True)
class Ended:
    """How a process ended: its status, after which time, and the end of what it said."""

    status: str
    seconds: float
    said: str
    reason: str | None = None


class Processes:
    """The processes that run now, to be killed together."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._over = False

    def run(self, command: Sequence[str], environment: Mapping[str, str], limit_s: float) -> Ended:
        """Run a command, for so long at most, in a process group of its own."""
        began = time.monotonic()
        with tempfile.TemporaryFile() as log:
            with self._lock:
                if self._over:
                    return Ended("cut", 0, "")
                process = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    process_group=0,
                )
                self._running.add(process)
            status, reason = self._wait(process, limit_s)
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - _MOST_SAID))
            said = log.read().decode(errors="replace")
        return Ended(status, time.monotonic() - began, said, reason)

    def _wait(self, process: subprocess.Popen[bytes], limit_s: float) -> tuple[str, str | None]:
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return "timeout", f"not over after {limit_s:.0f} s{_kill(process)}"
        finally:
            with self._lock:
                self._running.discard(process)
        if self._over and code < 0:
            return "cut", None
        if code < 0:
            return "died", f"killed by {signal.Signals(-code).name}"
        return ("done", None) if code == 0 else ("failed", f"exit status {code}")

    def kill(self) -> None:
        """Kill all of them, and start no more."""
        with self._lock:
            self._over = True
            for process in self._running:
                _kill_group(process)


def _kill(process: subprocess.Popen[bytes]) -> str:
    """Kill a process with all that it has started; return what is to be said about it."""
    _kill_group(process)
    try:
        process.wait(_DYING_S)
    except subprocess.TimeoutExpired:
        return f", and {_DYING_S} s after it was killed still there"
    return ""


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@dataclass
class Schedule:
    """Runs units within the budget of a run.

    Attributes:
        results: where lines go.
        known: what was found before.
        command: unit -> the command that runs it.
        environment: of all processes.
        ends_at: `time.monotonic()` when everything must be over.
        say: tells the user.
        patience: factor for the time limits of all units.
    """

    results: Results
    known: Known
    command: Callable[[Unit], Sequence[str]]
    environment: Mapping[str, str]
    ends_at: float
    say: Callable[[str], None]
    processes: Processes = field(default_factory=Processes)
    patience: float = 1.0

    def left(self, units: Iterable[Unit]) -> list[Unit]:
        """Return the units that are still to be run."""
        return [unit for unit in units if unit.id not in self.known.ends]

    def run(self, units: Iterable[Unit], *, at_once: int, until: float) -> None:
        """Run what is left of some units, as far as time goes.

        Args:
            units: the units, in order.
            at_once: how many run at the same time.
            until: `time.monotonic()` after which no more are started.
        """
        self._skip([unit for unit in self.left(units) if unit.reason is not None])
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(lambda unit: self._run(unit, min(until, self.ends_at)), self.left(units)))

    def _run(self, unit: Unit, until: float) -> None:
        if self.known.begins[unit.id] >= MOST_BEGINS:
            reason = f"begun {MOST_BEGINS} times, and each time the run was over before it was"
            self._end(unit, status="abandoned", reason=reason)
        elif time.monotonic() + unit.needs_s <= until:
            self.results.write("begin", unit=unit.id)
            own_s = unit.limit_s * self.patience
            limit_s = min(own_s, self.ends_at - time.monotonic())
            environment = {**self.environment, **unit.environment}
            ended = self.processes.run(self.command(unit), environment, limit_s)
            if ended.status == "timeout" and limit_s < own_s:
                ended = Ended("cut", ended.seconds, "", "the run's time is spent")
            self._write_end(unit, ended)

    def _skip(self, units: Iterable[Unit]) -> None:
        """Write down what is not run here, and say each reason once."""
        reasons: Counter[str] = Counter()
        for unit in units:
            row = {"event": "end", "unit": unit.id, "status": "skipped", "reason": unit.reason}
            self.results.write(**row)
            self.known.add([row])
            reasons[str(unit.reason)] += 1
        for reason, count in reasons.items():
            self.say(f"skipped   {count} units: {reason}")

    def _write_end(self, unit: Unit, ended: Ended) -> None:
        more: dict[str, Any] = {"seconds": round(ended.seconds, 2)}
        if ended.reason:
            more["reason"] = ended.reason
        if ended.status not in ("done", "cut") and ended.said:
            more["said"] = ended.said
        self._end(unit, status=ended.status, **more)

    def _end(self, unit: Unit, **values: Any) -> None:
        self.results.write("end", unit=unit.id, **values)
        self.known.add([{"event": "end", "unit": unit.id, **values}])
        reason = f"  ({values['reason']})" if "reason" in values else ""
        self.say(f"{values['status']:9} {values.get('seconds', 0):6.1f} s  {unit.id}{reason}")
