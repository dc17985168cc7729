"""PTX lines of Hopper's matrix instructions.

The assembler assigns no line to `HGMMA` and similar instructions: they would inherit the line of
the instruction scheduled before them. There is one for each `wgmma.mma_async`, in the same order,
unless a loop was unrolled or a branch duplicated; then the nearest `wgmma.mma_async` is used.

The low nine bits of an instruction are its operation, without the forms of its operands: 0x1f0 to
0x1f3 are nvdisasm's `HGMMA`, `IGMMA`, `BGMMA` and `QGMMA`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from pallasc.specs.artifacts.source_lines import INSTRUCTION_BYTES

_OPERATION, _PRODUCTS = 0x1FF, range(0x1F0, 0x1F4)
_STATEMENT = "wgmma.mma_async."


def with_products(code: bytes, ptx: str, lines: Sequence[int]) -> list[int]:
    """Return the PTX line of each instruction, with corrected lines for matrix instructions.

    Args:
        code: the machine code.
        ptx: the PTX.
        lines: the line of each instruction in the assembler's line table.
    """
    found = list(lines)
    statements = [n for n, line in enumerate(ptx.splitlines(), 1) if _STATEMENT in line]
    products = [n for n in range(len(found)) if _operation(code, n) in _PRODUCTS]
    if statements:
        in_order = statements if len(statements) == len(products) else ()
        for index, number in enumerate(products):
            held = found[number]
            nearest = min(statements, key=lambda line: abs(line - held))
            found[number] = in_order[index] if in_order else nearest
    return found


def _operation(code: bytes, number: int) -> int:
    first: int = struct.unpack_from("<H", code, number * INSTRUCTION_BYTES)[0]
    return first & _OPERATION
