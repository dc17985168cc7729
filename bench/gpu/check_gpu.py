"""Check pallasc on a machine with an NVIDIA GPU.

Usage: python3 check_gpu.py --out FOLDER [--budget 540] [--parts numbers times] [-k TEXT]

This script is in a folder that `pack.py` made on another machine. It needs neither a network nor a
compiler: the folder's wheels of missing packages are unpacked into a temporary folder.

FOLDER/results.jsonl gets a line for each result as soon as it is known. Every kernel runs in its
own process with a time limit, so that a hang or a broken context loses only that kernel. If a run
is interrupted, or its --budget seconds are spent, the same command continues. Each part has a share
of the time; unused time goes to the other parts. The parts, in order:

  numbers    every kernel, with arrays of numpy, torch, cupy, JAX and DLPack, against numpy
  calls      bundles, packages, operators, graphs, streams, threads, jax.export, tune run
  errors     errors of the driver
  launch     the cost of a launch, against Triton and JAX
  times      kernel times, warm and cold, against JAX and torch

`python3 summary.py FOLDER/results.jsonl` prints a table of the results so far.

Exit status: 0 everything is done and right; 1 a result is wrong or failed; 2 wrong usage; 3 there
is more to do: run the command again; 4 no GPU can be used here; more than 128: interrupted.
"""

import argparse
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
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from results import FILE, SCHEMA, Known, Results
from schedule import Schedule, Unit, say

HERE = Path(__file__).resolve().parent
PARTS = ("numbers", "calls", "errors", "launch", "times")
_BUDGET_S = 540
_RESERVE_S = 10
"""Part of the budget for unpacking at the start, and for killing processes at the end."""

_COUNTS = {
    "rows": 96,  # compared with numpy
    "repeats": 200,  # launches, for the time of a kernel
    "rounds": 3,
    "launches": 200,  # timed together
    "ramp_s": 1.0,
}
_QUICK = {"rows": 8, "repeats": 2, "rounds": 1, "launches": 1, "ramp_s": 0}


def unpack_missing(folder: Path, site: Path) -> None:
    """Unpack the wheels of missing packages, and always pallasc's own."""
    installed = {one.name.lower().replace("-", "_") for one in distributions()} - {"pallasc"}
    for wheel in sorted((folder / "wheels").glob("*.whl")):
        if wheel.name.partition("-")[0].lower() not in installed:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)


class Check:
    """One run of the command.

    Args:
        options: the options of the command line.
        results: the file for results.
        known: the results of earlier runs.
        site: a temporary folder with packages.
    """

    def __init__(
        self, options: argparse.Namespace, results: Results, known: Known, site: Path
    ) -> None:
        self._options, self._results, self._known, self._site = options, results, known, site
        self._for_units = {**(_QUICK if options.quick else _COUNTS), "only": options.only}
        path = [str(HERE), str(site), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # JAX shares the GPU with other libraries
        }
        ends_at = time.monotonic() + options.budget - min(_RESERVE_S, options.budget / 10)
        self.schedule = Schedule(
            results, known, self._command, environment, ends_at, patience=options.patience
        )
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._stop)

    def _command(self, unit: Unit) -> list[str]:
        script = [sys.executable, "-P", str(HERE / "worker.py"), str(self._options.folder)]
        given = [str(self._results.path), str(self._results.run), unit.id]
        return [*script, *given, json.dumps(self._for_units), str(os.getpid())]

    def _stop(self, number: int, _: Any) -> None:
        self.schedule.kill()
        shutil.rmtree(self._site, ignore_errors=True)
        say("interrupted; the same command continues")
        os._exit(128 + number)

    def machine(self) -> dict[str, Any] | None:
        """Describe the machine; if no GPU can be used, write the reason and return None."""
        unit = Unit("machine", f"run {self._results.run}")
        self.schedule.run([unit], at_once=1, until=self.schedule.ends_at)
        machines = Known.read(self._results.path).machines
        return next((dict(row) for row in machines if row["run"] == self._results.run), None)

    def run(self, machine: dict[str, Any]) -> dict[str, int]:
        """Run the remaining units within the budget; return the number still left, by part."""
        parts: dict[str, ModuleType] = {
            name: importlib.import_module(f"part_{name}") for name in self._options.parts
        }
        folder, schedule = self._options.folder, self.schedule
        units = {n: part.units(folder, machine, self._for_units) for n, part in parts.items()}
        budget_s = schedule.ends_at - time.monotonic()
        for is_share in (True, False):
            for name, part in parts.items():
                if not (left := schedule.left(units[name])):
                    continue
                until = schedule.ends_at
                if is_share:
                    until = time.monotonic() + part.SHARE * budget_s
                    say(f"---- {name}: {part.TITLE}; {len(left)} of {len(units[name])} to do")
                schedule.run(left, at_once=part.AT_ONCE, until=until)
        return {name: len(schedule.left(units[name])) for name in parts}


def check(
    options: argparse.Namespace, results: Results, known: Known, packed: dict[str, Any]
) -> int:
    """Run within the budget; return the exit status."""
    from summary import problems

    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pallasc-gpu-") as name:
        unpack_missing(options.folder, Path(name))
        sys.path[1:1] = [name]
        details = {"packed": packed["digest"], "packed_by": packed["versions"]}
        results.write("run", schema=SCHEMA, budget_s=options.budget, **details)
        check = Check(options, results, known, Path(name))
        machine = check.machine()
        if machine is None:
            say(f"no GPU can be used here; {results.path} says why")
            return 4
        say(f"{machine['gpu']}, driver {machine['driver']}")
        if other := {str(row["gpu"]) for row in known.machines} - {machine["gpu"]}:
            say(f"the results in {options.out} are of {other.pop()}: use another --out")
            return 2
        left = check.run(machine)
    count = sum(left.values())
    results.write("over", seconds=round(time.monotonic() - began, 1), left=left)
    if count:
        parts = ", ".join(f"{number} of {name}" for name, number in left.items() if number)
        say(f"{count} units are left ({parts}): run the same command again")
    found = list(problems(Known.read(results.path)))
    say("\n".join(found))
    return 1 if found else 3 if count else 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--budget", type=float, default=_BUDGET_S, help="seconds of this run")
    parser.add_argument("--folder", type=Path, default=HERE, help="the folder made by pack.py")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="only these")
    parser.add_argument(
        "-k", dest="only", action="append", help="only variants with this in their id; repeatable"
    )
    parser.add_argument("--quick", action="store_true", help="few repeats, to try the command")
    parser.add_argument("--patience", type=float, default=1.0, help="factor for time limits")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = parse(arguments)
    manifest = options.folder / "MANIFEST.json"
    if not manifest.exists():
        say(f"{options.folder} was not made by pack.py: it has no MANIFEST.json")
        return 2
    packed = json.loads(manifest.read_text())
    options.out.mkdir(parents=True, exist_ok=True)
    known = Known.read(options.out / FILE)
    if known.packed not in (None, packed["digest"]):
        say(f"the results in {options.out} are of another packed folder: use another --out")
        return 2
    return check(options, Results(options.out / FILE, known.runs + 1), known, packed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
