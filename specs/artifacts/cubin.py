"""Parse a cubin: its architecture, its kernels, their parameters and resources, its PTX.

A cubin is an ELF file for machine 190 (EM_CUDA). The parser supports 64-bit little-endian ELF
files, laid out as in the System V ABI (gABI 4.1, chapters 4 and 5), as far as cubins and Mosaic's
host objects need it. Every offset and length is checked against the available bytes. The parser
reads:

* `e_flags`: the SM is in bits 8 to 15 if `e_ident[EI_ABIVERSION]` is 8 (CUDA 12.8 and later), and
  in bits 0 to 7 if it is 7. The suffix "a" is missing: sm_90 and sm_90a look alike.
* `.nv.info` and `.nv.info.<kernel>`: attributes `format:1 attribute:1 size-or-value:2 payload`,
  which `cuobjdump -elf` prints under the names EIATTR_…; the numbers used here are below.
* `.nv.shared.<kernel>`: its size is the static shared memory; from sm_90 on, it includes 1024 bytes
  reserved for the system.
* `.note.nv.tkinfo`: a note for each tool that made the file: `namesz descsz type "NVIDIA Corp"`,
  then `version:4` and five 4-byte offsets (object, tool, version, build, options) into the strings
  that follow. Output of ptxas has one note; nvlink and libnvJitLink ("nvlink", "nvJIT API") insert
  another note before it. CUDA 12 writes notes from sm_100 on.
* `.nv_debug_ptx_txt`: the PTX, its lines separated by zero bytes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from pallasc.errors import CompileError, CorruptError
from pallasc.specs.gpus import ARCHITECTURES, LINUX_DRIVERS, reserved_smem_bytes

ELF = b"\x7fELF\x02\x01"
"""The first bytes of a 64-bit little-endian ELF file."""
HEADER_BYTES = 64
# SHT_NOBITS, and the type of `.nv.merc.nv.shared.…`: sections with a size but no bytes.
NO_BITS = (8, 0x70000015)
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")

EM_CUDA = 190

# EIATTR_… numbers.
_FRAME_SIZE = 0x11
_KPARAM_INFO = 0x17
_REGCOUNT = 0x2F
_KPARAM_INFO_V2 = 0x45
_NUM_BARRIERS = 0x4C
_FMT_SVAL = 4  # 16 bits after it: length of a payload; else a value

_LONGEST_VERSION = 7  # longer text does not fit into the driver API's version number
_NOTE, _TOOL = struct.Struct("<III"), struct.Struct("<IIIIII")

_Attributes = list[tuple[int, bytes]]


class Section(Struct, frozen=True):
    """A section; `content` is empty if the file has no bytes for it."""

    name: str
    kind: int
    size: int
    content: bytes


class Symbol(NamedTuple):
    """An entry of the symbol table; `section` 0 means that the symbol is undefined.

    `info` (type and binding) and `other` (visibility) are as in the file.
    """

    name: str
    info: int
    other: int
    section: int
    address: int
    size: int


class Elf(Struct, frozen=True):
    """A parsed ELF file; `size` is its length in bytes, computed from its headers."""

    machine: int
    abi_version: int
    flags: int
    sections: tuple[Section, ...]
    size: int

    def section(self, name: str) -> Section | None:
        """Return the first section with this name, or None."""
        return next((section for section in self.sections if section.name == name), None)

    def symbols(self) -> list[Symbol]:
        """Return the symbol table, including the empty first entry."""
        table, names = self.section(".symtab"), self.section(".strtab")
        if table is None or names is None:
            return []
        usable = len(table.content) // SYMBOL.size * SYMBOL.size
        return [
            Symbol(_text(names.content, name), *numbers)
            for name, *numbers in SYMBOL.iter_unpack(table.content[:usable])
        ]


def parse_elf(data: bytes) -> Elf:
    """Parse the ELF file at the start of `data`; bytes after it are ignored.

    Raises:
        CorruptError: `data` is not such a file, or is truncated.
    """
    if not data.startswith(ELF) or len(data) < HEADER_BYTES:
        raise CorruptError("not a 64-bit little-endian ELF file")
    machine = struct.unpack_from("<H", data, 18)[0]
    programs, sections = struct.unpack_from("<QQ", data, 32)
    flags = struct.unpack_from("<I", data, 48)[0]
    program_size, program_count, row_size, count, names = struct.unpack_from("<HHHHH", data, 54)
    if count and row_size != SECTION.size:
        raise CorruptError(f"an ELF file has section headers of {row_size} bytes")
    table_end = sections + count * SECTION.size
    if table_end > len(data):
        raise CorruptError(f"an ELF file of {len(data)} bytes ends inside its section table")
    rows = list(SECTION.iter_unpack(data[sections:table_end]))
    ends = [row[4] + row[5] for row in rows if row[1] not in NO_BITS]
    size = max(HEADER_BYTES, table_end, programs + program_size * program_count, *ends)
    if size > len(data):
        raise CorruptError(f"an ELF file of {size} bytes ends after {len(data)}")
    if rows and names >= len(rows):
        raise CorruptError(f"an ELF file with {len(rows)} sections has its names in {names}")
    labels = _content(data, rows[names]) if rows else b""
    sections = tuple(
        Section(_text(labels, row[0]), row[1], row[5], _content(data, row)) for row in rows
    )
    return Elf(machine, data[8], flags, sections, size)


def _content(data: bytes, row: tuple[int, ...]) -> bytes:
    return b"" if row[1] in NO_BITS else data[row[4] : row[4] + row[5]]


def _text(table: bytes, start: int) -> str:
    end = table.find(b"\0", start)
    return table[start : end if end >= 0 else len(table)].decode("utf-8", "replace")


class Kernel(Struct, frozen=True):
    """A kernel as its cubin describes it; memory in bytes, registers per thread."""

    name: str
    parameter_bytes: tuple[int, ...]
    registers: int
    stack_bytes: int
    static_smem_bytes: int
    barriers: int


class Tool(Struct, frozen=True):
    """A tool that made a cubin: its name ("ptxas"), version ("13.5.37"), and options."""

    name: str
    version: str
    options: str


class Cubin(Struct, frozen=True):
    """A parsed cubin.

    `sm` is 10 × major + minor (90 for sm_90a). `ptx` is "" if the cubin contains none. `tools` are
    the tools that made it, the last one first.
    """

    sm: int
    kernels: Mapping[str, Kernel]
    ptx: str
    tools: tuple[Tool, ...]

    @property
    def toolkit(self) -> str:
        """The CUDA version of the last tool, "13.5", or "" if the file lacks it."""
        match = re.match(r"\d+\.\d+", self.tools[0].version if self.tools else "")
        return match[0] if match else ""

    def kernel(self, name: str) -> Kernel:
        """Return a kernel.

        Raises:
            CorruptError: the cubin has no kernel with this name.
        """
        if name not in self.kernels:
            listed = ", ".join(self.kernels) or "none"
            raise CorruptError(f"the cubin has no kernel {name}, only {listed}")
        return self.kernels[name]

    def check_arch(self, arch: str) -> None:
        """Check that the cubin is for the architecture of its artifact, `sm_90a`.

        Raises:
            CorruptError: the cubin is for another architecture.
        """
        if arch.rstrip("af") != f"sm_{self.sm}":
            raise CorruptError(f"the artifact is for {arch}, but its cubin is for sm_{self.sm}")

    @property
    def driver_package(self) -> str:
        """The minimum driver package for its toolkit."""
        try:
            return minimum_driver(toolkit=self.toolkit, sm=self.sm)["linux"]
        except CompileError:
            return f"for CUDA {self.toolkit}"


def parse_cubin(data: bytes) -> Cubin:
    """Parse a cubin.

    Raises:
        CorruptError: `data` is not a cubin, or contains wrong lengths or offsets.
    """
    elf = _parse(data)
    # CUDA 12.8 moved the SM number within e_flags and incremented the ABI version.
    sm = (elf.flags >> 8) & 0xFF if elf.abi_version >= 8 else elf.flags & 0xFF
    totals = _attributes(elf.section(".nv.info"))
    names = [symbol.name for symbol in elf.symbols()]
    registers = _per_symbol(totals, _REGCOUNT, names)
    frames = _per_symbol(totals, _FRAME_SIZE, names)
    kernels = {
        name: _kernel(elf, name, sm, registers.get(name, 0), frames.get(name, 0))
        for name in (s.name.removeprefix(".nv.info.") for s in elf.sections)
        if elf.section(f".text.{name}") and elf.section(f".nv.info.{name}")
    }
    return Cubin(sm, kernels, _ptx(elf), _tools(elf))


def tools_of(data: bytes) -> tuple[Tool, ...]:
    """Return the tools that made a cubin, the last one first; the rest of it is not read.

    Raises:
        CorruptError: `data` is not a cubin, or contains wrong lengths or offsets.
    """
    return _tools(_parse(data))


def _parse(data: bytes) -> Elf:
    elf = parse_elf(data)
    if elf.machine != EM_CUDA:
        raise CorruptError(f"not a cubin: ELF machine {elf.machine} instead of {EM_CUDA}")
    return elf


def other_maker(tools: Sequence[Tool], ptxas: str) -> str:
    """Return the tool that made a cubin if it is not ptxas of version `ptxas`, else "".

    nvlink is ignored: it only joins the output of an assembler. A cubin that names no tool may be
    from CUDA 12.
    """
    by_ptxas = [tool for tool in tools if tool.name == "ptxas"]
    others = [tool for tool in tools if tool.name not in ("ptxas", "nvlink")]
    wrong = others or [tool for tool in by_ptxas if tool.version != ptxas]
    if wrong:
        return f"{wrong[0].name} {wrong[0].version}".strip()
    return "" if by_ptxas or ptxas.startswith("12.") else "a tool that it does not name"


def _kernel(elf: Elf, name: str, sm: int, registers: int, stack_bytes: int) -> Kernel:
    own = _attributes(elf.section(f".nv.info.{name}"))
    shared = elf.section(f".nv.shared.{name}")
    reserved = reserved_smem_bytes(sm)
    return Kernel(
        name=name,
        parameter_bytes=_parameter_bytes(own),
        registers=registers,
        stack_bytes=stack_bytes,
        static_smem_bytes=max(0, shared.size - reserved) if shared else 0,
        barriers=next((value[0] for kind, value in own if kind == _NUM_BARRIERS and value), 0),
    )


def _attributes(section: Section | None) -> _Attributes:
    """Return the attributes of a `.nv.info` section with their payloads or 2-byte values."""
    raw = section.content if section else b""
    result = []
    at = 0
    while at + 4 <= len(raw):
        kind, attribute, size = struct.unpack_from("<BBH", raw, at)
        start, end = (at + 4, at + 4 + size) if kind == _FMT_SVAL else (at + 2, at + 4)
        if end > len(raw):
            raise CorruptError(f"a cubin's attributes end inside attribute {attribute:#x}")
        result.append((attribute, raw[start:end]))
        at = end
    return result


def _per_symbol(attributes: _Attributes, number: int, symbols: list[str]) -> dict[str, int]:
    result = {}
    for attribute, payload in attributes:
        if attribute == number and len(payload) >= 8:
            symbol, value = struct.unpack_from("<II", payload)
            if symbol < len(symbols):
                result[symbols[symbol]] = value
    return result


def _parameter_bytes(attributes: _Attributes) -> tuple[int, ...]:
    sizes = {}
    for attribute, payload in attributes:
        if attribute in (_KPARAM_INFO, _KPARAM_INFO_V2) and len(payload) >= 12:
            ordinal, _, bits = struct.unpack_from("<HHI", payload, 4)
            sizes[ordinal] = bits >> 18 if attribute == _KPARAM_INFO else bits & 0xFFFF
    return tuple(sizes[ordinal] for ordinal in sorted(sizes))


def _tools(elf: Elf) -> tuple[Tool, ...]:
    note = elf.section(".note.nv.tkinfo")
    raw = note.content if note else b""
    tools, at = [], 0
    while at + _NOTE.size <= len(raw):
        name_bytes, size, _ = _NOTE.unpack_from(raw, at)
        start = at + _NOTE.size + _aligned(name_bytes)
        at = start + _aligned(size)
        if at > len(raw):
            raise CorruptError("a cubin's notes end inside one of them")
        if size >= _TOOL.size:
            tools.append(_tool(raw[start : start + size]))
    return tuple(tools)


def _tool(content: bytes) -> Tool:
    _, _, name, version, _, options = _TOOL.unpack_from(content)
    strings = content[_TOOL.size :]
    exact = re.search(r"\bV(\d+(?:\.\d+)+)", told := _text(strings, version).strip())
    own, used = _text(strings, name).strip(), _text(strings, options).strip()
    return Tool(own, exact[1] if exact else told, used)


def _aligned(size: int) -> int:
    return (size + 3) & ~3


def _ptx(elf: Elf) -> str:
    section = elf.section(".nv_debug_ptx_txt")
    if section is None:
        return ""
    return section.content.strip(b"\0").replace(b"\0", b"\n").decode("utf-8", "replace") + "\n"


def api_version(text: str) -> int | None:
    """Return a CUDA version as the driver encodes it, 12080 for "12.8"; None for other text."""
    major, _, minor = text.partition(".")
    if not (major.isdecimal() and minor.isdecimal()) or len(text) > _LONGEST_VERSION:
        return None
    return int(major) * 1000 + int(minor) * 10


def minimum_driver(*, toolkit: str, sm: int) -> dict[str, str]:
    """Return the minimum `cuda` (driver API) and `linux` (driver package) for a cubin.

    According to "Minor Version Compatibility" in the CUDA compatibility guide, a cubin of toolkit
    13.x runs on every driver for CUDA 13, and a cubin of 12.x on every driver from CUDA 12 on. An
    architecture needs the first driver that supports it.

    Args:
        toolkit: CUDA version of the assembler, "13.5".
        sm: 10 × major + minor of the compute capability.

    Raises:
        CompileError: the toolkit's major version was not tested.
    """
    major = toolkit.partition(".")[0]
    if major not in ("12", "13"):
        raise CompileError(
            f"the cubin is from CUDA toolkit {toolkit or 'unknown'}; tested are 12 and 13"
        )
    known = ARCHITECTURES.get(divmod(sm, 10))
    api = max((int(major), 0), known.driver if known else (12, 0))
    return {"cuda": f"{api[0]}.{api[1]}", "linux": LINUX_DRIVERS[api]}
