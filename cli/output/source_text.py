"""Machine code and PTX, and their source lines."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from pallasc.cli.output.text import NO_KERNELS, count, echo, fields, table
from pallasc.errors import NotCachedError, PallascError
from pallasc.specs.artifacts.source_lines import Frame, SourceLines, Stack
from pallasc.specs.spelling import one_line

if TYPE_CHECKING:
    from pallasc.analysis.lines import LineCosts, LocatedKernel
    from pallasc.cache.store import Store
    from pallasc.compiler.builds.options import Options
    from pallasc.compiler.builds.report import VariantResult
    from pallasc.specs.artifacts.artifact import Artifact
    from pallasc.specs.artifacts.source_lines import KernelLines

    Found = SourceLines | PallascError


HEAD = ("LINE", "INSTR", "TENSOR", "SHARED", "LOCAL", "WAITS", "REGS", "SOURCE")
"""Columns of the listing: line number, the `COUNTED` costs, source text."""
_MEMORY = ("BYTES", "OFFSET", "WHAT", "LINE")
_MOST_BARE = 3
"""A gap of up to this many lines without code is shown; a longer gap is omitted."""
NO_LINES = "// no source line"
_INSTRUCTION = re.compile(r"\s*(?:\{\s*)?(?:\.reg\b[^;]*;\s*)*(?:@!?[%\w$]+\s+)?[a-z]")


def lines_text(artifact: Artifact, lines: SourceLines) -> str:
    """Return the source lines with their costs, and the shared memory table.

    Raises:
        ToolError: nvdisasm is not installed, or cannot be run.
        CorruptError: a cubin is damaged.
    """
    from pallasc.analysis.lines import located_kernels

    parts = []
    for kernel in located_kernels(artifact, lines):
        parts.append(_heading(kernel))
        costs = kernel.costs()
        for name in dict.fromkeys(frame.file for frame in sorted(costs)):
            own = {frame.line: cost for frame, cost in costs.items() if frame.file == name}
            parts.append(f"{one_line(name)}\n{_listing(lines, name, own)}")
        if kernel.shared_memory:
            parts.append(_memory_text(kernel))
    return "\n\n".join(parts)


def _heading(kernel: LocatedKernel) -> str:
    total = len(kernel.instructions)
    if kernel.origin == "xla":
        return f"{kernel.name}: {count(total, 'instruction')}, from XLA: no source lines"
    if kernel.lines is None:
        return f"{kernel.name}: {count(total, 'instruction')}; no source lines known"
    return f"{kernel.name}: {kernel.located:,} of {count(total, 'instruction')} have a line"


def _listing(lines: SourceLines, name: str, costs: Mapping[int, LineCosts]) -> str:
    """Return source lines with their costs; columns that are empty for all lines are omitted."""
    from pallasc.analysis.lines import COUNTED

    file = lines.file(name)
    texts = dict(file.text) if file else {}
    shown = list(_shown(sorted({*texts, *costs}), costs))
    sources = [texts.get(number or 0, "").expandtabs().rstrip() for number in shown]
    rows: list[list[str]] = []
    for number, text in zip(shown, textwrap.dedent("\n".join(sources)).split("\n"), strict=True):
        cost = {} if number is None or number not in costs else costs[number]
        cells = [f"{cost[key]:,}" if cost.get(key) else "" for key in COUNTED]
        rows.append(["", *cells, "…"] if number is None else [str(number), *cells, text])
    last = len(HEAD) - 1
    kept = [n for n in range(len(HEAD)) if n in (0, 1, last) or any(row[n] for row in rows)]
    head = [HEAD[n] for n in kept]
    return table(head, [[row[n] for n in kept] for row in rows], right=head[:-1])


def _shown(numbers: Sequence[int], costs: Iterable[int]) -> Iterator[int | None]:
    """Yield the line numbers to show, and None for each omitted gap without code."""
    with_code = set(costs)
    bare: list[int] = []
    for number in numbers:
        if number not in with_code:
            bare.append(number)
            continue
        if len(bare) > _MOST_BARE:
            yield None
        else:
            yield from bare
        yield number
        bare = []


def _memory_text(kernel: LocatedKernel) -> str:
    total = sum(part.bytes for part, _ in kernel.shared_memory)
    rows = []
    for part, stack in kernel.shared_memory:
        what = " ".join(filter(None, ("" if part.what == "scratch" else part.what, part.name)))
        words = f"{what} {part.type}".strip()
        offset = "" if part.offset is None else f"{part.offset:,}"
        rows.append([f"{part.bytes:,}", offset, words, str(stack[0]) if stack else ""])
    text = table(_MEMORY, rows, right=_MEMORY[:2])
    return f"shared memory of a block: {count(total, 'byte')}\n{text}"


def sass_text(artifact: Artifact, lines: SourceLines | None = None) -> str:
    """Return the machine code of every kernel, interleaved with its source lines if given.

    Raises:
        ToolError: nvdisasm is not installed, or cannot be run.
        CorruptError: a cubin is damaged.
    """
    if lines is None:
        from pallasc.analysis.nvdisasm import sass

        kernels = dict.fromkeys((kernel.cubin, kernel.name) for kernel in artifact.kernels)
        parts = [sass(artifact.blob(cubin), kernel=name).rstrip("\n") for cubin, name in kernels]
        return "\n\n".join(parts) or f"// {NO_KERNELS}"
    from pallasc.analysis.lines import located_kernels

    parts = []
    for kernel in located_kernels(artifact, lines):
        shown = [f"// {_heading(kernel)}"]
        before: Stack | None = None
        for instruction, stack in kernel.instructions:
            if stack != before:
                shown.append(_place(lines, stack))
                before = stack
            label = [f"{instruction.label}:"] if instruction.label else []
            shown += [*label, f"    /*{instruction.address:04x}*/  {instruction.text}"]
        parts.append("\n".join(shown))
    return "\n\n".join(parts)


def ptx_text(artifact: Artifact, lines: SourceLines | None = None) -> str:
    """Return the PTX of every kernel, interleaved with its source lines if given.

    For a kernel without PTX, a comment gives the reason.
    """
    from pallasc.analysis.lines import lines_of

    parts: dict[str, str] = {}
    for kernel in artifact.kernels:
        if kernel.ptx is None:
            why = "the bundle has no PTX; pallasc bundle create --keep-ptx adds it"
            if kernel.origin != "mosaic":
                why = "a kernel from XLA, which has no PTX"
            parts[kernel.cubin] = f"// {kernel.name}: {why}"
        else:
            text = artifact.blob(kernel.ptx).decode("utf-8", "replace").rstrip("\0\n")
            if lines is not None:
                known = lines_of(artifact, kernel, lines)
                text = "\n".join(_interleaved(text, known, lines))
            parts[kernel.ptx] = text
    return "\n\n".join(parts.values()) or f"// {NO_KERNELS}"


def _interleaved(ptx: str, known: KernelLines | None, lines: SourceLines) -> Iterator[str]:
    numbers = () if known is None else known.ptx_stacks
    before: Stack = ()
    for index, text in enumerate(ptx.splitlines()):
        stack = lines.stack(numbers[index]) if index < len(numbers) else ()
        if stack and stack != before and _INSTRUCTION.match(text):
            yield _place(lines, stack)
            before = stack
        yield text


def _place(lines: SourceLines, stack: Stack) -> str:
    """Return a source line as a comment, with the calls that lead to it."""
    if not stack:
        return NO_LINES
    text = one_line(lines.text(stack[0]).strip())
    return " ".join(filter(None, (f"// {_route(stack)}", text)))


def _route(stack: Sequence[Frame]) -> str:
    called = [f" < {frame}" for frame in stack[1:]]
    return one_line(f"{stack[0]}{''.join(called)}:")


def lines_json(artifact: Artifact, lines: SourceLines) -> list[dict[str, object]]:
    """Return the kernels of an artifact with the cost of each line, as JSON."""
    from pallasc.analysis.lines import COUNTED, located_kernels

    return [
        {
            **fields(kernel, "name", "origin", "located"),
            "instructions": len(kernel.instructions),
            "lines": [
                {
                    **frame._asdict(),
                    "text": lines.text(frame),
                    **{key: cost[key] for key in COUNTED},
                }
                for frame, cost in sorted(kernel.costs().items())
            ],
            "shared_memory": [
                {**asdict(part), "stack": [frame._asdict() for frame in stack]}
                for part, stack in kernel.shared_memory
            ],
            "code": [
                {
                    **fields(instruction, "address", "text"),
                    "ptx_line": _ptx_line(kernel.lines, index),
                    "stack": [frame._asdict() for frame in stack],
                }
                for index, (instruction, stack) in enumerate(kernel.instructions)
            ],
        }
        for kernel in located_kernels(artifact, lines)
    ]


def _ptx_line(known: KernelLines | None, index: int) -> int | None:
    numbers = () if known is None else known.ptx_lines
    return numbers[index] or None if index < len(numbers) else None


FoundLines = Mapping[str, "Found"]
"""Source lines by variant id, or the error that explains why there are none."""


def found_lines(
    results: Sequence[VariantResult], store: Store, options: Options, say: Callable[[str], None]
) -> FoundLines:
    """Return the source lines of built variants; if the store lacks them, compile again.

    Raises:
        ToolError: the compiler is missing, or a compiling process cannot be started.
    """
    from pallasc.analysis.find_lines import Compiled, obtain_source_lines

    compiled = [
        Compiled(result.variant, result.artifact, result.action_key)
        for result in results
        if result.artifact is not None and result.action_key is not None
    ]
    found = obtain_source_lines(
        compiled, store, jobs=options.jobs, timeout_s=options.timeout_s, say=say
    )
    return {each.variant.id: lines for each, lines in zip(compiled, found, strict=True)}


def held_lines(results: Iterable[VariantResult], store: Store) -> FoundLines:
    """Return the stored or bundled source lines of artifacts that come without source."""
    from pallasc.analysis.lines import read_source_lines

    found: dict[str, Found] = {}
    for result in results:
        if result.action_key is None:
            lines, where = result.artifact and result.artifact.source_lines(), "its bundle"
            hint = "Make the bundle with: pallasc bundle create --lines"
        else:
            lines, where = read_source_lines(store, result.action_key), "the store"
            hint = "Find them where its spec is: pallasc inspect SPECS --lines"
        missing = f"{result.variant.id}: {where} has no source lines of this variant."
        found[result.variant.id] = lines or NotCachedError(missing, hint=hint)
    return found


def tell_missing(lines: FoundLines) -> int:
    """Print which variants have no source lines and why; return the exit code."""
    errors = {name: found for name, found in lines.items() if isinstance(found, PallascError)}
    for name, error in errors.items():
        text = str(error)
        echo(text if name in text else f"{name}: {text}", err=True)
    return max((error.exit_code for error in errors.values()), default=0)
