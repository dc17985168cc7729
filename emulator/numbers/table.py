"""All arithmetic PTX instructions that the emulator supports, by mnemonic."""

from __future__ import annotations

import functools
from collections.abc import Callable

from pallasc.emulator.numbers import conversions, floats, integers
from pallasc.emulator.numbers.rounding import FLOATS, PACKED, Arithmetic, Mnemonic

__all__ = ["BASES", "Arithmetic", "find", "known_opcodes"]

Builder = Callable[[Mnemonic], Arithmetic]

_INTEGER_PACKED = ("u16x2", "s16x2")


def _is_float(mnemonic: Mnemonic) -> bool:
    return any(
        (part in FLOATS or part in PACKED) and part not in _INTEGER_PACKED
        for part in mnemonic.parts
    )


def _by_type(of_floats: Builder, of_integers: Builder) -> Builder:
    def build(mnemonic: Mnemonic) -> Arithmetic:
        return (of_floats if _is_float(mnemonic) else of_integers)(mnemonic)

    return build


def _by_precision(exactly: Builder) -> Builder:
    def build(mnemonic: Mnemonic) -> Arithmetic:
        rough = "approx" in mnemonic.parts
        return (floats.build_approximation if rough else exactly)(mnemonic)

    return build


def _build_conversion(mnemonic: Mnemonic) -> Arithmetic:
    """Build `cvt` by its last two parts, the types of result and source."""
    if mnemonic.flag("pack"):
        return conversions.build_pack(mnemonic)
    if len(mnemonic.parts) < 2:
        raise mnemonic.refused("it needs two types")
    target, source = mnemonic.parts[-2:]
    if target == "tf32":
        return conversions.build_tf32(mnemonic)
    if target == "ue8m0x2":
        return conversions.build_exponents(mnemonic)
    if source == "ue8m0x2":
        return conversions.build_powers(mnemonic)
    if target in conversions.NARROW:
        return conversions.build_encoding(mnemonic)
    if source in conversions.NARROW:
        return conversions.build_decoding(mnemonic)
    if target in PACKED:
        return conversions.build_halves(mnemonic)
    return conversions.build_scalar(mnemonic)


_BUILDERS: dict[str, Builder] = {
    **floats.BUILDERS,
    **integers.BUILDERS,
    "add": _by_type(floats.build_sum, integers.build_sum),
    "sub": _by_type(floats.build_sum, integers.build_sum),
    "mul": _by_type(floats.build_sum, integers.build_product),
    "mad": _by_type(floats.build_sum, integers.build_product),
    "div": _by_type(floats.build_division, integers.build_simple),
    "min": _by_type(floats.build_extreme, integers.build_extreme),
    "max": _by_type(floats.build_extreme, integers.build_extreme),
    "abs": _by_type(floats.build_sign, integers.build_simple),
    "neg": _by_type(floats.build_sign, integers.build_simple),
    "sqrt": _by_precision(floats.build_root),
    "rcp": _by_precision(floats.build_root),
    "cvt": _build_conversion,
}
BASES = frozenset(_BUILDERS)
"""The first parts of arithmetic mnemonics that neither read nor write the carry flag."""


@functools.lru_cache(maxsize=4096)
def find(opcode: str, *, destinations: int = 1, sources: int | None = None) -> Arithmetic | None:
    """Return the arithmetic of an instruction.

    Args:
        opcode: the whole mnemonic, such as `add.rn.f32`.
        destinations: number of destinations: 2 for `setp` with `p|q`, which then has two results.
        sources: 3 for `min` and `max` of three operands; None if the opcode determines it.

    Returns:
        None if the base of the mnemonic is not an arithmetic instruction.

    Raises:
        UnsupportedError: the base is known, but another part of the mnemonic is not.
    """
    mnemonic = Mnemonic(opcode, destinations=destinations, sources=sources)
    if mnemonic.base in integers.READERS or (
        mnemonic.base in ("add", "sub", "mad") and "cc" in mnemonic.parts
    ):
        return integers.build_carry(mnemonic)
    build = _BUILDERS.get(mnemonic.base)
    return None if build is None else build(mnemonic)


def known_opcodes() -> list[tuple[str, str]]:
    """Return every supported pattern of mnemonics, with a note on its result.

    In a pattern, `[...]` is optional and `(a|b)` is one of several.
    """
    return [*floats.KNOWN, *integers.KNOWN, *conversions.KNOWN]
