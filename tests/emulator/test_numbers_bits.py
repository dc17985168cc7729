"""Logic, shifts, fields and permutations against Python's integers and strings of bits."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from number_vectors import raw, run

ALL = 0xFFFFFFFF


def words(width: int, count: int = 40, seed: int = 2) -> list[int]:
    generator = random.Random(seed)
    top = 1 << (width - 1)
    chosen = [0, 1, 2, top - 1, top, top + 1, 2 * top - 1, 2 * top - 2]
    chosen += [generator.getrandbits(width) for _ in range(count)]
    return chosen + [generator.getrandbits(generator.randint(1, width)) for _ in range(count)]


def rows(*choices: list[int]) -> list[tuple[int, ...]]:
    """Return all combinations, or 3,000 of them at random."""
    every = list(itertools.product(*choices)) if np.prod([len(c) for c in choices]) < 9000 else []
    generator = random.Random(8)
    return every or [tuple(generator.choice(c) for c in choices) for _ in range(3000)]


def check(opcode: str, operands: list[tuple[int, ...]], expected: Any, width: int) -> None:
    columns = [list(column) for column in zip(*operands, strict=True)]
    mask = (1 << width) - 1
    wanted = [expected(*operand) & mask for operand in operands]
    assert raw(run(opcode, *columns)) == wanted


@pytest.mark.parametrize("width", [16, 32, 64])
def test_logic(width: int):
    pairs = rows(words(width), words(width, seed=3))
    check(f"and.b{width}", pairs, lambda a, b: a & b, width)
    check(f"or.b{width}", pairs, lambda a, b: a | b, width)
    check(f"xor.b{width}", pairs, lambda a, b: a ^ b, width)
    ones = rows(words(width))
    check(f"not.b{width}", ones, lambda a: ~a, width)
    check(f"cnot.b{width}", ones, lambda a: int(a == 0), width)


def looked_up(a: int, b: int, c: int, table: int) -> int:
    value = 0
    for bit in range(32):
        index = (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | (c >> bit & 1)
        value |= (table >> index & 1) << bit
    return value


@pytest.mark.parametrize("table", range(256))
def test_lop3_with_every_table(table: int):
    # The first three operands go through all eight combinations of bits.
    a, b, c = [0xF0F0F0F0, 0x12345678], [0xCCCCCCCC, 0x9ABCDEF0], [0xAAAAAAAA, 0x0F1E2D3C]
    expected = [looked_up(x, y, z, table) for x, y, z in zip(a, b, c, strict=True)]
    assert raw(run("lop3.b32", a, b, c, [table, table])) == expected


COUNTS = [*range(70), 127, 128, 255, 256, 257, 2**31 - 1, 2**31, 2**32 - 1]


@pytest.mark.parametrize("width", [16, 32, 64])
def test_shifts_clamp_their_count(width: int):
    operands = rows(words(width, 20), COUNTS)
    check(f"shl.b{width}", operands, lambda a, n: a << min(n, width), width)
    for name in ("b", "u"):
        check(f"shr.{name}{width}", operands, lambda a, n: a >> min(n, width), width)

    def arithmetic(a: int, n: int) -> int:
        return (a - (a >> (width - 1) << width)) >> min(n, width)

    check(f"shr.s{width}", operands, arithmetic, width)


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_funnel_shifts(mode: str):
    operands = rows(words(32), words(32, seed=4), COUNTS)

    def count(n: int) -> int:
        return min(n, 32) if mode == "clamp" else n & 31

    check(f"shf.l.{mode}.b32", operands, lambda a, b, n: (b << 32 | a) << count(n) >> 32 & ALL, 32)
    check(f"shf.r.{mode}.b32", operands, lambda a, b, n: (b << 32 | a) >> count(n), 32)


@pytest.mark.parametrize("width", [32, 64])
def test_counts_and_reversal(width: int):
    operands = rows([*words(width, 200), *(1 << n for n in range(width)), 2**53 - 1, 2**53 + 1])
    operands = [(a & ((1 << width) - 1),) for (a,) in operands]
    check(f"popc.b{width}", operands, int.bit_count, 32)
    check(f"clz.b{width}", operands, lambda a: width - a.bit_length(), 32)
    check(f"brev.b{width}", operands, lambda a: int(f"{a:0{width}b}"[::-1], 2), width)
    check(f"bfind.u{width}", operands, lambda a: a.bit_length() - 1, 32)

    def of_signed(a: int) -> int:
        return (~a & ((1 << width) - 1) if a >> (width - 1) else a).bit_length() - 1

    check(f"bfind.s{width}", operands, of_signed, 32)
    for name, function in (("u", lambda a: a.bit_length() - 1), ("s", of_signed)):
        check(
            f"bfind.shiftamt.{name}{width}",
            operands,
            lambda a, f=function: width - 1 - f(a) if f(a) >= 0 else -1,
            32,
        )


def extracted(a: int, b: int, c: int, width: int, *, signed: bool) -> int:
    """Follow the manual's loop over bits."""
    top, position, length = width - 1, b & 255, c & 255
    sign = 0 if not signed or length == 0 else a >> min(position + length - 1, top) & 1
    value = 0
    for i in range(width):
        inside = i < length and position + i <= top
        value |= (a >> (position + i) & 1 if inside else sign) << i
    return value


