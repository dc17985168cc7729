"""The lines of the PTX that Hopper's matrix instructions are from.

The assembler gives `HGMMA` and its like no line of their own: they would have that of whatever is
scheduled before them. There is one for each `wgmma.mma_async`, in the same order, unless a loop was
unrolled or a branch copied; then it is the nearest.

The low nine bits of an instruction are its operation, without the forms of its operands: 0x1f0 to
0x1f3 are `HGMMA`, `IGMMA`, `BGMMA` and `QGMMA` of nvdisasm.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from pallasc.specs.artifacts.source_lines import INSTRUCTION_BYTES

_OPERATION, _PRODUCTS = 0x1FF, range(0x1F0, 0x1F4)
_STATEMENT = "wgmma.mma_async."


def with_products(code: bytes, ptx: str, lines: Sequence[int]) -> list[int]:
    """Return the line of the PTX of each instruction, with those of matrix instructions.

    Args:
        code: the machine code.
        ptx: the PTX.
        lines: the line of each instruction, as the assembler tells.
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
