"""Print a table of the results of `check_gpu.py`, and write a record to keep.

Usage: python3 summary.py RESULTS [--json FILE]

RESULTS is a results.jsonl. --json writes the record, as in bench/results/: the machine and all
results, without tracebacks and names of folders.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from results import Known, Row

_LEFT_OUT = ("event", "run", "unit", "what", "at", "traceback", "said")
_BAD_ENDS = ("failed", "died", "timeout", "abandoned")

Things = Mapping[str, Mapping[str, Row]]


def problems(known: Known) -> Iterator[str]:
    """Yield a line for each wrong or failed result."""
    for unit, end in known.ends.items():
        if end["status"] in _BAD_ENDS:
            yield f"{unit}: {end['status']} ({end['reason']})"
    for unit, things in known.things.items():
        for what, row in things.items():
            if "error" in row:
                yield f"{unit}: {what}: {_error(row['error'])}"
            elif row.get("right") is False and "raised" in row:
                yield f"{unit}: {what}: another error: {_error(row['raised'])}"
            elif row.get("right") is False:
                yield f"{unit}: {what}: wrong: {row.get('wrong')} of {row.get('compared')}"


def _error(error: Row | None) -> str:
    return f"{error['type']}: {error['message'].splitlines()[0]}" if error else "none"


def table(known: Known) -> Iterator[str]:
    """Yield the lines of the table."""
    if not known.machines:
        yield "no run has reached a GPU"
        return
    machine = known.machines[-1]
    versions = ", ".join(f"{name} {value}" for name, value in machine["versions"].items())
    yield f"{machine['gpu']}, {machine['sm_count']} SMs, driver {machine['driver']}"
    yield f"Python {machine['python']}, {versions}; {known.runs} runs"
    for part, lines in _TABLES.items():
        if things := known.of_part(part):
            ends = [end["status"] for unit, end in known.ends.items() if unit.startswith(part)]
            counts = ", ".join(f"{number} {status}" for status, number in Counter(ends).items())
            yield from ("", f"{part} ({counts})", *lines(things))
    yield from ("", "missing", *_missing(known))
    yield from ("", "wrong or failed", *(f"  {line}" for line in problems(known)))


def _numbers(things: Things) -> Iterator[str]:
    """Yield for each framework the number of right kernels, and the largest error."""
    for what in dict.fromkeys(what for rows in things.values() for what in rows):
        rows = [rows[what] for rows in things.values() if what in rows and "right" in rows[what]]
        right = sum(row["right"] for row in rows)
        same = sum(row["same_bytes"] for row in rows)
        worst = max((row["worst"] or 0 for row in rows), default=0)
        more = f"{same} with the same bytes, at most {worst:.2f} of the tolerance"
        yield f"  {right:3} of {len(rows)} right  {what}, {more}"


def _judged(things: Things) -> Iterator[str]:
    for name, rows in things.items():
        for what, row in rows.items():
            state = "missing" if "missing" in row else "right" if row.get("right") else "WRONG"
            raised = f": {_error(row['raised'])}" if "raised" in row else ""
            yield f"  {state:7}  {name}: {what}{raised}"


def _launch(things: Things) -> Iterator[str]:
    for name, rows in things.items():
        for what, row in rows.items():
            if "ns" in row:
                yield f"  {row['ns']:9.0f} ns  {row['to_raw']:6.2f} times raw  {name}: {what}"


def _times(things: Things) -> Iterator[str]:
    yield f"  {'warm us':>9} {'cold us':>9} {'/ JAX':>8} {'/ torch':>8}  kernel"
    for name, rows in things.items():
        ours = rows.get("pallasc", {})
        if "warm" in ours:
            warm, cold = ours["warm"]["median_us"], ours["cold"]["median_us"]
            torch = rows.get("torch", {}).get("warm")
            ratios = (
                rows.get("JAX", {}).get("pallasc_to_jax"),
                torch and warm / torch["median_us"],
            )
            texts = " ".join("       -" if r is None else f"{r:8.3f}" for r in ratios)
            yield f"  {warm:9.1f} {cold:9.1f} {texts}  {name}"


_TABLES = {
    "numbers": _numbers,
    "calls": _judged,
    "errors": _judged,
    "launch": _launch,
    "times": _times,
}


def _missing(known: Known) -> Iterator[str]:
    """Yield each reason for missing measurements, with their number."""
    reasons = Counter(
        f"{unit.partition('/')[0]}: {row['missing']}"
        for unit, things in known.things.items()
        for row in things.values()
        if "missing" in row
    )
    reasons.update(
        f"{unit.partition('/')[0]}: {end['reason']}"
        for unit, end in known.ends.items()
        if end["status"] == "skipped"
    )
    for reason, count in reasons.items():
        yield f"  {count:4} × {reason}"


def record(known: Known) -> dict[str, Any]:
    """Return the record for bench/results/."""
    return {
        "schema": 2,
        "date": time.strftime("%Y-%m-%d"),
        "machine": _kept(known.machines[-1]) if known.machines else None,
        "runs": known.runs,
        "problems": list(problems(known)),
        "units": _kept(known.things),
    }


def _kept(value: Any) -> Any:
    """Return a value without names of folders and without times."""
    if isinstance(value, Mapping):
        return {name: _kept(item) for name, item in value.items() if name not in _LEFT_OUT}
    return value


def main(arguments: Sequence[str]) -> int:
    """Print the table, write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="a results.jsonl")
    parser.add_argument("--json", type=Path, help="file of the record")
    options = parser.parse_args(arguments)
    if not options.results.exists():
        print(f"{options.results} does not exist", file=sys.stderr)
        return 2
    known = Known.read(options.results)
    print("\n".join(table(known)))
    if options.json:
        options.json.write_text(json.dumps(record(known), indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
