"""Every arithmetic mnemonic that real kernels contain is known, and nothing else is guessed."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from number_vectors import bits

from pallasc.emulator.numbers.table import Arithmetic, find, known_opcodes
from pallasc.errors import UnsupportedError

# What the kernels of the library and of the coverage table compile to, for sm_80 to sm_120a.
_REAL = {
    "abs": "f32",
    "add": "bf16x2 f16x2 f32 f32x2 rn.f32 s32 s64 u64",
    "and": "b16 b32 b64 pred",
    "copysign": "f32",
    "cvt": (
        "f32.bf16 f64.f32 rn.bf16x2.f32 rn.f16x2.f32 rn.f32.u32 s64.s32 sat.f32.f32 u16.u32 "
        "u32.u16 u32.u64 u64.u32"
    ),
    "div": "full.f32",
    "ex2": "approx.ftz.f32",
    "fma": "rm.f32 rn.bf16x2 rn.f32 rn.f32x2",
    "mad": "lo.s32 lo.s64",
    "max": "NaN.f32 s32 u32 u64",
    "min": "NaN.f32 s32 u64",
    "mul": "f32 f32x2 hi.u16 hi.u32 hi.u64 lo.s16 lo.s32 lo.s64 rn.f32 wide.s32 wide.u16 wide.u32",
    "neg": "f32",
    "not": "pred",
    "or": "b16 b32 b64",
    "prmt": "b32",
    "rcp": "approx.ftz.f32",
    "rsqrt": "approx.f32",
    "selp": "b32 b64 f32",
    "setp": (
        "eq.and.b32 eq.b32 eq.or.b32 ge.f32 ge.s32 gt.and.f32 gt.f32 gt.s32 gt.u32 le.and.s32 "
        "leu.f32 lt.and.s32 lt.and.u32 lt.or.s32 lt.s32 lt.u32 ne.and.b32 ne.b16 ne.b32 ne.b64 "
        "ne.or.b32"
    ),
    "shl": "b16 b32 b64",
    "shr": "s32 s64 u16 u32 u64",
    "sub": "bf16x2 f32 f32x2 s16 s32 s64",
    "xor": "b32",
}
REAL = [f"{base}.{rest}" for base, rests in _REAL.items() for rest in rests.split(" ")]


@pytest.mark.parametrize("opcode", REAL)
def test_what_real_kernels_contain_is_found(opcode: str):
    assert isinstance(find(opcode), Arithmetic)


def expand(pattern: str) -> list[str]:
    """Return the mnemonics of a pattern: `[...]` may be absent, `(a|b)` is one of several."""
    texts, rest = _expand(pattern, stop="")
    assert rest == ""
    return texts


def _expand(pattern: str, *, stop: str) -> tuple[list[str], str]:
    texts = [""]
    while pattern and pattern[0] not in stop:
        head, pattern = pattern[0], pattern[1:]
        pieces = [head]
        if head == "[":
            pieces, pattern = _expand(pattern, stop="]")
            pieces, pattern = [*pieces, ""], pattern[1:]
        elif head == "(":
            pieces = []
            while True:
                more, pattern = _expand(pattern, stop="|)")
                pieces += more
                closing, pattern = pattern[0], pattern[1:]
                if closing == ")":
                    break
        texts = [text + piece for text in texts for piece in pieces]
    return texts, pattern


@pytest.mark.parametrize("pattern", [pattern for pattern, _ in known_opcodes()])
def test_every_known_pattern_is_found_and_computes(pattern: str):
    generator = np.random.default_rng(1)
    for opcode in expand(pattern):
        arithmetic = find(opcode)
        assert arithmetic is not None, opcode
        operands = [
            bits(generator.integers(0, 2, 32), dtype)
            if dtype == np.bool_
            else bits(generator.integers(0, 2**63, 32), dtype)
            for dtype in arithmetic.sources
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            results = arithmetic.apply(*operands)
        several = results if isinstance(results, tuple) else (results,)
        assert [r.dtype for r in several] == list(arithmetic.results), opcode
        assert all(r.shape == (32,) for r in several), opcode


def test_real_mnemonics_are_among_the_known_patterns():
    known = {opcode for pattern, _ in known_opcodes() for opcode in expand(pattern)}
    assert set(REAL) <= known
    assert len(known) > 3000


@pytest.mark.parametrize(
    ("opcode", "part"),
    [
        ("add.rn.foo.f32", ".foo"),
        ("add.rna.f32", ".rna"),
        ("add.sat.u32", ".sat"),
        ("add.ftz.bf16", ".ftz"),
        ("fma.f32", ".rn, .rz, .rm, .rp"),
        ("fma.rn.oob.f16", ".oob"),
        ("add.cc.u16", ".u16"),
        ("addc.sat.u32", ".sat"),
        ("madc.cc.u32", ".lo, .hi"),
        ("mul.u32", ".lo, .hi, .wide"),
        ("mul.wide.u64", ".lo, .hi"),
        ("div.f32", ".rn"),
        ("ex2.f32", ".approx"),
        ("ex2.approx.bf16", ".ftz"),
        ("max.xorsign.f32", ".abs"),
        ("setp.lt.b32", ".eq, .ne"),
        ("setp.lo.s32", ".eq"),
        ("setp.equ.u32", ".eq"),
        ("cvt.rs.satfinite.e4m3x4.f32", ".e4m3x4"),
        ("cvt.rs.f16x2.f32", ".rn, .rz"),
        ("cvt.rn.e4m3x2.f32", ".satfinite"),
        ("cvt.f16.f32", ".rn"),
        ("cvt.s32.f32", ".rni"),
        ("cvt.rn.satfinite.scaled::n2::ue8m0.s2f6x2.f32", ".s2f6x2"),
        ("cvt.f32", "two types"),
        ("prmt.b32.xyz", ".xyz"),
        ("shf.l.b32", ".clamp, .wrap"),
        ("shl.u32", ".u32"),
        ("and", ".pred"),
        ("lop3.xor.b32", ".xor"),
    ],
)
def test_what_is_not_known_is_refused_by_name(opcode: str, part: str):
    with pytest.raises(UnsupportedError) as caught:
        find(opcode)
    assert opcode in caught.value.message
    assert part in caught.value.message


def test_a_count_of_operands_that_is_not_known_is_refused():
    with pytest.raises(UnsupportedError, match="2 destinations"):
        find("add.s32", destinations=2)
    with pytest.raises(UnsupportedError, match="3 sources"):
        find("add.s32", sources=3)
    with pytest.raises(UnsupportedError, match="three operands"):
        find("max.f64", sources=3)
