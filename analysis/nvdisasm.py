"""Disassembles cubins with nvdisasm, many at once.

Measured with nvdisasm 13.5 on 12 cubins of 12 to 34 kB of code, CPU seconds per cubin:

    -c -ndf                        0.21     text only
    -c                             0.29     adds data-flow analysis, 0.08
    -c -lrm count                  0.30     and live registers
    -c -lrm count -hex             0.31     and encodings, listings three times as large
    -json                          0.28     neither labels nor live registers
    -b SM90a .text                 0.21     raw code: labels are addresses, no analysis
    12 cubins in one file          0.06     `-c -lrm count` on a joined file
    50 kernels in one file         0.04

So this module runs `-c -lrm count` on many kernels joined in one ELF file, and takes encodings from
the cubin. The file has everything that affects the listing: for each kernel the section `.text.…`,
the symbols of its functions, and the attributes `.nv.info.…`, from which the analysis reads the
ends of a kernel and the points where warps converge. EIATTR_PARAM_CBANK is left out, because
it refers to a symbol by its index, which joining changes. Symbols get a prefix per kernel, because
nvdisasm renames symbols with equal names. A cubin with relocations in its code cannot be joined.
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from pallasc.analysis.sass import Code, Codes, read_listing
from pallasc.compiler.toolchain.toolchain import find_disassembler
from pallasc.errors import CorruptError, ToolError
from pallasc.specs.artifacts.cubin import HEADER_BYTES, SECTION, SYMBOL, Elf, Symbol, parse_elf

_Found = TypeVar("_Found")

_MOST_CODE_BYTES = 1 << 20
"""A joined file with this much code gets no more kernels; nvdisasm takes about 2 s for it."""
_LEAST_CODE_BYTES = 1 << 17
"""Code that a joined file should have at least: it takes nvdisasm 0.3 s, as long as its start."""
_LONGEST_S = 600.0
"""Time limit; the cubins of docs/coverage.md take under a minute."""

_TEXT, _INFO = ".text.", ".nv.info."
_PREFIX = re.compile(r"(?<=[(\s])k\d+\.")


def disassemble(cubin: bytes) -> Mapping[str, Code]:
    """Return the code of the kernels in a cubin, by name.

    There are no live registers if nvdisasm's data-flow analysis fails.

    Raises:
        ToolError: nvdisasm is not installed, or cannot be run.
        CorruptError: `cubin` is not a cubin, or nvdisasm rejects it.
    """
    contents = {
        section.name.removeprefix(_TEXT): section.content
        for section in parse_elf(cubin).sections
        if section.name.startswith(_TEXT)
    }
    try:
        text = disassembly(cubin, "-c", "-lrm", "count")
    except CorruptError:
        text = disassembly(cubin, "-c", "-ndf")
    return read_listing(text, contents)


def disassemble_all(cubins: Mapping[str, bytes]) -> Codes:
    """Return the code of the kernels in many cubins, by the keys of `cubins`.

    Identical kernels are disassembled once.

    Args:
        cubins: cubins by digest, or by any other name.

    Raises:
        ToolError: nvdisasm is not installed, or cannot be run.
        CorruptError: a value is not a cubin, or nvdisasm rejects it; the message starts with its
            key.
    """
    pieces = {key: _named(key, _pieces, cubin) for key, cubin in cubins.items()}
    distinct = list(dict.fromkeys(piece for own in pieces.values() for piece in own))
    codes: dict[_Piece, Code] = {}
    jobs = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(jobs) as pool:
        for batch in pool.map(_together, _batches(distinct, jobs)):
            codes |= batch
        alone = [key for key, own in pieces.items() if not own or not codes.keys() >= {*own}]
        single = pool.map(lambda key: _named(key, disassemble, cubins[key]), alone)
        separate = dict(zip(alone, single, strict=True))
    return {
        key: separate[key] if key in separate else {piece.kernel: codes[piece] for piece in own}
        for key, own in pieces.items()
    }


def _named(key: str, function: Callable[[bytes], _Found], cubin: bytes) -> _Found:
    try:
        return function(cubin)
    except CorruptError as error:
        raise CorruptError(f"{key}: {error.message}") from error


class _Piece(NamedTuple):
    """A kernel of a cubin.

    Attributes:
        kernel: its name.
        content: its code.
        attributes: its attributes.
        functions: the symbols in its code, with section 0.
        header: the ELF header without offsets and counts.
    """

    kernel: str
    content: bytes
    attributes: bytes
    functions: tuple[Symbol, ...]
    header: bytes


def _pieces(cubin: bytes) -> list[_Piece]:
    """Return the kernels of a cubin, [] if the cubin has to be disassembled separately."""
    elf = parse_elf(cubin)
    if any(s.size and s.name.startswith((".rela.text.", ".rel.text.")) for s in elf.sections):
        return []
    header = bytearray(cubin[:HEADER_BYTES])
    header[24:48] = bytes(24)
    header[56:] = bytes(8)
    symbols = [symbol for symbol in elf.symbols() if symbol.info & 15 != 3]  # no section symbols
    pieces = []
    for number, section in enumerate(elf.sections):
        if section.name.startswith(_TEXT):
            kernel = section.name.removeprefix(_TEXT)
            own = tuple(each._replace(section=0) for each in symbols if each.section == number)
            attributes = _attributes(elf, kernel)
            pieces.append(_Piece(kernel, section.content, attributes, own, bytes(header)))
    return pieces


def _attributes(elf: Elf, kernel: str) -> bytes:
    """Return a kernel's attributes, without those that refer to symbols by number."""
    section = elf.section(_INFO + kernel)
    raw = section.content if section else b""
    found, at = bytearray(), 0
    while at + 4 <= len(raw):
        form, attribute, size = struct.unpack_from("<BBH", raw, at)
        end = at + 4 + (size if form == 4 else 0)
        if attribute != 0x0A:
            found += raw[at:end]
        at = end
    return bytes(found)


