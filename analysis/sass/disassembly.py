"""Disassembles cubins to instructions with nvdisasm.

Measured with nvdisasm 13.5 on 12 cubins of 12 to 34 kB of code, CPU seconds per cubin:

    -c -ndf                        0.21     text only
    -c                             0.29     data-flow analysis: 0.08
    -c -lrm count                  0.30     and live registers
    -c -lrm count -hex             0.31     and encodings, listings three times as large
    -json                          0.28     neither labels nor live registers
    -b SM90a .text                 0.21     raw code: labels are addresses, no analysis
    12 cubins in one file          0.06     `-c -lrm count` on the file from `join.py`
    50 kernels in one file         0.04

Hence `-c -lrm count` on many cubins at once, with encodings taken from the cubin.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pallasc.analysis.sass.instructions import Code
from pallasc.analysis.sass.join import Piece, joined, name_in_file, pieces_of
from pallasc.analysis.sass.listing import read_listing
from pallasc.compiler.toolchain.toolchain import find_disassembler
from pallasc.errors import CorruptError, ToolError
from pallasc.specs.artifacts.cubin import parse_elf

_MOST_CODE_BYTES = 1 << 20
"""Maximum per file: 2 s of nvdisasm."""

_LEAST_CODE_BYTES = 1 << 17
"""Minimum per file when several have the same kind: 0.3 s, about nvdisasm's startup time."""


class _Member(NamedTuple):
    """A kernel of a cubin, by the cubin's key."""

    key: str
    kernel: str


def disassemble(cubin: bytes) -> Mapping[str, Code]:
    """Return the code of the kernels in a cubin, by name.

    Raises:
        ToolError: nvdisasm is not installed, or cannot be run.
        CorruptError: it is not a cubin, or nvdisasm rejects it.
    """
    contents = {
        section.name.removeprefix(".text."): section.content
        for section in parse_elf(cubin).sections
        if section.name.startswith(".text.")
    }
    return read_listing(_listing(cubin), contents)


def disassemble_all(
    cubins: Mapping[str, bytes], *, jobs: int | None = None
) -> Mapping[str, Mapping[str, Code]]:
    """Return the code of the kernels in many cubins, by the keys of `cubins`.

    Identical kernels are disassembled once.

    Args:
        cubins: cubins by digest, or by any other name.
        jobs: number of concurrent disassemblers; None for one per core.

    Raises:
        ToolError: nvdisasm is not installed, or cannot be run.
        CorruptError: one is not a cubin, or nvdisasm rejects it; the message starts with its key.
    """
    jobs = jobs or len(os.sched_getaffinity(0))
    members: dict[Piece, list[_Member]] = {}
    alone: dict[str, None] = {}
    for key, cubin in cubins.items():
        pieces = _pieces(key, cubin)
        if pieces is None:
            alone[key] = None
        for kernel, piece in (pieces or {}).items():
            members.setdefault(piece, []).append(_Member(key, kernel))
    found: dict[str, dict[str, Code]] = {key: {} for key in cubins}
    with ThreadPoolExecutor(jobs) as pool:
        for codes in pool.map(_together, _batches(list(members), jobs)):
            for piece, code in codes.items():
                for key, kernel in members[piece]:
                    if code is None:
                        alone[key] = None
                    else:
                        found[key][kernel] = _renamed(code, kernel)
        for key, each in zip(alone, pool.map(lambda k: _one(k, cubins[k]), alone), strict=True):
            found[key] = dict(each)
    return found


def _pieces(key: str, cubin: bytes) -> Mapping[str, Piece] | None:
    try:
        return pieces_of(cubin)
    except CorruptError as error:
        raise CorruptError(f"{key}: {error.message}") from error


def _one(key: str, cubin: bytes) -> Mapping[str, Code]:
    try:
        return disassemble(cubin)
    except CorruptError as error:
        raise CorruptError(f"{key}: {error.message}") from error


def _listing(file: bytes) -> str:
    """Return nvdisasm's listing, without live registers if its data-flow analysis fails."""
    try:
        return disassembly(file, "-c", "-lrm", "count")
    except CorruptError:
        return disassembly(file, "-c", "-ndf")


