"""Text output of a build: one line per variant, remarks, and totals.

Remarks are warnings, variants without a Mosaic kernel, and kernels that XLA added. They are the
same for hits as for newly compiled variants.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pallasc.cli.output.exits import error_text
from pallasc.cli.output.text import (
    STATUS_COLOURS,
    count,
    cut,
    duration,
    echo,
    first_of,
    shorten,
    width,
)
from pallasc.compiler.builds.report import NOT_COMPILED
from pallasc.specs.spelling import one_line, printable

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.cli.output.text import Screen
    from pallasc.compiler.builds.report import Report, VariantResult
    from pallasc.specs.artifacts.artifact import Artifact

_OUTPUT_LINES = 20
_SHORTEST_ID = 24
_NAMED = 10
_MOST_LISTED = 10
_WRONG = "CompiledWrongly"
_PRODUCT = re.compile(r"(?:^|_)(?:gemm|dot)(?:_|\d|\.|$)")


def counter(done: int, total: int) -> str:
    """Return `[ 3/24]`, equally wide for all variants of a build."""
    return f"[{done:>{len(str(total))}}/{total}]"


def result_line(result: VariantResult, columns: int | None = None) -> str:
    """Return `compiled  add@h100-sxm  1.24 s, 9,512 bytes, 24 registers`, or only the id.

    The line of a missing variant ends with the reason.

    Args:
        result: result of a variant.
        columns: available width. If the line is too long, size and registers are dropped first,
            then the middle of the id. A result with an explanation is never shortened.
    """
    head = f"{result.status:<8}  "
    name, words = one_line(result.variant.id), _facts(result)
    if columns is None or result.explanation is not None:
        return f"{head}{name}{words}"
    room = columns - len(head)
    if width(name) + len(words) > room:
        words = _facts(result, brief=True)
    return cut(f"{head}{shorten(name, max(_SHORTEST_ID, room - len(words)))}{words}", columns)


def _facts(result: VariantResult, *, brief: bool = False) -> str:
    """Return the text after the id. Size is the total; registers are the kernels' maximum."""
    facts, artifact = [], result.artifact
    if result.status == "missing":
        facts = [one_line(result.reason)] if result.reason and not brief else []
    elif result.status in ("compiled", *NOT_COMPILED) and artifact is not None:
        if result.status == "compiled":
            facts.append(f"{result.seconds:.2f} s")
            if not brief:
                facts.append(count(artifact.cubin_bytes, "byte"))
                registers = [kernel.registers for kernel in artifact.kernels]
                facts += [f"{max(registers)} registers"] if registers else []
            if artifact.spill_bytes:
                facts.append(f"spills {count(artifact.spill_bytes, 'byte')}")
        facts += remark_facts(result)
    return f"  {', '.join(facts)}" if facts else ""


def lines_below(result: VariantResult) -> list[str]:
    """Return the lines below a result: why it failed, and with `--explain` why it missed.

    The reason of the miss is omitted if the result line or the error already contains it.
    """
    lines, explanation = failure_lines(result), result.explanation
    if explanation is None:
        return lines
    from pallasc.cli.output.highlights import difference_lines

    is_said = result.status == "missing" or (result.error and result.error.reason == result.reason)
    if not is_said:
        lines.append(f"      {one_line(explanation.reason)}")
    return [*lines, *map(printable, difference_lines(explanation))]


def failure_lines(result: VariantResult) -> list[str]:
    """Return a variant's error and the end of its output, indented; nothing if it did not fail."""
    if result.error is None:
        return []
    lines = printable(error_text(result.error)).splitlines()
    output = output_tail(result)
    if output:
        lines += ["output:", *output]
    return [f"    {line}".rstrip() for line in lines]


def output_tail(result: VariantResult) -> list[str]:
    """Return the last output lines of a failed variant, unless its error shows the source line."""
    nowhere = (None, result.variant.location)
    is_shown = result.compiling and result.error and result.error.location not in nowhere
    if result.error is None or is_shown:
        return []
    return printable(result.output).strip().splitlines()[-_OUTPUT_LINES:]


