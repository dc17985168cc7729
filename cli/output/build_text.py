"""Text output of a build: one line per variant, remarks, explanations of misses, and totals.

Remarks are warnings, variants without a Mosaic kernel, and kernels that XLA added. They are the
same for hits as for newly compiled variants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pallasc.cli.output.outcome import build_run, built, grouped, has_remarks, xla_kernels
from pallasc.cli.output.text import (
    STATUS_COLOURS,
    count,
    duration,
    echo,
    error_line,
    error_text,
    first_of,
)
from pallasc.specs.spelling import listed, one_line, printable

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.cli.output.outcome import Outcome, Run
    from pallasc.cli.output.text import Screen
    from pallasc.compiler.builds.report import Report

_OUTPUT_LINES = 20
_NAMED = 10
_MOST_LISTED = 10
_FEW_RESULTS = 20
_WRONG = "CompiledWrongly"


def counter(done: int, total: int) -> str:
    """Return `[ 3/24]`, equally wide for all variants of a build."""
    return f"[{done:>{len(str(total))}}/{total}]"


def result_line(outcome: Outcome) -> str:
    """Return `compiled  add@h100-sxm  1.24 s, 9,512 bytes, 24 registers`, or only the id.

    The line of a missing variant ends with the reason.
    """
    facts = ", ".join(_facts(outcome))
    return f"{outcome.status:<8}  {one_line(outcome.id)}{facts and f'  {facts}'}"


def _facts(outcome: Outcome) -> list[str]:
    result, artifact = outcome.result, outcome.artifact
    if outcome.status == "missing" and result is not None and result.reason:
        return [one_line(result.reason)]
    if artifact is None or outcome.problem:
        return []
    facts = []
    if outcome.status == "compiled":
        facts = [f"{outcome.seconds:.2f} s"]
        if artifact.kernels:
            facts.append(count(artifact.cubin_bytes, "byte"))
        registers = max((kernel.registers for kernel in artifact.kernels), default=0)
        facts += [f"{registers} registers"] if registers else []
    if spills := artifact.spill_bytes:
        facts.append(f"spills {count(spills, 'byte')}")
    return [*facts, *outcome.notes]


def lines_below(outcome: Outcome) -> list[str]:
    """Return the lines below a result: its failure, and with `--explain` why it was no hit.

    The main reason is omitted if the result line or the error already contains it.
    """
    lines, result = failure_lines(outcome), outcome.result
    if result is None or not result.explanation:
        return lines
    is_said = result.status == "missing" or (result.error and result.error.reason == result.reason)
    unsaid = result.explanation[1:] if is_said else result.explanation
    return [*lines, *(f"      {one_line(sentence)}" for sentence in unsaid)]


def failure_lines(outcome: Outcome) -> list[str]:
    """Return a variant's error and the end of its output, indented; nothing if it did not fail."""
    if outcome.error is None:
        return []
    lines = printable(error_text(outcome.error)).splitlines()
    output = output_tail(outcome)
    if output:
        lines += ["output:", *output]
    return [f"    {line}".rstrip() for line in lines]


def output_tail(outcome: Outcome) -> list[str]:
    """Return the last output lines of a failed variant, unless its error shows the source line."""
    result, error = outcome.result, outcome.error
    if result is None or error is None:
        return []
    if result.compiling and error.location not in (None, outcome.place):
        return []
    return printable(result.output).strip().splitlines()[-_OUTPUT_LINES:]


def remarks(outcomes: Sequence[Outcome], *, added: bool = True) -> list[str]:
    """Return a build's remarks as lines.

    Args:
        outcomes: outcomes of the build.
        added: list the kernels that XLA added around Pallas kernels.
    """
    return [
        *_without_kernel(outcomes),
        *(_added(outcomes) if added else []),
        *warning_lines(outcomes),
    ]


def _without_kernel(outcomes: Sequence[Outcome]) -> list[str]:
    matching = [outcome for outcome in outcomes if outcome.holds_no_kernel]
    if not matching:
        return []
    verb, whose = ("holds", "its") if len(matching) == 1 else ("hold", "their")
    return [
        f"warning: {count(len(matching), 'variant')} {verb} no Pallas Mosaic GPU kernel, XLA wrote "
        f"{whose} code: {names(matching)}"
    ]


