"""Integer arithmetic against Python's integers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from number_vectors import run

TYPES = ["u16", "u32", "u64", "s16", "s32", "s64"]


def wrap(value: int, name: str) -> int:
    """Return the number that the lower bits of a value are in a type."""
    width = int(name[1:])
    value &= (1 << width) - 1
    return value - (1 << width) if name[0] == "s" and value >> (width - 1) else value


def numbers(name: str, count: int = 60, seed: int = 3) -> list[int]:
    """Return limits, small numbers and random ones of a type."""
    width = int(name[1:])
    generator = random.Random(seed)
    top = 1 << (width - 1)
    chosen = [0, 1, 2, 3, 7, top - 1, top, top + 1, 2 * top - 1, 2 * top - 2, 1 << (width // 2)]
    chosen += [generator.getrandbits(width) for _ in range(count // 2)]
    chosen += [generator.getrandbits(generator.randint(1, width)) for _ in range(count // 2)]
    return [wrap(v, name) for v in chosen]


def check(opcode: str, sources: list[str], expected: Any, result: str) -> None:
    """Run an instruction on every pair of numbers, with further sources at random."""
    first = numbers(sources[0])
    second = numbers(sources[1], seed=4) if len(sources) > 1 else [0]
    rows = [(a, b) for a in first for b in second]
    columns = [list(column) for column in zip(*rows, strict=True)][: len(sources)]
    for index, name in enumerate(sources[2:]):
        generator = random.Random(index)
        columns.append(generator.choices(numbers(name, seed=5 + index), k=len(rows)))
    wanted = [wrap(expected(*row), result) for row in zip(*columns, strict=True)]
    arrays = [
        np.array(column, object).astype(np.dtype(name.replace("s", "int").replace("u", "uint")))
        for column, name in zip(columns, sources, strict=True)
    ]
    assert run(opcode, *arrays).tolist() == wanted


def quotient(a: int, b: int) -> int:
    size = abs(a) // abs(b) if b else 0
    return -1 if b == 0 else size if (a < 0) == (b < 0) else -size


def remainder(a: int, b: int) -> int:
    return -1 if b == 0 else a - b * quotient(a, b)


@pytest.mark.parametrize("name", TYPES)
def test_sums_products_and_quotients_wrap(name: str):
    width = int(name[1:])
    check(f"add.{name}", [name] * 2, lambda a, b: a + b, name)
    check(f"sub.{name}", [name] * 2, lambda a, b: a - b, name)
    check(f"mul.lo.{name}", [name] * 2, lambda a, b: a * b, name)
    check(f"mul.hi.{name}", [name] * 2, lambda a, b: a * b >> width, name)
    check(f"mad.lo.{name}", [name] * 3, lambda a, b, c: a * b + c, name)
    check(f"mad.hi.{name}", [name] * 3, lambda a, b, c: (a * b >> width) + c, name)
    check(f"div.{name}", [name] * 2, quotient, name)
    check(f"rem.{name}", [name] * 2, remainder, name)
    check(f"min.{name}", [name] * 2, min, name)
    check(f"max.{name}", [name] * 2, max, name)
    check(f"sad.{name}", [name] * 3, lambda a, b, c: c + abs(a - b), name)


@pytest.mark.parametrize("name", ["u16", "u32", "s16", "s32"])
def test_wide_products_lose_nothing(name: str):
    wide = name[0] + str(2 * int(name[1:]))
    check(f"mul.wide.{name}", [name] * 2, lambda a, b: a * b, wide)
    check(f"mad.wide.{name}", [name, name, wide], lambda a, b, c: a * b + c, wide)


@pytest.mark.parametrize("name", ["s16", "s32", "s64"])
def test_the_smallest_number_is_its_own_opposite(name: str):
    check(f"abs.{name}", [name], abs, name)
    check(f"neg.{name}", [name], lambda a: -a, name)


@pytest.mark.parametrize("name", ["u32", "s32"])
def test_products_of_24_bits(name: str):
    low = name[0] + "24"
    check(f"mul24.lo.{name}", [name] * 2, lambda a, b: wrap(a, low) * wrap(b, low), name)
    check(f"mul24.hi.{name}", [name] * 2, lambda a, b: wrap(a, low) * wrap(b, low) >> 16, name)
    check(f"mad24.lo.{name}", [name] * 3, lambda a, b, c: wrap(a, low) * wrap(b, low) + c, name)
    check(
        f"mad24.hi.{name}",
        [name] * 3,
        lambda a, b, c: (wrap(wrap(a, low) * wrap(b, low) >> 16, name)) + c,
        name,
    )


def halves(value: int, name: str) -> list[int]:
    return [wrap(value >> shift, name) for shift in (0, 16)]


@pytest.mark.parametrize("name", ["u16", "s16"])
def test_packed_halves(name: str):
    def by_halves(function: Any) -> Any:
        def of_registers(a: int, b: int) -> int:
            low, high = (
                function(x, y) & 0xFFFF
                for x, y in zip(halves(a, name), halves(b, name), strict=True)
            )
            return low | high << 16

        return of_registers

    for base, function in [
        ("add", lambda a, b: a + b),
        ("min", min),
        ("max", max),
    ]:
        check(f"{base}.{name}x2", ["u32"] * 2, by_halves(function), "u32")
    if name == "s16":
        check("max.relu.s16x2", ["u32"] * 2, by_halves(lambda a, b: max(a, b, 0)), "u32")


@pytest.mark.parametrize("a_name", ["u", "s"])
@pytest.mark.parametrize("b_name", ["u", "s"])
def test_dot_products(a_name: str, b_name: str):
    total = "u32" if a_name == b_name == "u" else "s32"

    def octets(value: int, sign: str) -> list[int]:
        return [wrap(value >> shift, f"{sign}8") for shift in (0, 8, 16, 24)]

    def four(a: int, b: int, c: int) -> int:
        pairs = zip(octets(a, a_name), octets(b, b_name), strict=True)
        return c + sum(x * y for x, y in pairs)

    def two(part: slice) -> Any:
        def dot(a: int, b: int, c: int) -> int:
            pairs = zip(halves(a, f"{a_name}16"), octets(b, b_name)[part], strict=True)
            return c + sum(x * y for x, y in pairs)

        return dot

    types = f"{a_name}32.{b_name}32"
    check(f"dp4a.{types}", ["u32", "u32", total], four, total)
    check(f"dp2a.lo.{types}", ["u32", "u32", total], two(slice(0, 2)), total)
    check(f"dp2a.hi.{types}", ["u32", "u32", total], two(slice(2, 4)), total)
