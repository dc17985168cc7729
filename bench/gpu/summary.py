"""Make a table, and a record to keep, of what `check_gpu.py` has found.

Usage: python3 summary.py RESULTS [--folder PACKED] [--json FILE] [--check]

RESULTS is a results.jsonl. --json writes the record, as bench/results/ keeps it: what the machine
is, and everything that was found, without tracebacks and without what names folders. --folder is
what `pack.py` made, for the shapes of tunings; by default the folder of this script. --check exits
1 where something is wrong or missing.
"""

from __future__ import annotations

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

_LEFT_OUT = ("event", "run", "unit", "what", "at", "traceback", "said", "site")
_BAD_ENDS = ("failed", "died", "timeout", "abandoned")


def is_good(known: Known) -> bool:
    """Tell whether nothing is known to be wrong."""
    return not any(True for _ in problems(known))


def problems(known: Known) -> Iterator[str]:
    """Yield a line for everything that is wrong or failed."""
    for unit, row in known.ends.items():
        if row["status"] in _BAD_ENDS:
            yield f"{unit}: {row['status']}{_reason(row)}"
    for unit, things in known.things.items():
        for what, row in things.items():
            if "error" in row and unit.partition("/")[0] != "errors":
                error = row["error"]
                yield f"{unit}: {what}: {error['type']}: {error['message'].splitlines()[0]}"
            elif row.get("right") is False:
                yield f"{unit}: {what}: wrong: {row.get('wrong')} of {row.get('compared')}"


def _reason(row: Row) -> str:
    return f" ({row['reason']})" if "reason" in row else ""


# ---- the table


def table(known: Known, shapes: Mapping[str, str]) -> list[str]:
    """Return the lines of the table.

    Args:
        known: what was found.
        shapes: what tunings compute, by their ids.
    """
    lines = list(_machine(known))
    for name, part in _TABLES.items():
        if things := known.of_part(name):
            lines += ["", f"{name}{_counts(known, name)}", *part(known, things)]
    lines += _tunings(known, shapes)
    lines += ["", "missing", *_missing(known)]
    lines += ["", "wrong or failed", *(f"  {line}" for line in problems(known))]
    return lines


def _machine(known: Known) -> Iterator[str]:
    if not known.machines:
        yield "no run has reached a GPU"
        return
    machine = known.machines[-1]
    versions = ", ".join(f"{name} {value}" for name, value in machine["versions"].items() if value)
    driver = machine["driver"] or machine["driver_api"]
    yield f"{machine['gpu']}, {machine['sm_count']} SMs, {driver}"
    yield f"Python {machine['python']}, {versions}, ptxas {machine['ptxas'] or 'none'}"
    yield f"{known.runs} runs"


def _counts(known: Known, part: str) -> str:
    counts = Counter(
        row["status"] for unit, row in known.ends.items() if unit.startswith(f"{part}/")
    )
    return f" ({', '.join(f'{number} {status}' for status, number in sorted(counts.items()))})"


Things = Mapping[str, Mapping[str, Row]]


def _numbers(known: Known, things: Things) -> Iterator[str]:
    """Yield for each framework how many kernels are right, and the worst of them."""
    for what in dict.fromkeys(what for rows in things.values() for what in rows):
        rows = [rows[what] for rows in things.values() if what in rows]
        judged = [row for row in rows if "right" in row]
        right = sum(bool(row["right"]) for row in judged)
        same = sum(bool(row.get("same_bytes", True)) for row in judged)
        worst = max((row.get("worst") or 0 for row in judged), default=0)
        more = f", {same} with the same bytes, worst {worst:.2f} of the tolerance" if judged else ""
        missing = sum("missing" in row for row in rows)
        more += f", {missing} missing" if missing else ""
        yield f"  {right:3} of {len(rows) - missing} right  {what}{more}"


def _calls(known: Known, things: Things) -> Iterator[str]:
    for name, rows in things.items():
        row = rows.get("numbers", {})
        state = "missing" if "missing" in row else "right" if row.get("right") else "WRONG"
        yield f"  {state:7} {name}"


def _codes(known: Known, things: Things) -> Iterator[str]:
    answers = [(n, what, row) for n, rows in things.items() for what, row in rows.items()]
    asked = [answer for answer in answers if "same" in answer[2]]
    yield f"  {sum(row['same'] for *_, row in asked)} of {len(asked)} answers are the stand-in's"
    for name, what, row in asked:
        if not row["same"]:
            yield f"  {name}: {what}: real {row['real']}, stand-in {row['standin']}"