def remarks(report: Report, *, added: bool = True) -> list[str]:
    """Return a build's remarks as lines.

    Args:
        report: report of the build.
        added: list the kernels that XLA added around Pallas kernels.
    """
    results = report.results
    xla = _added(results) if added else []
    return [*_without_kernel(results), *xla, *_shown(results)]


def remark_facts(result: VariantResult) -> list[str]:
    """Return the remarks about a variant, each in a few words."""
    lacks = ["no Mosaic kernel"] if holds_no_kernel(result) else []
    number = warning_count([result])
    return [*lacks, count(number, "warning")] if number else lacks


def warning_count(results: Iterable[VariantResult]) -> int:
    """Return the number of warnings, including repeated ones."""
    return sum(warning.count for result in results for warning in result.diagnostics)


def cubin_bytes(result: VariantResult) -> int:
    """Return the total size of a variant's cubins, 0 without an artifact."""
    return result.artifact.cubin_bytes if result.artifact else 0


def spill_bytes(result: VariantResult) -> int:
    """Return a variant's maximum spill size per thread in bytes, 0 without an artifact."""
    return result.artifact.spill_bytes if result.artifact else 0


def holds_no_kernel(result: VariantResult) -> bool:
    """Return True if a variant was compiled but contains no Mosaic GPU kernel."""
    artifact = result.artifact
    return artifact is not None and all(k.origin != "mosaic" for k in artifact.kernels)


def xla_kernels(artifact: Artifact | None) -> list[str]:
    """Return the names of the kernels that XLA generated, in order of first launch."""
    if artifact is None:
        return []
    return list(dict.fromkeys(k.name for k in artifact.kernels if k.origin != "mosaic"))


def _without_kernel(results: Sequence[VariantResult]) -> list[str]:
    matching = [result for result in results if holds_no_kernel(result)]
    if not matching:
        return []
    verb, whose = ("holds", "its") if len(matching) == 1 else ("hold", "their")
    return [
        f"warning: {count(len(matching), 'variant')} {verb} no Pallas Mosaic GPU kernel, XLA wrote "
        f"{whose} code: {names(matching)}"
    ]


def _added(results: Sequence[VariantResult]) -> list[str]:
    """Return the kernels that XLA added, one line per Pallas kernel."""
    groups: dict[tuple[str, tuple[str, ...]], int] = {}
    for result in results:
        names = () if holds_no_kernel(result) else tuple(xla_kernels(result.artifact))
        if names:
            key = (result.variant.name, names)
            groups[key] = groups.get(key, 0) + 1
    if not groups:
        return []
    shown = list(groups.items())[:_MOST_LISTED]
    lines = [
        f"  {one_line(name)} ({count(number, 'variant')}): {', '.join(map(_described, names))}"
        for (name, names), number in shown
    ]
    more = [f"  and {len(groups) - len(shown):,} more"] if len(groups) > len(shown) else []
    return ["kernels that XLA added to the Pallas kernels:", *lines, *more]


def _described(name: str) -> str:
    """Return a kernel's name, marked as a matrix product if XLA named it after one."""
    text = one_line(name)
    return f"{text} (a matrix product)" if _PRODUCT.search(name) else text


def compiled_wrongly(results: Sequence[VariantResult]) -> list[str]:
    """Return the warnings about constructs that JAX miscompiles."""
    return _shown(results, _WRONG)


