"""A build as text: a line for each variant, remarks about the whole, and the totals.

Remarks are warnings, variants without a Mosaic kernel, and XLA's kernels: the same for hits as for
what was compiled.
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
from pallasc.specs.plain_text import one_line, printable

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
    """Return `[ 3/24]`, as wide for every variant of a build."""
    return f"[{done:>{len(str(total))}}/{total}]"


def result_line(result: VariantResult, columns: int | None = None) -> str:
    """Return `compiled  add@h100-sxm  1.24 s, 9,512 bytes, 24 registers`, or only the id.

    A missing variant is followed by the reason.

    Args:
        result: the result of a variant.
        columns: how much room there is. Where it is too little, first size and registers are left
            out, then the middle of the id. With an explanation, nothing is left out.
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
    """Return what follows an id; size and registers are those of the largest kernel."""
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
    """Return what follows the line of a result: why it failed, and with `--explain` why it missed.

    The reason of the miss is left out where that line, or the error, has it.
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
    """Return why a variant failed, indented, with the end of its output."""
    if result.error is None:
        return []
    lines = printable(error_text(result.error)).splitlines()
    output = output_tail(result)
    if output:
        lines += ["output:", *output]
    return [f"    {line}".rstrip() for line in lines]


def output_tail(result: VariantResult) -> list[str]:
    """Return the last lines that a failed variant wrote, unless its error has them already."""
    nowhere = (None, result.variant.location)
    is_shown = result.compiling and result.error and result.error.location not in nowhere
    if result.error is None or is_shown:
        return []
    return printable(result.output).strip().splitlines()[-_OUTPUT_LINES:]


def remarks(report: Report, *, added: bool = True) -> list[str]:
    """Return a build's remarks, line by line.

    Args:
        report: what the build did.
        added: list the kernels that XLA added around Pallas kernels.
    """
    results = report.results
    xla = _added(results) if added else []
    return [*_without_kernel(results), *xla, *_shown(results)]


def remark_facts(result: VariantResult) -> list[str]:
    """Return the remarks about a variant, in a few words each."""
    lacks = ["no Mosaic kernel"] if holds_no_kernel(result) else []
    number = warning_count([result])
    return [*lacks, count(number, "warning")] if number else lacks


def warning_count(results: Iterable[VariantResult]) -> int:
    """Return how many warnings there were, repeated ones counted."""
    return sum(warning.count for result in results for warning in result.diagnostics)


def cubin_bytes(result: VariantResult) -> int:
    """Return the size of a variant's cubins, 0 without an artifact."""
    return result.artifact.cubin_bytes if result.artifact else 0


def spill_bytes(result: VariantResult) -> int:
    """Return how many bytes a thread of a variant spills at most, 0 without an artifact."""
    return result.artifact.spill_bytes if result.artifact else 0


def holds_no_kernel(result: VariantResult) -> bool:
    """Return True if a variant was compiled, and no kernel of Mosaic GPU is in it."""
    artifact = result.artifact
    return artifact is not None and all(k.origin != "mosaic" for k in artifact.kernels)


def xla_kernels(artifact: Artifact | None) -> list[str]:
    """Return the names of the kernels that XLA wrote, in the order of first launch."""
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
    """Return the kernels that XLA added, a line for each Pallas kernel."""
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
    return ["kernels that XLA added around those of Pallas:", *lines, *more]


def _described(name: str) -> str:
    """Return a kernel's name; XLA names those of products after their operation."""
    text = one_line(name)
    return f"{text} (a matrix product)" if _PRODUCT.search(name) else text


def compiled_wrongly(results: Sequence[VariantResult]) -> list[str]:
    """Return the warnings about constructs that JAX compiles wrongly."""
    return _shown(results, _WRONG)


def _shown(results: Sequence[VariantResult], kind: str | None = None) -> list[str]:
    """Return the warnings, or those of one kind, with the variants that they belong to.

    Warnings that JAX compiles a construct wrongly come first.
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
    """Return the ids of the first few results, and how many more there are."""
    return first_of([one_line(result.variant.id) for result in results], _NAMED)


def summary(report: Report, screen: Screen | None = None, *, quiet: bool = False) -> str:
    """Return the end of a build's output; one line where nothing stands out.

    Its last line is `3 variants in 1.2 s: 1 hit (33 %), 2 compiled, 14 s saved`.

    Args:
        report: what the build did.
        screen: gives colours, and the columns of a line where they are limited.
        quiet: nothing but what went wrong; an empty text where nothing did.
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
    """Print the notes of a build, and its summary."""
    print_notes(report, store)
    if ending := summary(report, screen, quiet=quiet):
        screen.write(f"{ending}\n")


def print_remarks(report: Report, store: Store, screen: Screen, *, quiet: bool) -> None:
    """Print the notes and remarks of a build for something else; its summary where it failed."""
    print_notes(report, store)
    if report.exit_code:
        screen.write(f"{summary(report, screen, quiet=quiet)}\n")
    elif not quiet:
        for line in remarks(report, added=False):
            echo(line, err=True)


def print_notes(report: Report, store: Store) -> None:
    """Print the notes of a build that the store has not warned of already."""
    for note in report.notes:
        if note not in store.warnings:
            echo(f"warning: {note}", err=True)


def totals_line(report: Report, screen: Screen | None = None) -> str:
    """Return the totals as one line; where that is too long, without the time saved."""
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
    """Return each count that is not 0 in words; hits with their share of what was finished."""
    parts = {status: f"{number:,} {status}" for status, number in counts.items() if number}
    if counts["hit"]:
        share = counts["hit"] / (sum(counts.values()) - counts["skipped"])
        parts["hit"] = f"{count(counts['hit'], 'hit')} ({int(100 * share)} %)"
    return parts
