"""Check pallasc on a machine with an NVIDIA GPU: everything that the stand-in cannot tell.

Usage: python3 check_gpu.py --out FOLDER [--budget 600] [--parts numbers,times] [-k TEXT]

It lies in a folder that `pack.py` made on a machine without a GPU, and takes everything from there:
no network, no compiler. Packages that are missing here come from the folder's wheels, unpacked into
a temporary place.

FOLDER/results.jsonl gets a line for each thing the moment it is known. Every kernel runs in a
process of its own with a time limit, so that a hang or a broken context loses that kernel only.
Where a run is cut off, the same command goes on where it ended; so it does when its time is spent,
which is after --budget seconds. Each part has a share of them, and what is left over goes to the
parts that were not done. The parts, in order:

  numbers    every kernel, with arrays of numpy, torch, cupy, JAX and DLPack, against numpy
  calls      bundles, packages, operators, graphs, streams, threads
  exports    files of jax.export by bytes and by digest, and the C library of a bundle
  codes      what the stand-in driver models, provoked on the real one, beside its answers
  errors     what users are told, with all causes
  launch     what a launch costs, against Triton, cuda.core, cupy and JAX
  times      kernel times, warm and cold, against JAX's jit and torch
  tunings    every tuning of JAX's kernels: numbers and times
  tune       pallasc tune run on some of them
  starts     from the start of a process to its first result
  sanitizer  compute-sanitizer over small kernels

`python3 summary.py FOLDER/results.jsonl` prints a table of what is known so far.

Exit status: 0 everything is done and right; 1 something is wrong or failed; 2 wrong usage; 3 there
is more to do: run the command again; 4 no GPU can be used here; 130 interrupted.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
PARTS = (
    *("numbers", "calls", "exports", "codes", "errors", "launch", "times", "tunings"),
    *("tune", "starts", "sanitizer"),
)
_BUDGET_S = 600
_RESERVE_S = 10
"""So much of the budget is for unpacking, and for what is killed at its end."""
_MACHINE_LIMIT_S = 60


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def unpack_missing(folder: Path, site: Path) -> list[str]:
    """Unpack those of the folder's wheels whose packages are missing; return their names.

    Of pallasc it is always the packed one that is used.
    """
    unpacked = []
    for wheel in sorted((folder / "wheels").glob("*.whl")):
        name = wheel.name.partition("-")[0]
        if name == "pallasc" or not _is_here(name):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)
            unpacked.append(wheel.name)
    return unpacked


def _is_here(name: str) -> bool:
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


def worker_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return what units need of the options."""
    names = ("only", "rows", "repeats", "rounds", "launches", "repeats_launch", "ramp_s")
    more = ("adapters", "copied_bytes", "peak_n")
    return {name: getattr(options, name) for name in (*names, *more)}


class Check:
    """One run of the command.

    Args:
        options: those of the command line.
        results: where lines go.
        known: what earlier runs have found.
        site: the temporary place with packages.
    """

    def __init__(self, options: argparse.Namespace, results: Any, known: Any, site: Path) -> None:
        from units import Schedule

        self._options, self._results, self._known = options, results, known
        self.site, self._began = site, time.monotonic()
        given = os.environ.get("PYTHONPATH", "")
        path = [str(HERE), str(site), *filter(None, [given])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONUNBUFFERED": "1",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # JAX shares the GPU with what is measured
        }
        ends_at = self._began + options.budget - min(_RESERVE_S, options.budget / 10)
        self.schedule = Schedule(
            results, known, self._command, environment, ends_at, _say, patience=options.patience
        )

    def _command(self, unit: Any) -> list[str]:
        given = [str(self._results.path), str(self._results.run), unit.id]
        options = json.dumps(worker_options(self._options))
        script = [sys.executable, "-P", str(HERE / "worker.py"), str(self._options.folder)]
        return [*script, *given, options, str(os.getpid())]

    def machine(self) -> dict[str, Any] | None:
        """Ask what the machine is; None, and a line that says why, where no GPU can be used."""
        from results import Known
        from units import Unit

        unit = Unit("machine", f"run {self._results.run}", _MACHINE_LIMIT_S)
        self.schedule.run([unit], at_once=1, until=self.schedule.ends_at)
        known = Known.read(self._results.path)
        found = [row for row in known.machines if row["run"] == self._results.run]
        return dict(found[0]) if found else None

    def run(self, machine: dict[str, Any]) -> dict[str, int]:
        """Run what is left of all parts, within the budget; return what is left, by part."""
        parts: dict[str, ModuleType] = {
            name: importlib.import_module(f"part_{name}") for name in self._options.parts
        }
        options = worker_options(self._options)
        units = {n: part.units(self._options.folder, machine, options) for n, part in parts.items()}
        budget_s = self.schedule.ends_at - time.monotonic()
        for is_share in (True, False):
            for name, part in parts.items():
                if not (left := self.schedule.left(units[name])):
                    continue
                until = self.schedule.ends_at
                if is_share:
                    until = time.monotonic() + part.SHARE * budget_s
                    _say(f"---- {name}: {part.TITLE}; {len(left)} of {len(units[name])} to do")
                at_once = min(part.AT_ONCE, self._options.at_once)
                self.schedule.run(left, at_once=at_once, until=until)
        return {name: len(self.schedule.left(units[name])) for name in parts}