def _shown(results: Sequence[VariantResult], kind: str | None = None) -> list[str]:
    """Return the warnings, optionally of one kind, with the affected variants.

    Warnings about miscompiled constructs come first.
    """
    groups: dict[tuple[bool, str], list[VariantResult]] = {}
    for result in results:
        for warning in result.diagnostics:
            if kind not in (None, warning.kind):
                continue
            groups.setdefault((warning.kind != _WRONG, str(warning)), []).append(result)
    lines = []
    for (_, text), matching in sorted(groups.items(), key=lambda item: item[0][0])[:_MOST_LISTED]:
        lines += [f"  {line}".rstrip() for line in printable(text).splitlines()]
        lines.append(f"    {count(len(matching), 'variant')}: {names(matching)}")
    if len(groups) > _MOST_LISTED:
        lines.append(f"  and {count(len(groups) - _MOST_LISTED, 'more warning')} (--json has all)")
    return ["warnings:", *lines] if lines else []


def names(results: Sequence[VariantResult]) -> str:
    """Return the ids of the first few results, and the number of remaining ones."""
    return first_of([one_line(result.variant.id) for result in results], _NAMED)


def summary(report: Report, screen: Screen | None = None, *, quiet: bool = False) -> str:
    """Return the end of a build's output: sections that need attention, remarks, and totals.

    The last line is `3 variants in 1.2 s: 1 hit (33 %), 2 compiled, 14 s saved`.

    Args:
        report: report of the build.
        screen: provides colors and the line width, if limited.
        quiet: include only failures and totals; return "" if nothing failed.
    """
    if quiet and not report.exit_code:
        return ""
    lines = [] if quiet else [*map(printable, remarks(report))]
    if not quiet and report.remote is not None and report.remote.requests:
        lines.append(printable(str(report.remote)))
    lines.append(totals_line(report, screen))
    if len(report.hits) < len(report.results):
        from pallasc.cli.output.highlights import highlights

        columns = screen.line_columns if screen else None
        lines[:0] = map(printable, highlights(report, columns, failures=quiet))
    return "\n".join(lines)


def print_end(report: Report, store: Store, screen: Screen, *, quiet: bool) -> None:
    """Print a build's notes and summary."""
    print_notes(report, store)
    if ending := summary(report, screen, quiet=quiet):
        screen.write(f"{ending}\n")


def print_remarks(report: Report, store: Store, screen: Screen, *, quiet: bool) -> None:
    """Print a build's notes and remarks for another command; after a failure, its summary."""
    print_notes(report, store)
    if report.exit_code:
        screen.write(f"{summary(report, screen, quiet=quiet)}\n")
    elif not quiet:
        for line in remarks(report, added=False):
            echo(line, err=True)


def print_notes(report: Report, store: Store) -> None:
    """Print the notes of a build, except warnings that the store has already printed."""
    for note in report.notes:
        if note not in store.warnings:
            echo(f"warning: {note}", err=True)


def totals_line(report: Report, screen: Screen | None = None) -> str:
    """Return the totals as one line; omit the time saved if the line would be too long."""
    counts = dict.fromkeys(STATUS_COLOURS, 0)
    saved_s = 0.0
    for result in report.results:
        counts[result.status] += 1
        saved_s += result.saved_s if result.status == "hit" else 0.0
    took = f"{report.seconds:.1f} s" if report.seconds < 120 else duration(report.seconds)
    start = f"{count(len(report.results), 'variant')} in {took}: "
    parts = totals_words(counts)
    end = f", {duration(saved_s)} saved" if saved_s >= 0.05 else ""
    columns = screen.line_columns if screen else None
    if columns is not None and len(start + ", ".join(parts.values()) + end) > columns:
        end = ""
    if screen:
        parts = {
            status: screen.paint(text, STATUS_COLOURS[status]) for status, text in parts.items()
        }
    return f"{start}{', '.join(parts.values()) or 'nothing to do'}{end}"


def totals_words(counts: Mapping[str, int]) -> dict[str, str]:
    """Return the nonzero counts as text by status; hits with their share of finished variants."""
    parts = {status: f"{number:,} {status}" for status, number in counts.items() if number}
    if counts["hit"]:
        share = counts["hit"] / (sum(counts.values()) - counts["skipped"])
        parts["hit"] = f"{count(counts['hit'], 'hit')} ({int(100 * share)} %)"
    return parts
