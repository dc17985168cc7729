"""What arithmetic instructions give for patterns of bits, in rational numbers and integers.

Nothing here uses the emulator's own arithmetic or NumPy's rounding.
"""

import functools
import math
import operator
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from float_formats import (
    BF16,
    F16,
    F32,
    FORMATS,
    ORDERED,
    TF32,
    Ieee,
    compared,
    exact,
    flush,
    rounded,
)

from pallasc.emulator.numbers.table import find


def run(opcode: str, *operands: Any, **shape: Any) -> Any:
    """Apply an instruction to lists or arrays of raw bits or values, whatever warns fails."""
    arithmetic = find(opcode, **shape)
    assert arithmetic is not None, opcode
    assert len(operands) == len(arithmetic.sources), opcode
    arrays = [
        operand if isinstance(operand, np.ndarray) else bits(operand, dtype)
        for operand, dtype in zip(operands, arithmetic.sources, strict=True)
    ]
    for array, dtype in zip(arrays, arithmetic.sources, strict=True):
        assert array.dtype == dtype, (opcode, array.dtype, dtype)
    before = [array.tobytes() for array in arrays]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = arithmetic.apply(*arrays)
    assert [array.tobytes() for array in arrays] == before, f"{opcode} changed an operand"
    several = results if isinstance(results, tuple) else (results,)
    assert [r.dtype for r in several] == list(arithmetic.results), opcode
    assert all(r.shape == arrays[0].shape for r in several), opcode
    assert all(r.flags.c_contiguous for r in several), opcode
    assert not any(np.shares_memory(r, a) for r in several for a in arrays), opcode
    return results


def bits(values: Any, dtype: Any) -> Any:
    """Return raw integers as an array of any type; negative ones count from the top."""
    if dtype == np.bool_:
        return np.array(values, np.bool_)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    mask = (1 << (8 * dtype.itemsize)) - 1
    return np.array([int(v) & mask for v in values], unsigned).view(dtype)


def raw(array: Any) -> list[int]:
    """Return an array's elements as the integers of their bits."""
    if array.dtype == np.bool_:
        return [int(v) for v in array]
    return [int(v) for v in array.view(np.dtype(f"u{array.dtype.itemsize}")).ravel()]


Values = Sequence[int]
"""Of one lane: the bits of each source."""


def expected(opcode: str, values: Values) -> tuple[int, ...]:
    """Return the bits of each result of an instruction for one lane."""
    base, *modifiers = opcode.split(".")
    kind = modifiers[-1]
    if base == "cvt":
        return (converted(modifiers, values),)
    if base in ("setp", "set"):
        return _compare(base, modifiers, values)
    if base in ("selp", "slct"):
        return (_chosen(base, modifiers, values),)
    if kind.endswith("x2"):
        return (_in_halves(opcode, values),)
    if kind in FORMATS:
        return _of_floats(base, modifiers, values)
    return _of_integers(base, modifiers, values)


def _in_halves(opcode: str, values: Values) -> int:
    kind = opcode.rpartition(".")[2].removesuffix("x2")
    width = width_of(kind)
    mask = (1 << width) - 1
    (low,) = expected(opcode.removesuffix("x2"), [v & mask for v in values])
    (high,) = expected(opcode.removesuffix("x2"), [v >> width for v in values])
    return low | high << width


def width_of(kind: str) -> int:
    """Return the bits of a type."""
    return {"pred": 1, "bf16": 16, "tf32": 32}.get(kind) or int(kind[1:])


def number(bits: int, kind: str) -> int:
    """Return the integer that bits of a type stand for; the higher ones do not count."""
    width = width_of(kind)
    bits &= (1 << width) - 1
    return bits - (1 << width) if kind[0] == "s" and bits >> (width - 1) else bits


def clamped(value: int, kind: str) -> int:
    """Return the nearest integer of a type."""
    half = 1 << (width_of(kind) - 1)
    low, high = (-half, half - 1) if kind[0] == "s" else (0, 2 * half - 1)
    return min(max(value, low), high)


# Comparisons and selections.

_ALIASES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_JOINS = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}