FIELDS = [0, 1, 2, 5, 15, 16, 31, 32, 33, 47, 63, 64, 65, 200, 255, 256, 2**32 - 1]


@pytest.mark.parametrize("width", [32, 64])
def test_bit_fields(width: int):
    operands = rows(words(width, 10), FIELDS, FIELDS)
    for name in "us":
        check(
            f"bfe.{name}{width}",
            operands,
            lambda a, b, c, n=name: extracted(a, b, c, width, signed=n == "s"),
            width,
        )

    def inserted(a: int, b: int, c: int, d: int) -> int:
        position, length = c & 255, d & 255
        for i in range(length):
            if position + i < width:
                b = b & ~(1 << (position + i)) | (a >> i & 1) << (position + i)
        return b

    check(
        f"bfi.b{width}", rows(words(width, 10), words(width, 10), FIELDS, FIELDS), inserted, width
    )


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_extension_and_masks(mode: str):
    counts = [*range(40), 63, 64, 2**31, ALL]
    operands = rows(words(32), counts)

    def width_of(b: int) -> int:
        return b & 31 if mode == "wrap" else min(b, 32)

    def of_signed(a: int, b: int) -> int:
        width = width_of(b)
        low = a & ((1 << width) - 1)
        return low - (1 << width) if width and low >> (width - 1) else low

    check(f"szext.{mode}.u32", operands, lambda a, b: a & ((1 << width_of(b)) - 1), 32)
    check(f"szext.{mode}.s32", operands, of_signed, 32)

    def mask(a: int, b: int) -> int:
        start = a & 31 if mode == "wrap" else a
        return ((1 << width_of(b)) - 1) << start if start < 32 else 0

    check(f"bmsk.{mode}.b32", rows(counts, counts), mask, 32)


def octets(a: int, b: int) -> list[int]:
    return list((a | b << 32).to_bytes(8, "little"))


def test_a_permutation_takes_bytes_and_signs():
    def permuted(a: int, b: int, c: int) -> int:
        value = 0
        for index in range(4):
            nibble = c >> (4 * index) & 15
            octet = octets(a, b)[nibble & 7]
            if nibble & 8:
                octet = 255 if octet & 128 else 0
            value |= octet << (8 * index)
        return value

    selectors = [0x3210, 0x7654, 0x5410, 0x7632, 0x0123, 0xBA98, 0xFEDC, 0x8F3C, 0xFFFF3210]
    check("prmt.b32", rows(words(32, 20), words(32, 20, seed=5), selectors), permuted, 32)


# The manual's tables: bytes 3 to 0 of the result.
MODES = {
    "f4e": ["3210", "4321", "5432", "6543"],
    "b4e": ["5670", "6701", "7012", "0123"],
    "rc8": ["0000", "1111", "2222", "3333"],
    "ecl": ["3210", "3211", "3222", "3333"],
    "ecr": ["0000", "1110", "2210", "3210"],
    "rc16": ["1010", "3232", "1010", "3232"],
}


@pytest.mark.parametrize("mode", list(MODES))
def test_the_modes_of_permutations(mode: str):
    def permuted(a: int, b: int, c: int) -> int:
        chosen = [octets(a, b)[int(digit)] for digit in MODES[mode][c & 3]]
        return int.from_bytes(bytes(chosen), "big")

    operands = rows(words(32, 10), words(32, 10, seed=6), [0, 1, 2, 3, 4, 7, ALL])
    check(f"prmt.b32.{mode}", operands, permuted, 32)