def check(options: argparse.Namespace, results: Any, known: Any, packed: dict[str, Any]) -> int:
    """Run within the budget; return the exit status."""
    from machine import differences
    from results import Known
    from summary import is_good

    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pallasc-gpu-") as name:
        site = Path(name)
        unpacked = [] if options.no_unpack else unpack_missing(options.folder, site)
        sys.path[1:1] = [str(site)]
        results.write(
            "run",
            schema=1,
            packed=packed["digest"],
            packed_by=packed["versions"],
            budget_s=options.budget,
            parts=options.parts,
            unpacked=unpacked,
        )
        check = Check(options, results, known, site)
        stop_on_signals(check)
        if known.damaged:
            _say(f"lines of {results.path} that were cut short and do not count: {known.damaged}")
        machine = check.machine()
        if machine is None:
            _say(f"no GPU can be used here; {results.path} says why")
            return 4
        _say(f"{machine['gpu']}, driver {machine['driver'] or machine['driver_api']}")
        for text in differences(packed["versions"], machine):
            _say(f"note: {text}, so that the code of JAX's own jit may be another")
        if other := other_gpu(known, machine):
            _say(f"the results in {options.out} are of {other}: name another folder with --out")
            return 2
        left = check.run(machine)
    count = sum(left.values())
    results.write("over", seconds=round(time.monotonic() - began, 1), left=left)
    if count:
        parts = ", ".join(f"{number} of {name}" for name, number in left.items() if number)
        _say(f"{count} units are left ({parts}): run the same command again")
    found = Known.read(results.path)
    return (3 if count else 0) if is_good(found) else 1


def other_gpu(known: Any, machine: dict[str, Any]) -> str | None:
    """Return the GPU that earlier results are of, where it is another one."""
    return next((str(m["gpu"]) for m in known.machines if m["gpu"] != machine["gpu"]), None)


def stop_on_signals(check: Check) -> None:
    """Kill what runs, and end, when the command is interrupted."""

    def stop(number: int, _: Any) -> None:
        check.schedule.processes.kill()
        shutil.rmtree(check.site, ignore_errors=True)
        _say("interrupted; the same command goes on where this one ended")
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="where results go, and are found")
    parser.add_argument("--budget", type=_seconds, default=_BUDGET_S, help="seconds of this run")
    parser.add_argument("--folder", type=Path, default=HERE, help="what pack.py made")
    parser.add_argument("--parts", type=_parts, default=list(PARTS), help="only these, by commas")
    parser.add_argument(
        "-k", dest="only", action="append", help="only variants with this in their id; repeatable"
    )
    parser.add_argument("--adapters", type=_list, default=[], help="only these, of numbers")
    parser.add_argument("--rows", type=int, default=96, help="rows that are compared with numpy")
    parser.add_argument("--repeats", type=int, default=200, help="launches of a kernel's time")
    parser.add_argument("--rounds", type=int, default=3, help="how often longer things are timed")
    parser.add_argument("--launches", type=int, default=200, help="launches that are timed at once")
    parser.add_argument("--repeats-launch", type=int, default=25, help="how often those are")
    parser.add_argument("--ramp-s", type=float, default=1.0, help="seconds for clocks to rise")
    parser.add_argument("--copied-bytes", type=int, default=0, help="of the largest copy")
    parser.add_argument("--peak-n", type=int, default=8192, help="size of the largest product")
    parser.add_argument(
        "--patience", type=_seconds, default=1.0, help="factor for all time limits of units"
    )
    parser.add_argument("--at-once", type=int, default=4, help="processes, where nothing is timed")
    parser.add_argument("--no-unpack", action="store_true", help="all packages are here")
    return parser.parse_args(arguments)


def _list(text: str) -> list[str]:
    return [item for item in text.split(",") if item]


def _parts(text: str) -> list[str]:
    names = _list(text)
    unknown = [name for name in names if name not in PARTS]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"parts are {', '.join(PARTS)}, got {text!r}")
    return names


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 < seconds < 1e6:
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, got {text!r}")
    return seconds


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    sys.path.insert(0, str(HERE))
    from results import FILE, Known, Results

    options = parse(arguments)
    manifest = options.folder / "MANIFEST.json"
    if not manifest.exists():
        _say(f"{options.folder} was not made by pack.py: it has no MANIFEST.json")
        return 2
    packed = json.loads(manifest.read_text())
    options.out.mkdir(parents=True, exist_ok=True)
    known = Known.read(options.out / FILE)
    if known.packed not in (None, packed["digest"]):
        _say(f"the results in {options.out} are of another packed folder: name another with --out")
        return 2
    results = Results(options.out / FILE, known.runs + 1)
    with open(options.out / FILE, "rb") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"another run is writing into {options.out}")
            return 2
        return check(options, results, known, packed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
