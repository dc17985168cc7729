"""Sums, differences and products of several words, against Python's integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pallasc.emulator.numbers.table import find

EDGES = (0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)


def columns(bits: int, count: int) -> list[list[int]]:
    """Return operands of so many bits: all edges with each other, then random ones."""
    edges = [e | (e << 32) if bits == 64 else e for e in EDGES]
    random = np.random.default_rng(5)
    rows = [[a, b, edges[n % 7]] for n, a in enumerate(edges) for b in edges]
    rows += [[int(x) >> (64 - bits) for x in random.integers(0, 2**64, 3, np.uint64)] for _ in "ab"]
    return [[row[at] for row in rows] for at in range(count)]


def product(a: int, b: int, name: str, bits: int) -> int:
    signed = ".s" in name
    a, b = (v - (1 << bits) if signed and v >> (bits - 1) else v for v in (a, b))
    return (a * b >> (bits if ".hi" in name else 0)) % (1 << bits)


EXACT: dict[str, Callable[..., int]] = {
    "add": lambda a, b, carry: a + b + carry,
    "sub": lambda a, b, carry: a - b - carry,
}


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
@pytest.mark.parametrize(
    "base",
    ["add.cc", "addc.cc", "addc", "sub.cc", "subc.cc", "subc", "mad.lo.cc", "mad.hi.cc",
     "madc.lo.cc", "madc.hi.cc", "madc.hi", "madc.lo"],
)  # fmt: skip
@pytest.mark.parametrize("carry", [0, 1])
def test_carries_are_those_of_whole_numbers(base: str, kind: str, carry: int) -> None:
    opcode, bits = f"{base}.{kind}", int(kind[1:])
    operation = find(opcode)
    assert operation is not None
    reads, writes = base.partition(".")[0].endswith("c"), ".cc" in base
    given = columns(bits, 3 if base.startswith("mad") else 2)
    dtype, word = operation.sources[0], f"u{bits // 8}"
    arrays = [np.array(each, word).view(dtype) for each in given]
    flag = [np.full(len(given[0]), carry, np.uint32)] if reads else []
    result = operation.apply(*arrays, *flag)
    found, out = result if writes else (result, None)
    for at, row in enumerate(zip(*given, strict=True)):
        a, b = row if len(row) == 2 else (product(*row[:2], opcode, bits), row[2])
        whole = EXACT["sub" if base.startswith("sub") else "add"](a, b, carry * reads)
        assert int(found.view(word)[at]) == whole % (1 << bits)
        if out is not None:
            assert out[at] == (whole < 0 or whole >> bits > 0)
