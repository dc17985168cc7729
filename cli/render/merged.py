"""The reports of shards as one: JSON and JUnit XML, as one machine would have written them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from pallasc.cli.render.junit import clean, document, ended, seconds_text
from pallasc.cli.render.report_rows import error_row
from pallasc.cli.render.summary import totals_words
from pallasc.cli.terminal.output import count
from pallasc.cli.terminal.screen import STATUS_COLOURS
from pallasc.cli.terminal.times import duration
from pallasc.compiler.builds.report import NOT_COMPILED
from pallasc.errors import CorruptError, PallascError
from pallasc.specs.plain_text import one_line
from pallasc.specs.untrusted_json import as_flag, as_list, as_object, as_text, as_whole, fault

if TYPE_CHECKING:
    from pallasc.compiler.shards.join import Joined
    from pallasc.compiler.shards.part import Part

_TOP = 5
_COUNTS = ("tests", "failures", "errors", "skipped")


class MergedReport:
    """The reports of all shards.

    Args:
        joined: the parts.

    Raises:
        CorruptError: a report is not one of pallasc's.
    """

    def __init__(self, joined: Joined) -> None:
        self._joined = joined
        self._rows: dict[str, Mapping[str, object]] = {}
        self._shard_of: dict[str, str] = {}
        self._errors: list[object] = []
        self._notes: list[str] = list(joined.notes)
        self._shards: list[dict[str, object]] = []
        self.interrupted = False
        for part in joined.parts:
            try:
                self._add(part)
            except (KeyError, TypeError, ValueError) as error:
                raise CorruptError(
                    f"{part.file}: its report is malformed: {fault(error)}."
                ) from None

    def _add(self, part: Part) -> None:
        report, shard = part.head.report, part.head.shard
        rows = [as_object(row) for row in as_list(report["variants"])]
        for row in rows:
            name, status = as_text(row["id"]), as_text(row["status"])
            _measures(row)
            if status not in STATUS_COLOURS:
                raise ValueError(f"{status[:40]!r} is not a status")
            self._rows[name] = row
            self._shard_of[name] = str(shard)
        for error in map(as_object, as_list(report["errors"])):
            # Each shard reads all specs, and tells the same of one that cannot be executed.
            if error not in self._errors:
                self._errors.append(error)
        self._notes += map(as_text, as_list(report["notes"]))
        self.interrupted |= as_flag(report["interrupted"])
        own = as_object(report["shard"])
        self._shards.append(
            {
                "number": shard.number,
                "of": shard.of,
                "file": str(part.file),
                "variants": len(rows),
                "seconds": _number(report["seconds"]),
                "expected_s": _number(own["expected_s"]),
                "remote": report.get("remote"),
            }
        )

    @property
    def exit_code(self) -> int:
        """130 if a shard was interrupted, that of the failures, or 3 if something is missing."""
        if self.interrupted:
            return 130
        errors = [row["error"] for row in self._rows.values() if row.get("error")] + self._errors
        codes = [as_object(error).get("exit_code") for error in errors]
        whole = [code for code in codes if type(code) is int and 0 < code < 256]
        if whole:
            return 1 if 1 in whole else whole[0]
        missing = self._joined.missing
        return missing.exit_code if missing is not None else 0

    @property
    def notes(self) -> list[str]:
        """Warnings of the merge and of all shards, each once."""
        return list(dict.fromkeys(self._notes))

    def to_json(self, error: PallascError | None, lock: str | None) -> dict[str, object]:
        """Return what `--json` prints, without the schema version.

        Args:
            error: what is missing, or None.
            lock: the lock file that was written, or None.
        """
        rows = [self._rows[name] for name in self._joined.order if name in self._rows]
        totals = dict.fromkeys(STATUS_COLOURS, 0)
        for row in rows:
            totals[as_text(row["status"])] += 1
        finished = len(rows) - totals["skipped"]
        saved = [row for row in rows if row["status"] in NOT_COMPILED]
        made = [row for row in rows if row["status"] == "compiled"]
        return {
            "seconds": max((_number(shard["seconds"]) for shard in self._shards), default=0.0),
            "interrupted": self.interrupted,
            "notes": self.notes,
            "warnings": sum(_measures(row)["warnings"] for row in rows),
            "totals": totals,
            "hit_rate": round(totals["hit"] / finished, 4) if finished else None,
            "saved_s": round(sum(_measures(row)["saved_s"] for row in saved), 3),
            "slowest": _top(made, "seconds")[:_TOP],
            "largest": _top(made, "cubin_bytes")[:_TOP],
            "spilling": _top(rows, "spill_bytes"),
            "variants": rows,
            "errors": self._errors,
            "error": error_row(error) if error else None,
            "remote": None,
            "shard": None,
            "shards": self._shards,
            "missing": list(self._joined.unbuilt),
            "lock": lock,
        }

    def lines(self) -> list[str]:
        """Return what is said of failures, and the totals as the last line."""
        lines = []
        counts = dict.fromkeys(STATUS_COLOURS, 0)
        for name in self._joined.order:
            row = self._rows.get(name)
            if row is None:
                continue
            counts[as_text(row["status"])] += 1
            if row["status"] == "failed":
                message = str(as_object(row.get("error") or {}).get("message", ""))
                first = one_line(message.strip().partition("\n")[0])
                lines.append(f"failed  {one_line(name)} (shard {self._shard_of[name]}): {first}")
        parts = totals_words(counts).values()
        times = [_number(shard["seconds"]) for shard in self._shards]
        spread = f"{duration(min(times))} to {duration(max(times))} a shard" if times else ""
        total = f"{count(len(self._shards), 'shard')} with {count(len(self._rows), 'variant')}"
        return [*lines, f"{total}: {', '.join(parts) or 'nothing to do'}; {spread}"]

    def junit(self, error: PallascError | None) -> bytes:
        """Return the suites of all shards as one file of JUnit XML.

        Raises:
            CorruptError: that of a shard is not one of pallasc's.
        """
        top = ElementTree.Element("testsuites", name="pallasc build")
        suites = [suite for part in self._joined.parts for suite in _suites(part)]
        if error is not None:
            suites.append(ended(error, "merge"))
        for name in _COUNTS:
            top.set(name, str(sum(int(suite.get(name, "0")) for suite in suites)))
        top.set("time", seconds_text(max((_number(s["seconds"]) for s in self._shards), default=0)))
        top.extend(suites)
        return document(top)


def _suites(part: Part) -> Sequence[ElementTree.Element]:
    """Return the suites of a shard.

    Raises:
        CorruptError: they are not as `junit_xml` writes them.
    """
    text = part.head.junit
    try:
        if "<!" in text:  # a document type, which may define entities; pallasc writes none
            raise ValueError("it has a document type")
        suites = list(ElementTree.fromstring(text))
        for suite in suites:
            if suite.tag != "testsuite" or not all(suite.get(n, "").isdecimal() for n in _COUNTS):
                raise ValueError(f"{clean(suite.tag)[:40]!r} is not a suite of tests")
            if any(len(case) > 10 or len(list(case.iter())) > 200 for case in suite):
                raise ValueError("a case of it has too much in it")
        return suites
    except (ElementTree.ParseError, ValueError, RecursionError) as error:
        raise CorruptError(f"{part.file}: its JUnit XML is malformed: {error}.") from None


def _measures(row: Mapping[str, object]) -> dict[str, float]:
    """Return what a row is ranked by; raises TypeError where it is not a row."""
    kernels = [as_object(kernel) for kernel in as_list(row["kernels"])]
    warnings = [as_object(warning) for warning in as_list(row["warnings"])]
    return {
        "seconds": _number(row["seconds"]),
        "saved_s": _number(row["saved_s"]),
        "cubin_bytes": _number(row["cubin_bytes"] or 0),
        "spill_bytes": max((_number(k.get("spill_bytes") or 0) for k in kernels), default=0),
        "warnings": sum(as_whole(warning["count"]) for warning in warnings),
    }


def _top(rows: Sequence[Mapping[str, object]], measure: str) -> list[str]:
    """Return the ids of the rows with a measure other than zero, the greatest first."""
    ranked = sorted(rows, key=lambda row: -_measures(row)[measure])
    return [as_text(row["id"]) for row in ranked if _measures(row)[measure]]


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"expected a number, got {repr(value)[:80]}")
    return value