def _batches(pieces: Sequence[Piece], jobs: int) -> Iterator[list[Piece]]:
    """Split the kernels of each kind into files, one per job within the size limits."""
    kinds: dict[tuple[int, ...], list[Piece]] = {}
    for piece in pieces:
        kinds.setdefault(piece.kind, []).append(piece)
    for same in kinds.values():
        share = sum(len(piece.content) for piece in same) // jobs
        most = min(max(share, _LEAST_CODE_BYTES), _MOST_CODE_BYTES)
        batch: list[Piece] = []
        for piece in same:
            batch.append(piece)
            if sum(len(each.content) for each in batch) >= most:
                yield batch
                batch = []
        if batch:
            yield batch


def _together(batch: Sequence[Piece]) -> dict[Piece, Code | None]:
    """Return the code of a batch, all None if nvdisasm rejects it because one kernel is damaged."""
    contents = {name_in_file(number): piece.content for number, piece in enumerate(batch)}
    try:
        codes = read_listing(disassembly(joined(batch), "-c", "-lrm", "count"), contents)
    except CorruptError:
        return dict.fromkeys(batch)
    return {piece: codes.get(name) for piece, name in zip(batch, contents, strict=True)}


def _renamed(code: Code, kernel: str) -> Code:
    """Rename the code and functions of a joined file to the names in their own cubin."""
    if not code.functions:
        return replace(code, kernel=kernel)
    names = {
        name: name.removeprefix(code.kernel).lstrip(".") or kernel for name, _ in code.functions
    }
    instructions = tuple(
        replace(each, operands=tuple(_swapped(operand, names) for operand in each.operands))
        if each.target in names
        else each
        for each in code.instructions
    )
    functions = sorted((names[name], address) for name, address in code.functions)
    return Code(kernel, instructions, tuple(functions))


def _swapped(operand: str, names: Mapping[str, str]) -> str:
    for name, own in names.items():
        operand = operand.replace(f"`({name})", f"`({own})")
    return operand


_LONGEST_S = 600.0
"""No cubin of the coverage table takes a minute."""


def sass(cubin: bytes, *, kernel: str | None = None) -> str:
    """Return the SASS of `cubin`, or of one kernel in it.

    Raises:
        ToolError: nvdisasm is not installed, cannot be run, or times out.
        CorruptError: nvdisasm rejects the cubin.
    """
    text = disassembly(cubin, "-ndf", "-c")
    start = text.find(f".section\t.text.{kernel},") if kernel else -1
    if start < 0:
        return text
    end = text.find("\n\t.section", start + 1)
    return text[start : end if end >= 0 else len(text)] + "\n"


def disassembly(cubin: bytes, *options: str) -> str:
    """Return the output of nvdisasm for `cubin` with these options.

    Raises:
        ToolError: nvdisasm is not installed, cannot be run, or times out.
        CorruptError: nvdisasm rejects the cubin.
    """
    tool = find_disassembler()
    if tool is None:
        raise ToolError(
            "nvdisasm is not installed, so there is no SASS to show.",
            hint="Install it with: pip install nvidia-cuda-nvdisasm",
        )
    with tempfile.TemporaryDirectory(prefix="pallasc-sass-") as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        try:
            answer = subprocess.run(
                [tool, *options, file], capture_output=True, check=False, timeout=_LONGEST_S
            )
        except subprocess.TimeoutExpired:
            raise ToolError(
                f"nvdisasm took longer than {_LONGEST_S:.0f} s for a cubin of {len(cubin):,} "
                "bytes, and was stopped."
            ) from None
        except OSError as error:
            raise ToolError(f"nvdisasm cannot be run: {error}") from error
    if answer.returncode:
        errors = answer.stderr.decode(errors="replace").replace(str(file), "the cubin")
        # It prints two errors for each damaged instruction.
        lines = [*filter(None, map(str.strip, errors.split("\n"))), ""]
        reason = re.sub(r"^nvdisasm (?:error|fatal) *: *", "", lines[0])
        raise CorruptError(
            f"nvdisasm cannot read the cubin: "
            f"{reason or f'it ended with status {answer.returncode}'}"
        )
    return answer.stdout.decode(errors="replace")
