"""One variant's result as lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pallasc.cli.render.failures import error_text
from pallasc.cli.render.remarks import facts as remark_facts
from pallasc.cli.terminal.output import count
from pallasc.cli.terminal.screen import cut, shorten, width
from pallasc.compiler.builds.report import NOT_COMPILED
from pallasc.specs.plain_text import one_line, printable

if TYPE_CHECKING:
    from pallasc.compiler.builds.report import VariantResult
    from pallasc.specs.artifacts.artifact import Artifact

_OUTPUT_LINES = 20
_SHORTEST_ID = 24


class Fact(NamedTuple):
    """A fact about a variant; an essential one is shown even where there is little room."""

    text: str
    essential: bool = False

    def __str__(self) -> str:
        return self.text


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
    name = one_line(result.variant.id)
    facts = _facts(result)
    if columns is None or result.explanation is not None:
        return f"{head}{name}{_in_words(facts)}"
    room = columns - len(head)
    if width(name) + len(_in_words(facts)) > room:
        facts = [fact for fact in facts if fact.essential]
    words = _in_words(facts)
    return cut(f"{head}{shorten(name, max(_SHORTEST_ID, room - len(words)))}{words}", columns)


def _facts(result: VariantResult) -> list[Fact]:
    if result.status == "missing" and result.reason:
        return [Fact(one_line(result.reason))]
    if result.status not in ("compiled", *NOT_COMPILED) or result.artifact is None:
        return []
    remarks = [Fact(text, essential=True) for text in remark_facts(result)]
    if result.status != "compiled":
        return remarks
    seconds = Fact(f"{result.seconds:.2f} s", essential=True)
    return [seconds, *artifact_facts(result.artifact), *remarks]


def _in_words(facts: list[Fact]) -> str:
    return f"  {', '.join(map(str, facts))}" if facts else ""


def artifact_facts(artifact: Artifact) -> list[Fact]:
    """Return size, registers and spills in words; those of the kernel with the largest value."""
    facts = [Fact(count(artifact.cubin_bytes, "byte"))]
    if artifact.kernels:
        registers = max(kernel.registers for kernel in artifact.kernels)
        facts.append(Fact(f"{registers} registers"))
    spilled = spill_bytes(artifact)
    if spilled:
        facts.append(Fact(f"spills {count(spilled, 'byte')}", essential=True))
    return facts


def spill_bytes(artifact: Artifact) -> int:
    """Return the bytes that the kernel which spills most spills; 0 where that is not known."""
    return max((kernel.spill_bytes or 0 for kernel in artifact.kernels), default=0)


def lines_below(result: VariantResult) -> list[str]:
    """Return what follows the line of a result: why it failed, and with `--explain` why it missed.

    The reason of the miss is left out where that line, or the error, has it.
    """
    lines, explanation = failure_lines(result), result.explanation
    if explanation is None:
        return lines
    from pallasc.cli.render.why_text import difference_lines

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