def _compare(base: str, modifiers: list[str], values: Values) -> tuple[int, ...]:
    comparison, *_, kind = modifiers
    element = kind.removesuffix("x2")
    width, packed = width_of(element), kind.endswith("x2")
    truths = []
    for shift in (0, width) if packed else (0,):
        a, b = (value >> shift & ((1 << width) - 1) for value in values[:2])
        truth = int(_holds(comparison, element, a, b, ftz="ftz" in modifiers))
        join = next((m for m in modifiers if m in _JOINS), None)
        truths.append(_JOINS[join](truth, values[2]) if join else truth)
    if base == "setp":
        return tuple(truths)
    to = modifiers[-2]
    form = FORMATS.get(to.removesuffix("x2"))
    width = 16 if packed else width_of(to)
    one = (1 << width) - 1 if form is None else form.bias << form.mantissa
    return (sum(truth * one << 16 * n for n, truth in enumerate(truths)),)


def _holds(comparison: str, kind: str, a: int, b: int, *, ftz: bool) -> bool:
    form = FORMATS.get(kind)
    if form is None:
        return ORDERED[_ALIASES.get(comparison, comparison)](number(a, kind), number(b, kind))
    a, b = (flush(v, form) if ftz else v for v in (a, b))
    return compared(comparison, form.decode(a), form.decode(b))


def _chosen(base: str, modifiers: list[str], values: Values) -> int:
    a, b, which = values
    if base == "selp":
        return a if which else b
    if modifiers[-1] == "s32":
        return a if number(which, "s32") >= 0 else b
    return a if F32.decode(flush(which, F32) if "ftz" in modifiers else which) >= 0 else b


# Floats.


def _of_floats(base: str, modifiers: list[str], values: Values) -> tuple[int, ...]:
    form = FORMATS[modifiers[-1]]
    if len(modifiers) > 1 and modifiers[-2] in FORMATS:  # the last source is wider
        narrow, form = form, FORMATS[modifiers[-2]]
        widened = [form.encode_any(narrow.decode(v)) for v in values[:-1]]
        values = (*widened, values[-1])
    sizes = [v & ~form.sign for v in values]
    if base == "testp":
        return (int(_is_class(modifiers[0], sizes[0], form)),)
    if base == "copysign":
        return (sizes[1] | values[0] & form.sign,)
    if "ftz" in modifiers and base in ("abs", "neg", "min", "max", "sqrt"):
        values = [flush(v, form) for v in values]
    if base == "abs":
        return (values[0] & ~form.sign,)
    if base == "neg":
        return (values[0] ^ form.sign,)
    if base in ("min", "max"):
        return (extreme(base, modifiers, values, form),)
    if base == "sqrt":
        return (_root(values[0], form, modifiers[0]),)
    return (result(base, values, form, modifiers),)


def _is_class(name: str, size: int, form: Ieee) -> bool:
    return {
        "finite": size < form.infinity,
        "infinite": size == form.infinity,
        "number": size <= form.infinity,
        "notanumber": size > form.infinity,
        "normal": size == 0 or form.smallest_normal <= size < form.infinity,
        "subnormal": 0 < size < form.smallest_normal,
    }[name]


def extreme(base: str, modifiers: Sequence[str], values: Values, form: Ieee) -> int:
    """Return the least or greatest of two or three numbers."""
    if "abs" in modifiers:
        sign = functools.reduce(operator.xor, values) & form.sign if "xorsign" in modifiers else 0
        rest = [m for m in modifiers if m != "abs"]
        best = extreme(base, rest, [v & ~form.sign for v in values], form)
        return best if best == form.nan else best | sign
    numbers = [form.decode(v) for v in values]
    known = [v for v in numbers if not math.isnan(v)]
    if not known or ("NaN" in modifiers and len(known) < len(numbers)):
        return form.nan
    choose = min if base == "min" else max
    return form.encode_any(choose(known, key=lambda v: (v, math.copysign(1, v))))