def _errors(known: Known, things: Things) -> Iterator[str]:
    for name, rows in things.items():
        for what, row in rows.items():
            raised = row.get("raised") or row.get("error")
            text = f"{raised['type']}: {raised['message'].splitlines()[0]}" if raised else "nothing"
            yield f"  {name}: {what}: {row.get('missing') or text}"


def _launch(known: Known, things: Things) -> Iterator[str]:
    for name, rows in things.items():
        for what, row in rows.items():
            if "ns" in row:
                yield f"  {row['ns']:9.0f} ns  {row['to_raw']:6.2f} times raw  {name}: {what}"


def _times(known: Known, things: Things) -> Iterator[str]:
    peaks = things.get("peaks", {})
    gb_per_s = peaks.get("copy", {}).get("gb_per_s")
    rates = [row["tflop_per_s"] for row in peaks.values() if "tflop_per_s" in row]
    tflop_per_s = max(rates, default=None)
    yield f"  peaks: {_value(gb_per_s, 'GB/s')}, {_value(tflop_per_s, 'TFLOP/s')}"
    yield f"  {'warm us':>9} {'cold us':>9} {'of peak':>8} {'to JAX':>7} {'to torch':>8}  kernel"
    for name, rows in things.items():
        if ours := rows.get("pallasc"):
            yield _time_line(name, rows, ours, gb_per_s, tflop_per_s)


def _time_line(
    name: str, rows: Mapping[str, Row], ours: Row, gb_per_s: float | None, rate: float | None
) -> str:
    if "warm" not in ours:
        return f"  {'':9} {'':9} {'':8} {'':7} {'':8}  {name}"
    warm, cold = ours["warm"]["median_us"], ours["cold"]["median_us"]
    share = share_of_peak(ours, cold, gb_per_s, rate)
    profiled, row = rows.get("JAX, by its profiler", {}), rows.get("JAX, many in a row", {})
    to_jax = profiled.get("pallasc_to_jax") or row.get("pallasc_to_jax")
    theirs = rows.get("torch", {}).get("warm", {}).get("median_us")
    texts = (_ratio(share), _ratio(to_jax), _ratio(warm / theirs if theirs else None))
    same = rows.get("JAX, same code", {}).get("same_code")
    note = "" if same is None else "  same code as JAX's" if same else "  JAX's code is another"
    return f"  {warm:9.1f} {cold:9.1f} {texts[0]:>8} {texts[1]:>7} {texts[2]:>8}  {name}{note}"


def share_of_peak(
    ours: Row, time_us: float, gb_per_s: float | None, tflop_per_s: float | None
) -> float | None:
    """Return a kernel's speed by that of what bounds it, memory or the matrix units."""
    shares = []
    if gb_per_s and time_us:
        shares.append(ours["moved_bytes"] / time_us / 1e3 / gb_per_s)
    if tflop_per_s and ours.get("flop") and time_us:
        shares.append(ours["flop"] / time_us / 1e6 / tflop_per_s)
    return max(shares, default=None)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _value(value: float | None, unit: str) -> str:
    return f"no {unit}" if value is None else f"{value:.0f} {unit}"


def _starts(known: Known, things: Things) -> Iterator[str]:
    for name, rows in things.items():
        texts = [
            f"{way} {rows[way]['seconds']:.2f} s"
            for way in ("pallasc", "jax")
            if "seconds" in rows.get(way, {})
        ]
        yield f"  {', '.join(texts) or 'nothing'}  {name}"


def _tune(known: Known, things: Things) -> Iterator[str]:
    for name, rows in things.items():
        row = rows.get("job", {})
        for key in row.get("keys", []):
            time_us = "-" if key["us"] is None else f"{key['us']:.1f}"
            winner = key["winner"] or "no winner"
            yield f"  {time_us:>9} us  {winner}: {key['why']} ({key['rounds']} rounds)"
        for lost, why in row.get("failed", {}).items():
            yield f"  {'lost':>9}     {lost}: {why}"
        if not row.get("keys"):
            yield f"  {'nothing':>9}     {name}"


def _sanitizer(known: Known, things: Things) -> Iterator[str]:
    for name, rows in things.items():
        row = rows.get("findings", {})
        yield f"  {row.get('findings', 'no')} findings  {name}"