def _batches(pieces: Sequence[_Piece], jobs: int) -> Iterator[list[_Piece]]:
    """Split kernels with equal headers into files: one per job, within the size limits."""
    by_header: dict[bytes, list[_Piece]] = {}
    for piece in pieces:
        by_header.setdefault(piece.header, []).append(piece)
    for same in by_header.values():
        share = sum(len(piece.content) for piece in same) // jobs
        most = min(max(share, _LEAST_CODE_BYTES), _MOST_CODE_BYTES)
        batch: list[_Piece] = []
        for piece in same:
            batch.append(piece)
            if sum(len(each.content) for each in batch) >= most:
                yield batch
                batch = []
        if batch:
            yield batch


def _together(batch: Sequence[_Piece]) -> dict[_Piece, Code]:
    """Return the code of a batch; {} if nvdisasm rejects it, as it does for one bad kernel."""
    contents = {f"k{number}": piece.content for number, piece in enumerate(batch)}
    try:
        text = disassembly(_joined(batch), "-c", "-lrm", "count")
    except CorruptError:
        return {}
    codes = read_listing(_PREFIX.sub("", text), contents)
    return {
        piece: replace(codes[name], kernel=piece.kernel)
        for piece, name in zip(batch, contents, strict=True)
        if name in codes
    }


def _joined(pieces: Sequence[_Piece]) -> bytes:
    """Join kernels with equal headers into a file: strings, symbols, two sections per kernel."""
    strings = bytearray(1)

    def add(name: str) -> int:
        """Add a string, and return its offset."""
        at = len(strings)
        strings.extend(name.encode() + b"\0")
        return at

    symbols = [bytes(SYMBOL.size)]
    sections: list[tuple[int, int, int, bytes | bytearray, int, int, int, int]] = []
    for number, piece in enumerate(pieces):
        at = 3 + 2 * number
        for name, info, other, _, *place in piece.functions:
            symbols.append(SYMBOL.pack(add(f"k{number}.{name}"), info, other, at, *place))
        sections.append((add(f"{_TEXT}k{number}"), 1, 6, piece.content, 2, 0, 128, 0))
        sections.append((add(f"{_INFO}k{number}"), 0x70000000, 64, piece.attributes, 2, at, 4, 0))
    sections.insert(0, (add(".symtab"), 2, 0, b"".join(symbols), 1, 1, 8, SYMBOL.size))
    sections.insert(0, (add(".strtab"), 3, 0, strings, 0, 0, 1, 0))
    file, table = bytearray(pieces[0].header), [bytes(SECTION.size)]
    for name_at, kind, flags, content, link, info, alignment, entry in sections:
        file += bytes(-len(file) % alignment)
        size, numbers = len(content), (link, info, alignment, entry)
        table.append(SECTION.pack(name_at, kind, flags, 0, len(file), size, *numbers))
        file += content
    file += bytes(-len(file) % 8)
    struct.pack_into("<Q", file, 40, len(file))
    struct.pack_into("<HHH", file, 58, SECTION.size, len(table), 1)
    return bytes(file) + b"".join(table)


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
        # nvdisasm prints two errors for each damaged instruction.
        first = next(filter(None, map(str.strip, errors.split("\n"))), "")
        reason = re.sub(r"^nvdisasm (?:error|fatal) *: *", "", first)
        reason = reason or f"it ended with status {answer.returncode}"
        raise CorruptError(f"nvdisasm cannot read the cubin: {reason}")
    return answer.stdout.decode(errors="replace")
