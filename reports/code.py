"""The code of a kernel for the page: source, PTX and SASS, and how their lines correspond.

A page gets JSON in an attribute of its element, in which `block` is the name of a block of
`blocks`:

    code     = {"kernel": name, "ptx": block, "sass": block, "lines": block, "sources": [source]}
    source   = {"name": file, "block": block of [[number, text]]}
    sass     = {"text": [text], "labels": {number: label}, "live": [registers or null],
                "kinds": [class], "kind": [index of a class], "ptx": [line of the PTX, 0 for none]}
    lines    = {"ptx": [index of a stack, -1 for none], "stacks": [[frame]]}
    frame    = [index of a source, line, function], the innermost first

The name of a missing block is "". The lists of `sass` have an item for each instruction, the lists
of `lines` one for each line of the PTX.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from pallasc.analysis.sass import CLASSES, Codes, classify
from pallasc.reports.blocks import Blocks
from pallasc.specs.artifacts.artifact import Artifact, KernelResources
from pallasc.specs.artifacts.cubin import parse_elf
from pallasc.specs.artifacts.source_lines import lines_of_code, ptx_rows
from pallasc.specs.canonical import digest

if TYPE_CHECKING:
    from pallasc.analysis.sass import Code
    from pallasc.specs.artifacts.source_lines import KernelLines, SourceLines


class Note(NamedTuple):
    """A note about something missing, and the command that creates it; "" for none."""

    text: str
    command: str = ""


class CodeSheet(NamedTuple):
    """The code of a kernel on the page of a variant."""

    kernel: str
    json: str
    notes: tuple[Note, ...]


def code_of(
    kernel: KernelResources,
    artifact: Artifact,
    codes: Codes | None,
    source: SourceLines | None,
    blocks: Blocks,
) -> CodeSheet:
    """Return the code of a kernel, and add its texts to the blocks.

    Args:
        kernel: the kernel.
        artifact: the artifact that contains it.
        codes: SASS; None if there is no disassembler.
        source: the source lines of the artifact; None if the store has none.
        blocks: the report's blocks.

    Raises:
        CorruptError: the cubin, or its line table, is damaged.
    """
    ptx = artifact.blob(kernel.ptx).decode("utf-8", "replace").rstrip("\0\n") if kernel.ptx else ""
    code = codes.get(kernel.cubin, {}).get(kernel.name) if codes is not None else None
    lines = lines_of(kernel, artifact, source) if source is not None else None
    value: dict[str, object] = {
        "kernel": kernel.name,
        "ptx": blocks.add(ptx) if ptx else "",
        "sass": blocks.add_json(_sass(code, kernel, artifact)) if code is not None else "",
        "lines": "",
        "sources": [],
    }
    if source is not None and lines is not None:
        value["lines"] = blocks.add_json(_lines(lines, source))
        value["sources"] = [
            {"name": file.name, "block": blocks.add_json(list(file.text.items()))}
            for file in source.files
        ]
    notes = tuple(_notes(kernel, codes, code, has_lines=lines is not None))
    return CodeSheet(kernel.name, json.dumps(value, ensure_ascii=False), notes)


def lines_of(
    kernel: KernelResources, artifact: Artifact, source: SourceLines
) -> KernelLines | None:
    """Return the source lines of a kernel; None if they belong to other code.

    Raises:
        CorruptError: the cubin is damaged.
    """
    section = parse_elf(artifact.blob(kernel.cubin)).section(f".text.{kernel.name}")
    return source.of(kernel.name, digest(section.content)) if section is not None else None


def _notes(
    kernel: KernelResources, codes: Codes | None, code: Code | None, *, has_lines: bool
) -> Iterator[Note]:
    if codes is None:
        yield Note("nvdisasm is not installed: no SASS.", "pip install nvidia-cuda-nvdisasm")
    elif code is None:
        yield Note("nvdisasm shows no code of this kernel.")
    if kernel.ptx is None and kernel.origin == "mosaic":
        yield Note("The bundle has no PTX.", "pallasc bundle create --keep-ptx")
    elif kernel.ptx is None:
        yield Note("A kernel of XLA's, which comes without PTX and source lines.")
    elif not has_lines:
        yield Note("The store has no source lines of it.", "pallasc inspect SPECS --lines")


def _sass(code: Code, kernel: KernelResources, artifact: Artifact) -> dict[str, object]:
    instructions = code.instructions
    return {
        "text": [each.text for each in instructions],
        "labels": {str(at): each.label for at, each in enumerate(instructions) if each.label},
        "live": [each.live_registers for each in instructions],
        "kinds": CLASSES,
        "kind": [CLASSES.index(classify(each)) for each in instructions],
        "ptx": _ptx_lines(kernel, artifact, len(instructions)),
    }


def _ptx_lines(kernel: KernelResources, artifact: Artifact, count: int) -> list[int]:
    """Return the PTX line of each instruction, from the line table that the assembler wrote."""
    found: list[int] = []
    if kernel.ptx is not None:
        elf = parse_elf(artifact.blob(kernel.cubin))
        code = [section for section in elf.sections if section.name.startswith(".text.")]
        if len(code) == 1:
            found = lines_of_code(ptx_rows(elf), code[0].size)
    return [*found[:count], *[0] * (count - len(found))]


def _lines(lines: KernelLines, source: SourceLines) -> dict[str, object]:
    """Return the stack of each PTX line; lines without one use the stack of the line before."""
    numbers = {file.name: number for number, file in enumerate(source.files)}
    held, stacks = 0, []
    for number in lines.ptx_stacks:
        held = number or held
        stacks.append(held - 1)
    return {
        "ptx": stacks,
        "stacks": [
            [[numbers[frame.file], frame.line, frame.function] for frame in stack]
            for stack in source.stacks
        ],
    }
