"""Where the machine code of a cubin accesses local memory, by the lines of its PTX.

The low twelve bits of an instruction are its operation: 0x387 stores to local memory, 0x983 loads
from it (`STL` and `LDL` of nvdisasm).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from pallasc.specs.artifacts.elf import parse_elf
from pallasc.specs.artifacts.line_program import (
    INSTRUCTION_BYTES,
    PTX_LINES,
    lines_of_code,
    ptx_rows,
)

_OPERATION = 0xFFF
_STORE_LOCAL, _LOAD_LOCAL = 0x387, 0x983


class LocalAccess(NamedTuple):
    """A line of PTX whose machine code accesses local memory, and how often."""

    ptx_line: int
    stores: int
    loads: int


def local_accesses(cubin: bytes, kernel: str) -> list[LocalAccess] | None:
    """Return the lines of a kernel that access local memory, most accesses first.

    None where the cubin does not tell: it has several kernels, or no lines.

    Raises:
        CorruptError: it is not a cubin, or its lines are damaged.
    """
    elf = parse_elf(cubin)
    code = [section for section in elf.sections if section.name.startswith(".text.")]
    is_alone = len(code) == 1 and code[0].name == f".text.{kernel}"
    if not is_alone or elf.section(PTX_LINES) is None:
        return None
    content = code[0].content
    counts: dict[int, list[int]] = {}
    for index, line in enumerate(lines_of_code(ptx_rows(elf), len(content))):
        first = struct.unpack_from("<H", content, index * INSTRUCTION_BYTES)[0]
        operation = first & _OPERATION
        if operation in (_STORE_LOCAL, _LOAD_LOCAL):
            counts.setdefault(line, [0, 0])[operation == _LOAD_LOCAL] += 1
    found = [LocalAccess(line, *each) for line, each in counts.items()]
    return sorted(found, key=lambda each: (-each.stores - each.loads, each.ptx_line))