_TABLES = {
    "numbers": _numbers,
    "calls": _calls,
    "exports": _numbers,
    "codes": _codes,
    "errors": _errors,
    "launch": _launch,
    "times": _times,
    "tune": _tune,
    "starts": _starts,
    "sanitizer": _sanitizer,
}


def best_tunings(known: Known, shapes: Mapping[str, str]) -> dict[str, list[tuple[float, str]]]:
    """Return for each shape the median times of its tunings that are right, the best first."""
    found: dict[str, list[tuple[float, str]]] = {}
    for name, rows in known.of_part("tunings").items():
        timed, judged = rows.get("time", {}), rows.get("numbers", {})
        if "warm" in timed and judged.get("right") is not False:
            found.setdefault(shapes.get(name, name), []).append((timed["warm"]["median_us"], name))
    return {shape: sorted(times) for shape, times in found.items()}


def _tunings(known: Known, shapes: Mapping[str, str]) -> list[str]:
    things = known.of_part("tunings")
    if not things:
        return []
    right = sum(bool(rows.get("numbers", {}).get("right")) for rows in things.values())
    lines = ["", f"tunings{_counts(known, 'tunings')}", f"  {right} of {len(things)} right"]
    for shape, times in best_tunings(known, shapes).items():
        (best, name), (worst, _) = times[0], times[-1]
        lines.append(f"  {best:9.1f} us, at the worst {worst:9.1f}, of {len(times):2}  {shape}")
        lines.append(f"  {'':12}{name}")
    return lines


def _missing(known: Known) -> Iterator[str]:
    """Yield each reason why something was not asked, with how often that was so."""
    reasons = Counter(
        f"{unit.partition('/')[0]}: {row['missing']}"
        for unit, things in known.things.items()
        for row in things.values()
        if "missing" in row
    )
    reasons.update(
        f"{unit.partition('/')[0]}: {row['reason']}"
        for unit, row in known.ends.items()
        if row["status"] == "skipped"
    )
    for unit, rows in known.of_part("times").items():
        if "missing" in rows.get("clocks", {}).get("clocks", {}):
            reasons[f"times: {rows['clocks']['clocks']['missing']}"] += bool(unit)
    for reason, count in reasons.items():
        yield f"  {count:4} × {reason}"


# ---- the record


def record(known: Known, shapes: Mapping[str, str]) -> dict[str, Any]:
    """Return what bench/results/ keeps."""
    begun = [row["at"] for row in known.machines]
    ends = Counter(f"{unit.partition('/')[0]} {row['status']}" for unit, row in known.ends.items())
    return {
        "schema": 1,
        "date": time.strftime("%Y-%m-%d", time.gmtime(begun[0])) if begun else None,
        "machine": _kept(known.machines[-1]) if known.machines else None,
        "packed": known.packed,
        "runs": known.runs,
        "ends": dict(sorted(ends.items())),
        "problems": list(problems(known)),
        "best_tunings": {
            shape: {"median_us": times[0][0], "tuning": times[0][1], "of": len(times)}
            for shape, times in best_tunings(known, shapes).items()
        },
        "units": {
            unit: {what: _kept(row) for what, row in things.items()}
            for unit, things in known.things.items()
        },
    }


def _kept(value: Any) -> Any:
    """Return a value without what names folders, or says when."""
    if isinstance(value, Mapping):
        return {name: _kept(item) for name, item in value.items() if name not in _LEFT_OUT}
    return [_kept(item) for item in value] if isinstance(value, list) else value


def read_shapes(folder: Path) -> dict[str, str]:
    """Return what the tunings of a packed folder compute, by their ids."""
    from part_tunings import shape_of

    file = folder / "tunings" / "variants.json"
    rows = json.loads(file.read_text()) if file.exists() else []
    return {row["id"]: shape_of(row["args"], row["static"], row["name"]) for row in rows}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="a results.jsonl")
    parser.add_argument("--folder", type=Path, default=Path(__file__).resolve().parent)
    parser.add_argument("--json", type=Path, help="where the record goes")
    parser.add_argument("--check", action="store_true", help="exit 1 where something is wrong")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Print the table, write the record."""
    options = parse(arguments)
    if not options.results.exists():
        print(f"{options.results} is not there", file=sys.stderr)
        return 2
    known, shapes = Known.read(options.results), read_shapes(options.folder)
    print("\n".join(table(known, shapes)))
    if options.json:
        text = json.dumps(record(known, shapes), indent=1, sort_keys=True)
        options.json.write_text(text + "\n")
    return 1 if options.check and not is_good(known) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