def _added(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the kernels that XLA added, one line per Pallas kernel."""
    added = [
        (outcome.suite, xla_kernels(outcome.artifact))
        for outcome in outcomes
        if outcome.artifact is not None and not outcome.holds_no_kernel
    ]
    groups = grouped(filter(lambda pair: pair[1], added), lambda pair: pair)
    lines = [
        f"{one_line(pairs[0][0])} ({count(len(pairs), 'variant')}): "
        f"{', '.join(map(one_line, pairs[0][1]))}"
        for pairs in groups
    ]
    return _section("kernels that XLA added to the Pallas kernels", lines)


def warning_lines(outcomes: Sequence[Outcome], *, only_wrong: bool = False) -> list[str]:
    """Return the warnings with the affected variants.

    Warnings about constructs that JAX miscompiles come first; `only_wrong` omits the others.
    """
    warnings = [
        (warning, outcome)
        for outcome in outcomes
        if outcome.result is not None
        for warning in outcome.result.diagnostics
        if warning.kind == _WRONG or not only_wrong
    ]
    groups = grouped(warnings, lambda pair: (pair[0].kind == _WRONG, str(pair[0])))
    groups.sort(key=lambda pairs: pairs[0][0].kind != _WRONG)
    lines = []
    for pairs in groups[:_MOST_LISTED]:
        lines += [f"  {line}".rstrip() for line in printable(str(pairs[0][0])).splitlines()]
        matching = [outcome for _, outcome in pairs]
        lines.append(f"    {count(len(matching), 'variant')}: {names(matching)}")
    if len(groups) > _MOST_LISTED:
        lines.append(f"  and {count(len(groups) - _MOST_LISTED, 'more warning')} (--json has all)")
    return ["warnings:", *lines] if lines else []


def names(outcomes: Sequence[Outcome]) -> str:
    """Return the first few ids, and the number of remaining ones."""
    return first_of([one_line(outcome.id) for outcome in outcomes], _NAMED)


def summary(report: Report, screen: Screen | None = None, *, quiet: bool = False) -> str:
    """Return the end of a build's output: sections that need attention, remarks, and totals.

    The last line is `3 variants in 1.2 s: 1 hit (33 %), 2 compiled, 14 s saved`.

    Args:
        report: report of the build.
        screen: provides colors.
        quiet: include only failures and totals; return "" if nothing failed.
    """
    if quiet and not report.exit_code:
        return ""
    lines: list[str] = []
    if len(report.hits) < len(report.results):
        lines += unfinished(build_run(report))
    if not quiet:
        lines += remarks([built(result) for result in report.results if has_remarks(result)])
        if report.remote is not None and report.remote.requests:
            lines.append(str(report.remote))
    return "\n".join([*map(printable, lines), _totals_line(report, screen)])


def unfinished(run: Run) -> Iterator[str]:
    """Yield the failures of a build with many results, and the unfinished variants."""
    # After many results, failures may have scrolled out of sight, so they are listed again.
    if len(run.outcomes) > _FEW_RESULTS:
        failed = [outcome for outcome in run.outcomes if outcome.problem == "failure"]
        yield from _section("failed", [f"{one_line(o.id)}{_why(o)}" for o in failed])
    left = [one_line(outcome.id) for outcome in run.outcomes if outcome.status == "skipped"]
    why = "interrupted" if run.report.interrupted else "stopped after a failure"
    of = f"{len(left):,} of {len(run.outcomes):,}"
    yield from _section(f"{why}: {of} left; finished variants are kept", left)


def _section(title: str, lines: Sequence[str]) -> list[str]:
    """Return a title and the first few lines below it; nothing without lines."""
    return [f"{title}:", *(f"  {line}" for line in listed(lines, _MOST_LISTED))] if lines else []


def _why(outcome: Outcome) -> str:
    """Return `  kernels.py:5: ValueError: no kernel for (2048,)`."""
    place = outcome.error.location if outcome.error else None
    return f"  {f'{place}: ' if place else ''}{error_line(outcome.error)}"


def print_end(report: Report, store: Store, screen: Screen, *, quiet: bool) -> None:
    """Print a build's notes and summary."""
    print_notes(report, store)
    if ending := summary(report, screen, quiet=quiet):
        screen.write(f"{ending}\n")


def print_remarks(report: Report, store: Store, screen: Screen, *, quiet: bool) -> None:
    """Print the notes of a build, and its remarks, or if it failed, its summary."""
    print_notes(report, store)
    if report.exit_code:
        screen.write(f"{summary(report, screen, quiet=quiet)}\n")
    elif not quiet:
        outcomes = [built(result) for result in report.results if has_remarks(result)]
        for line in remarks(outcomes, added=False):
            echo(line, err=True)


def print_notes(report: Report, store: Store) -> None:
    """Print the notes of a build, except warnings that the store has already printed."""
    for note in report.notes:
        if note not in store.warnings:
            echo(f"warning: {note}", err=True)


def _totals_line(report: Report, screen: Screen | None) -> str:
    took = f"{report.seconds:.1f} s" if report.seconds < 120 else duration(report.seconds)
    counts = dict.fromkeys(STATUS_COLOURS, 0)
    for result in report.results:
        counts[result.status] += 1
    parts = _totals_words(counts)
    if screen:
        parts = {
            status: screen.paint(text, STATUS_COLOURS[status]) for status, text in parts.items()
        }
    saved_s = sum(result.saved_s for result in report.results if result.status == "hit")
    end = f", {duration(saved_s)} saved" if saved_s >= 0.05 else ""
    words = ", ".join(parts.values()) or "nothing to do"
    return f"{count(len(report.results), 'variant')} in {took}: {words}{end}"


def _totals_words(counts: Mapping[str, int]) -> dict[str, str]:
    """Return the nonzero counts as text by status; hits with their share of finished variants."""
    parts = {status: f"{number:,} {status}" for status, number in counts.items() if number}
    if counts["hit"]:
        share = counts["hit"] / (sum(counts.values()) - counts["skipped"])
        parts["hit"] = f"{count(counts['hit'], 'hit')} ({int(100 * share)} %)"
    return parts
