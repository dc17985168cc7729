"""Text output of a check: one line per variant and level, followed by its findings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, get_args

from pallasc.checks.findings import Status
from pallasc.checks.levels import LEVELS
from pallasc.checks.report import Events, VariantCheck
from pallasc.cli.output.build_text import warning_lines
from pallasc.cli.output.outcome import INTERRUPTED, UNBUILT, built, checked, unbuilt
from pallasc.cli.output.progress import Heartbeat, Progress, running_text
from pallasc.cli.output.text import count, echo, error_line, error_text
from pallasc.specs.spelling import one_line

if TYPE_CHECKING:
    from pallasc.checks.findings import Finding, LevelResult
    from pallasc.checks.report import Report
    from pallasc.cli.output.outcome import Outcome, Run
    from pallasc.errors import Location, PallascError
    from pallasc.specs.spec import Variant


STATUSES: tuple[Status, ...] = get_args(Status)
_TOTALS: Mapping[str, str] = {"found": "found mistakes"}
"""Text for a status in totals, where it differs from the status itself."""
_WIDTH = max(map(len, STATUSES))
_LEVEL_WIDTH = max(map(len, LEVELS))
_FROM_STORE = "from the store"
_MOST_ERROR_LINES = 20
_MOST_LEFT = 20
"""Maximum number of unchecked variants that an interrupted check lists."""


def outcome_lines(outcome: Outcome) -> Iterator[str]:
    """Yield the lines of a variant at one level, or of a variant that failed to compile."""
    status = outcome.status or "not checked"
    if outcome.suite == UNBUILT and outcome.error is not None:
        why = error_line(outcome.error).rstrip(".")
        yield f"{_head(status, 'all', outcome)}: it did not compile: {why}"
        for line in (outcome.error.hint or "").splitlines():
            yield f"  {one_line(line.strip())}"
        return
    facts = [_FROM_STORE] if outcome.from_store else [f"{outcome.seconds:.1f} s"]
    facts += map(one_line, outcome.notes)
    end = f"  {', '.join(facts)}"
    if outcome.status == "not checked":
        end = f": {one_line(outcome.message)}"
    yield f"{_head(status, outcome.suite, outcome)}{end}"
    for finding in outcome.findings:
        yield from finding_lines(finding, outcome.place)


def _head(status: str, level: str, outcome: Outcome) -> str:
    """Return the start of a line: aligned status and level, and the variant."""
    return f"{status:<{_WIDTH}}  {level:<{_LEVEL_WIDTH}}  {one_line(outcome.id)}"


def interrupted_lines(run: Run) -> Iterator[str]:
    """Yield one line for each level of a variant that lacks a result because of an interrupt."""
    left = [outcome for outcome in run.outcomes if outcome.message == INTERRUPTED]
    for outcome in left[:_MOST_LEFT]:
        yield f"{_head('not checked', outcome.suite, outcome)}: interrupted"
    if len(left) > _MOST_LEFT:
        yield f"{'not checked':<{_WIDTH}}  and {len(left) - _MOST_LEFT:,} more"


def finding_lines(finding: Finding, place: Location | None = None) -> Iterator[str]:
    """Yield the lines of a finding: place and message, places involved, hint.

    Args:
        finding: the finding.
        place: location to show if the finding has none.
    """
    message = one_line(finding.message)
    if finding.instruction:
        message = f"{message} (at {one_line(finding.instruction)})"
    yield f"  {_placed(finding.location or place)}{finding.severity}: {message} [{finding.rule}]"
    for text in place_texts(finding):
        yield f"    {text}"
    if finding.hint:
        yield f"    {one_line(finding.hint)}"


def place_texts(finding: Finding) -> Iterator[str]:
    """Yield each place that a finding involves, with its source line, else its PTX lines.

    Places with the same text are merged, and their PTX lines listed. The first waiting thread is
    omitted if it is at the finding itself, because the message already describes it.
    """
    lines: dict[str, list[int]] = {}
    first = next((place for place in finding.places if place.waits), None)
    for place in finding.places:
        is_here = (place.location, place.ptx_line) == (finding.location, finding.ptx_line)
        if place is first and is_here:
            continue
        text = f"{_placed(place.location)}{one_line(place.text)}"
        of_ptx = lines.setdefault(text, [])
        if place.location is None and place.ptx_line and place.ptx_line not in of_ptx:
            of_ptx.append(place.ptx_line)
    for text, of_ptx in lines.items():
        numbers = ", ".join(map(str, of_ptx))
        at = f", PTX {'line' if len(of_ptx) == 1 else 'lines'} {numbers}" if of_ptx else ""
        yield f"{text}{at}"


def error_lines(report: Report) -> Iterator[str]:
    """Yield each error that stopped checks, with location and hint, once for all results."""
    stopped: dict[str, list[str]] = {}
    for check in report.checks:
        for level, error in check.errors.items():
            if error.hint or error.location:
                stopped.setdefault(error_text(error), []).append(f"{check.id}: {level}")
    for text, (first, *others) in stopped.items():
        more = f" and {count(len(others), 'other result')}" if others else ""
        lines = text.splitlines()
        yield "\n".join([f"{first}{more}: {lines[0]}", *lines[1:_MOST_ERROR_LINES]])
        if len(lines) > _MOST_ERROR_LINES:
            yield f"  … {count(len(lines) - _MOST_ERROR_LINES, 'more line')} (--json has all)"


def rule_lines(report: Report, levels: tuple[str, ...]) -> Iterator[str]:
    """Yield the meaning of each rule that has findings, and how to fix them."""
    from pallasc.checks.levels import rules_of

    rules = rules_of(levels)
    names = {f.rule for check in report.checks for r in check.results for f in r.findings}
    for name in sorted(names):
        if name in rules:
            yield f"{name}: {rules[name].summary} {rules[name].help}"


def print_report(
    run: Run, report: Report, levels: tuple[str, ...], *, only_totals: bool, quiet: bool
) -> None:
    """Print the end of a check's output: unfinished variants, rules, errors, and totals.

    Args:
        run: record of the check.
        report: report of the check.
        levels: requested levels.
        only_totals: omit results, because stdout contains another report.
        quiet: print only warnings about the store, unless the check fails.
    """
    for note in report.notes:
        echo(f"warning: {note}", err=True)
    shows_totals = not quiet or report.exit_code != 0
    if shows_totals and not only_totals:
        for text in (*interrupted_lines(run), *rule_lines(report, levels)):
            echo(text)
    for text in error_lines(report):
        echo(text, err=True)
    if shows_totals:
        builds = [built(check.built) for check in report.checks if check.built is not None]
        for line in warning_lines(builds, only_wrong=True):
            echo(line, err=True)
        echo(summary_line(run, report), err=True)
    if (unchecked := report.unchecked) is not None:
        echo(f"error: {error_text(unchecked)}", err=True)


def summary_line(run: Run, report: Report) -> str:
    """Return the totals as one line: `3 variants in 4.2 s: 2 levels passed; 2 from the store`."""
    outcomes = run.outcomes
    severities = [finding.severity for outcome in outcomes for finding in outcome.findings]
    notes = severities.count("note")
    failed = sum(outcome.suite == UNBUILT for outcome in outcomes)
    stored = sum(outcome.from_store for outcome in outcomes)
    totals = {_TOTALS.get(status, status): n for status, n in run.totals(STATUSES).items() if n}
    parts = [f"{count(number, 'level')} {words}" for words, number in totals.items()]
    parts += [f"{count(failed, 'variant')} not built"] if failed else []
    parts += [f"interrupted, {count(report.left, 'variant')} left"] if report.interrupted else []
    ends = [count(len(severities) - notes, "finding")] if len(severities) > notes else []
    ends += [count(notes, "note")] if notes else []
    unseen = sum(
        bool(check.results) and all(r.status == "not checked" for r in check.results)
        for check in report.checks
    )
    ends += [f"no level could check {count(unseen, 'variant')}"] if unseen else []
    ends += [f"{stored:,} {_FROM_STORE}"] if stored else []
    start = f"{count(len(report.checks), 'variant')} in {report.seconds:.1f} s: "
    end = f"; {', '.join(ends)}" if ends else ""
    return f"{start}{', '.join(parts) or 'nothing to do'}{end}"


def _placed(location: Location | None) -> str:
    if location is None:
        return ""
    file = os.path.relpath(location.file) if os.path.isabs(location.file) else location.file
    # A chain of ".." is harder to read and to open than the full path.
    shown = location.file if file.startswith("..") else file
    numbers = [str(number) for number in (location.line, location.column) if number]
    return f"{one_line(':'.join([shown, *numbers]))}: "


_FIRST_SILENCE_S = 5.0
_HELD_LINES = 512
"""Number of stored results to print at a time; there may be thousands."""


def events(progress: Progress, *, silent: bool) -> Events:
    """Return the event handlers of a check.

    Args:
        progress: where running checks are reported.
        silent: print no results, because they go to another output. If `progress` is quiet, only
            results that make the command fail are printed.
    """
    heartbeat = Heartbeat(_FIRST_SILENCE_S)
    held: list[str] = []

    def write() -> None:
        if held:
            echo("\n".join(held))
            held.clear()

    def on_result(check: VariantCheck, result: LevelResult, from_store: bool) -> None:
        if silent or (progress.quiet and not result.fails):
            return
        outcome = checked(check.id, check.place, result, from_store=from_store)
        held.extend(outcome_lines(outcome))
        # New results are printed immediately, stored ones in batches: there may be thousands.
        if not from_store or len(held) >= _HELD_LINES:
            heartbeat.put_off()
            write()

    def on_unbuilt(variant: Variant, error: PallascError) -> None:
        if not silent and not progress.quiet:
            held.extend(outcome_lines(unbuilt(variant.id, variant.location, error)))

    def on_tick(running: Sequence[tuple[str, float]], done: int, total: int) -> None:
        write()
        if running and heartbeat.is_due():
            named = running_text([(one_line(name), seconds) for name, seconds in running])
            progress.mention(f"[{done}/{total}] checking {len(running)}: {named}")

    return Events(on_result, on_unbuilt, on_tick, write)