def _root(pattern: int, form: Ieee, mode: str) -> int:
    value = form.decode(pattern)
    if math.isnan(value) or value < 0:
        return form.nan
    if value == 0 or math.isinf(value):
        return pattern
    # The root with enough bits that whatever follows them can only decide a tie that is none.
    scale = 400 if form is F32 else 2400
    scaled = Fraction(value) * 4**scale
    whole = math.isqrt(scaled.numerator // scaled.denominator)
    inexact = Fraction(whole) ** 2 != scaled
    return form.encode(Fraction(2 * whole + inexact, 2) / 2**scale, mode)


def result(base: str, operands: Values, form: Ieee, modifiers: Sequence[str]) -> int:
    """Return a sum, product, or quotient, rounded once, for patterns."""
    mode = next((m for m in modifiers if m in ("rn", "rz", "rm", "rp")), "rn")
    if "ftz" in modifiers:
        operands = [flush(o, form) for o in operands]
    pattern = rounded(exact(base, [form.decode(o) for o in operands], mode), form, mode)
    if "ftz" in modifiers:
        pattern = flush(pattern, form)
    if "sat" in modifiers:
        return _saturated(pattern, form)
    return 0 if "relu" in modifiers and pattern & form.sign else pattern


def _saturated(pattern: int, form: Ieee) -> int:
    value = form.decode(pattern)
    inside = not (math.isnan(value) or pattern & form.sign)
    return min(pattern, form.bias << form.mantissa) if inside else 0


# Integers.


def _of_integers(base: str, modifiers: list[str], values: Values) -> tuple[int, ...]:
    kind = "b32" if base == "prmt" else modifiers[-1]
    width = width_of(kind)
    if base.removesuffix("c") in ("add", "sub", "mad") and (base[-1] == "c" or "cc" in modifiers):
        return _with_carry(base, modifiers, values)
    if base == "lop3" and len(values) == 5:
        found = _looked_up(*values[:4])
        return found, _JOINS[modifiers[0]](int(found != 0), values[4])
    if base in ("mul", "mad"):
        value = _product(modifiers, values[:2])
        width *= 2 if modifiers[0] == "wide" else 1
        value += number(values[2], kind[0] + str(width)) if base == "mad" else 0
    elif base in _LOGIC:
        value = _LOGIC[base](modifiers, width, *values)
        width = 32 if base in ("popc", "clz", "bfind") else width
    else:
        value = _PLAIN[base](modifiers, *(number(v, kind) for v in values))
    if "sat" in modifiers:
        value = clamped(value, kind)
    return (value & ((1 << width) - 1),)


def _product(modifiers: list[str], values: Values) -> int:
    kind = modifiers[-1]
    value = number(values[0], kind) * number(values[1], kind)
    return value >> width_of(kind) if modifiers[0] == "hi" else value


def _with_carry(base: str, modifiers: list[str], values: Values) -> tuple[int, ...]:
    kind, reads = modifiers[-1], base[-1] == "c"
    width, carry = width_of(kind), values[-1] if reads else 0
    a, b = values[:2]
    if base.startswith("mad"):
        a, b = _product(modifiers, values[:2]) % (1 << width), values[2]
    whole = a - b - carry if base.startswith("sub") else a + b + carry
    out = (int(not 0 <= whole < 1 << width),) if "cc" in modifiers else ()
    return whole % (1 << width), *out


def _quotient_of(a: int, b: int) -> int:
    size = abs(a) // abs(b) if b else 1
    return -size if (a < 0) != (b < 0) or b == 0 else size


def _best(modifiers: list[str], a: int, b: int, choose: Callable[..., int]) -> int:
    return max(choose(a, b), 0) if "relu" in modifiers else choose(a, b)


_PLAIN: dict[str, Callable[..., int]] = {
    "add": lambda m, a, b: a + b,
    "sub": lambda m, a, b: a - b,
    "div": lambda m, a, b: _quotient_of(a, b),
    "rem": lambda m, a, b: a - b * _quotient_of(a, b) if b else -1,
    "min": lambda m, a, b: _best(m, a, b, min),
    "max": lambda m, a, b: _best(m, a, b, max),
    "abs": lambda m, a: abs(a),
    "neg": lambda m, a: -a,
}
"""Of modifiers and numbers of the type."""


def _looked_up(a: int, b: int, c: int, table: int) -> int:
    value = 0
    for bit in range(32):
        index = (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | (c >> bit & 1)
        value |= (table >> index & 1) << bit
    return value


def _shifted_right(modifiers: list[str], width: int, a: int, count: int) -> int:
    return number(a, modifiers[-1]) >> min(count, width)


def _funnel(modifiers: list[str], width: int, a: int, b: int, count: int) -> int:
    count = min(count, 32) if "clamp" in modifiers else count & 31
    both = b << 32 | a
    return both << count >> 32 if "l" in modifiers else both >> count


def _highest(modifiers: list[str], width: int, a: int) -> int:
    value = number(a, modifiers[-1])
    at = (~value if value < 0 else value).bit_length() - 1
    return width - 1 - at if "shiftamt" in modifiers and at >= 0 else at


def _extracted(modifiers: list[str], width: int, a: int, b: int, c: int) -> int:
    """Follow the manual's loop over bits."""
    top, position, length = width - 1, b & 255, c & 255
    signed = modifiers[-1][0] == "s" and length
    sign = a >> min(position + length - 1, top) & 1 if signed else 0
    value = 0
    for i in range(width):
        inside = i < length and position + i <= top
        value |= (a >> (position + i) & 1 if inside else sign) << i
    return value


def _inserted(modifiers: list[str], width: int, a: int, b: int, c: int, d: int) -> int:
    position, length = c & 255, d & 255
    for i in range(min(length, width - position)):
        b = b & ~(1 << (position + i)) | (a >> i & 1) << (position + i)
    return b


def _bits_of(modifiers: list[str], b: int) -> int:
    return b & 31 if "wrap" in modifiers else min(b, 32)


def _extended(modifiers: list[str], width: int, a: int, b: int) -> int:
    count = _bits_of(modifiers, b)
    return number(a, f"{modifiers[-1][0]}{count}") if count else 0


def _mask(modifiers: list[str], width: int, a: int, b: int) -> int:
    start = a & 31 if "wrap" in modifiers else a
    return ((1 << _bits_of(modifiers, b)) - 1) << start if start < 32 else 0


# The manual's tables: bytes 3 to 0 of the result.
_PERMUTED = {
    "f4e": ["3210", "4321", "5432", "6543"],
    "b4e": ["5670", "6701", "7012", "0123"],
    "rc8": ["0000", "1111", "2222", "3333"],
    "ecl": ["3210", "3211", "3222", "3333"],
    "ecr": ["0000", "1110", "2210", "3210"],
    "rc16": ["1010", "3232", "1010", "3232"],
}


def _permuted(modifiers: list[str], width: int, a: int, b: int, c: int) -> int:
    octets = (a | b << 32).to_bytes(8, "little")
    if (table := _PERMUTED.get(modifiers[-1])) is not None:
        return int.from_bytes(bytes(octets[int(digit)] for digit in table[c & 3]), "big")
    value = 0
    for index in range(4):
        nibble = c >> (4 * index) & 15
        octet = octets[nibble & 7]
        value |= (octet if nibble < 8 else 255 * (octet >> 7)) << (8 * index)
    return value


_LOGIC: dict[str, Callable[..., int]] = {
    "and": lambda m, w, a, b: a & b,
    "or": lambda m, w, a, b: a | b,
    "xor": lambda m, w, a, b: a ^ b,
    "not": lambda m, w, a: ~a,
    "lop3": lambda m, w, *given: _looked_up(*given),
    "shl": lambda m, w, a, count: a << min(count, w),
    "shr": _shifted_right,
    "shf": _funnel,
    "popc": lambda m, w, a: a.bit_count(),
    "clz": lambda m, w, a: w - a.bit_length(),
    "brev": lambda m, w, a: int(f"{a:0{w}b}"[::-1], 2),
    "bfind": _highest,
    "bfe": _extracted,
    "bfi": _inserted,
    "szext": _extended,
    "bmsk": _mask,
    "prmt": _permuted,
}
"""Of modifiers, the width of the type, and bits."""

# Conversions.

_INTEGRAL: dict[str, Callable[[Fraction], int]] = {
    "rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil,
}  # fmt: skip


def converted(modifiers: list[str], values: Values) -> int:
    """Return what `cvt` gives for one lane."""
    *rest, target, source = modifiers
    if target == "ue8m0x2":
        halves = values if source == "f32" else [v << 16 for v in _split(values[0], 16)]
        high, low = (_power(v, rest) for v in halves)
        return high << 8 | low
    if source == "ue8m0x2":
        powers = [math.nan if v == 255 else 2.0 ** (v - 127) for v in _split(values[0], 8)]
        return _joined(BF16, powers)
    if target in NARROW:
        form = {"f32": F32, "f16x2": F16, "bf16x2": BF16}[source]
        numbers = values if source == "f32" else _split(values[0], 16)
        high, low = (encoded(target, form.decode(v), relu="relu" in rest) for v in numbers)
        return high << NARROW[target].storage | low
    if source in NARROW:
        pair = [decoded(source, v) for v in _split(values[0], NARROW[source].storage)]
        relu = [0.0 if v <= 0 else v for v in pair] if "relu" in rest else pair
        return _joined(FORMATS[target[:-2]], relu)
    if target.endswith("x2"):
        high, low = (converted([*rest, target[:-2], source], [v]) for v in values)
        return high << 16 | low
    return _scalar(rest, target, source, values[0])


def _split(word: int, width: int) -> tuple[int, int]:
    return word >> width, word & ((1 << width) - 1)


def _joined(form: Ieee, numbers: Sequence[float]) -> int:
    high, low = (form.encode_any(v) for v in numbers)
    return high << 16 | low


def _scalar(modifiers: list[str], target: str, source: str, bits: int) -> int:
    to = TF32 if target == "tf32" else FORMATS.get(target)
    if source not in FORMATS:
        value = number(bits, source)
        if to is None:
            return clamped(value, target) if "sat" in modifiers else value
        pattern = rounded(Fraction(value) if value else 0.0, to, modifiers[0])
        return _saturated(pattern, to) if "sat" in modifiers else pattern
    form = FORMATS[source]
    if "ftz" in modifiers and form is F32:
        bits = flush(bits, form)
    value = form.decode(bits)
    integral = next((_INTEGRAL[m] for m in modifiers if m in _INTEGRAL), None)
    if to is None:
        return _to_integer(value, target, source, integral)
    if integral is not None and math.isfinite(value):
        whole = integral(Fraction(value))
        value = float(whole) if whole else math.copysign(0.0, value)
    mode = next((m for m in modifiers if m in ("rn", "rz", "rm", "rp", "rna")), "rn")
    pattern = rounded(value, to, mode, finite="satfinite" in modifiers)
    if "ftz" in modifiers and to is F32:
        pattern = flush(pattern, to)
    if "sat" in modifiers:
        pattern = _saturated(pattern, to)
    if "relu" in modifiers and pattern & to.sign and pattern != to.nan:
        pattern = 0
    return pattern << 13 if target == "tf32" and pattern != to.nan else pattern


def _to_integer(value: float, target: str, source: str, integral: Any) -> int:
    width = width_of(target)
    if math.isnan(value):
        return 1 << (width - 1) if source == "f64" or width == 64 else 0
    if math.isinf(value):
        return clamped(1 << 99 if value > 0 else -(1 << 99), target)
    return clamped(integral(Fraction(value)), target)


def _power(pattern: int, modifiers: list[str]) -> int:
    """Return an exponent as `ue8m0` has it; the sign does not count."""
    value = abs(F32.decode(pattern))
    if math.isnan(value) or value == 0:
        return 255 if value else 0
    if math.isinf(value):
        return 254 if "satfinite" in modifiers else 255
    mantissa, exponent = math.frexp(value)
    power = exponent - 1 + ("rp" in modifiers and mantissa > 0.5)
    return min(max(power + 127, 0), 254 if "satfinite" in modifiers else 255)


@dataclass(frozen=True)
class Narrow:
    """A format of at most 8 bits, of which a register holds two."""

    exponent: int
    mantissa: int
    nan: int
    largest: int
    storage: int = 8


NARROW = {
    "e4m3x2": Narrow(4, 3, 0x7F, 0x7E),
    "e5m2x2": Narrow(5, 2, 0x7F, 0x7B),
    "e2m3x2": Narrow(2, 3, 0x1F, 0x1F),
    "e3m2x2": Narrow(3, 2, 0x1F, 0x1F),
    "e2m1x2": Narrow(2, 1, 0x7, 0x7, storage=4),
}


@functools.cache
def decoded(name: str, pattern: int) -> float:
    """Return a number of a narrow format, worked out from its bits."""
    form = NARROW[name]
    sign = 1 << (form.exponent + form.mantissa)
    size = pattern & (sign - 1)
    if size > form.largest:
        if name == "e5m2x2" and size == 0x7C:
            return -math.inf if pattern & sign else math.inf
        return math.nan
    exponent, mantissa = size >> form.mantissa, size & ((1 << form.mantissa) - 1)
    bias = (1 << (form.exponent - 1)) - 1
    if exponent:
        mantissa += 1 << form.mantissa
    value = math.ldexp(mantissa, max(exponent, 1) - bias - form.mantissa)
    return -value if pattern & sign else value


def encoded(name: str, value: float, *, relu: bool = False) -> int:
    """Return the nearest pattern by trying all; a tie goes to the even one."""
    form = NARROW[name]
    if math.isnan(value):
        return form.nan
    negative = math.copysign(1, value) < 0
    if negative and relu:
        return 0
    if abs(value) > 2 * decoded(name, form.largest):
        best = form.largest
    else:
        # All these are multiples of 2**-60, so that their differences as doubles are exact.
        sizes = range(form.largest + 1)
        best = min((abs(decoded(name, p) - abs(value)), p % 2, p) for p in sizes)[2]
    return best | negative << (form.exponent + form.mantissa)
