"""Say on the standard error output what a build does: one line for each variant that is done."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

import click

from pallasc.cli.failures import error_text
from pallasc.cli.output import count

if TYPE_CHECKING:
    from pallasc.compiler.report import Event, Report, VariantResult
    from pallasc.specs.artifact import Artifact

_COLOURS = {"hit": "cyan", "compiled": "green", "failed": "red", "skipped": "yellow"}
_ERASE_LINE = "\r\x1b[K"
_OUTPUT_LINES = 20


def terminal_width(stream: TextIO) -> int | None:
    """Return the columns of a terminal, None for anything else."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def wants_colour(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Tell whether to colour: on a terminal, unless NO_COLOR is set (https://no-color.org)."""
    allowed = not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
    return stream.isatty() and allowed


@dataclass(slots=True)
class Progress:
    """Prints the events of a build.

    Attributes:
        stream: where to.
        width: columns of the terminal; None where it is none, then every line is whole and stays.
        colour: whether words are coloured.
        hits: whether variants that were in the store get a line.
    """

    stream: TextIO
    width: int | None = None
    colour: bool = False
    hits: bool = True

    def __call__(self, event: Event) -> None:
        """Print the line of an event."""
        if event.result is None:
            self._print_running(event)
        elif event.result.status != "hit" or self.hits:
            self._print_done(event, event.result)

    def end(self) -> None:
        """Remove the line that says what is running."""
        if self.width is not None:
            self.stream.write(_ERASE_LINE)
            self.stream.flush()

    def _print_running(self, event: Event) -> None:
        if self.width is not None:
            line = f"{_counter(event)} compiling {event.variant.id}"
            self.stream.write(_ERASE_LINE + line[: self.width - 1])
            self.stream.flush()

    def _print_done(self, event: Event, result: VariantResult) -> None:
        self.end()
        line = f"{_counter(event)} {result_line(result)}"
        if self.width is not None:
            line = line[: self.width - 1]
        if self.colour:
            word = click.style(result.status, fg=_COLOURS[result.status])
            line = line.replace(result.status, word, 1)
        details = failure_lines(result)
        self.stream.write("\n".join([line, *details]) + "\n")
        self.stream.flush()


def stderr_progress(*, hits: bool = True) -> Progress:
    """Return the progress for this process's standard error output."""
    return Progress(
        sys.stderr, terminal_width(sys.stderr), wants_colour(sys.stderr, os.environ), hits
    )


def result_line(result: VariantResult) -> str:
    """Return `compiled  add@h100-sxm  1.24 s, 9,512 bytes, 24 registers`; others are only named."""
    line = f"{result.status:<8}  {result.variant.id}"
    if result.status != "compiled" or result.artifact is None:
        return line
    return f"{line}  {', '.join([f'{result.seconds:.2f} s', *artifact_facts(result.artifact)])}"


def artifact_facts(artifact: Artifact) -> list[str]:
    """Return size, registers and spills as words; figures of the kernel that takes most."""
    facts = [count(artifact.cubin_bytes, "byte")]
    if artifact.kernels:
        facts.append(f"{max(kernel.registers for kernel in artifact.kernels)} registers")
    spilled = max((kernel.spill_bytes or 0 for kernel in artifact.kernels), default=0)
    return [*facts, f"spills {count(spilled, 'byte')}"] if spilled else facts


def failure_lines(result: VariantResult) -> list[str]:
    """Return why a variant failed, indented; the end of the output where no place tells more."""
    if result.error is None:
        return []
    lines = error_text(result.error).splitlines()
    nowhere = result.error.location in (None, result.variant.location)
    if nowhere and result.output.strip():
        lines += ["output:", *result.output.strip().splitlines()[-_OUTPUT_LINES:]]
    return [f"    {line}".rstrip() for line in lines]


def summary(report: Report) -> str:
    """Return `3 variants in 1.2 s: 1 hit, 1 compiled, 1 failed`."""
    counts = dict.fromkeys(_COLOURS, 0)
    for result in report.results:
        counts[result.status] += 1
    words = {"hit": count(counts.pop("hit"), "hit")}
    words |= {status: f"{number:,} {status}" for status, number in counts.items()}
    shown = [text for text in words.values() if not text.startswith("0 ")]
    total = count(len(report.results), "variant")
    return f"{total} in {report.seconds:.1f} s: {', '.join(shown) or 'nothing to do'}"


def _counter(event: Event) -> str:
    width = len(str(event.total))
    return f"[{event.done:>{width}}/{event.total}]"
