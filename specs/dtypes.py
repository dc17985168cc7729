"""Element types of arrays: the dtypes of JAX 0.10 to 0.12, under short names.

The short names follow JAX's own notation, but floats of eight bits or fewer have no underscore:
`bf16`, `i4`, `f8e4m3fn`. JAX's and NumPy's names (`bfloat16`, `int4`, `float8_e4m3fn`) and JAX's
notation (`f8_e4m3fn`) are also accepted.
"""

from __future__ import annotations

from typing import NamedTuple

from pallasc.errors import SpecError
from pallasc.specs.spelling import suggestion


class DType(NamedTuple):
    """An element type.

    Attributes:
        name: the canonical short name, `bf16`.
        jax_name: the attribute of `jax.numpy`, `bfloat16`.
        bits: bits per element in a device buffer. Types under eight bits are packed; `bool` takes a
            whole byte.
    """

    name: str
    jax_name: str
    bits: int


def _integers() -> tuple[DType, ...]:
    sizes = (1, 2, 4, 8, 16, 32, 64)
    return tuple(
        DType(f"{kind[0]}{bits}", f"{kind}{bits}", bits)
        for kind in ("int", "uint")
        for bits in sizes
    )


def _small_floats() -> tuple[DType, ...]:
    kinds = (
        (8, "e4m3fn e5m2 e4m3b11fnuz e4m3fnuz e5m2fnuz e4m3 e3m4 e8m0fnu"),
        (6, "e2m3fn e3m2fn"),
        (4, "e2m1fn"),
    )
    return tuple(
        DType(f"f{bits}{kind}", f"float{bits}_{kind}", bits)
        for bits, names in kinds
        for kind in names.split()
    )


DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        DType("bool", "bool_", 8),
        *_integers(),
        DType("f16", "float16", 16),
        DType("bf16", "bfloat16", 16),
        DType("f32", "float32", 32),
        DType("f64", "float64", 64),
        *_small_floats(),
        DType("c64", "complex64", 64),
        DType("c128", "complex128", 128),
    )
}
"""Every element type by its canonical name."""

ALIASES: dict[str, str] = {
    **{dtype.jax_name: dtype.name for dtype in DTYPES.values()},
    **{f"{name[:2]}_{name[2:]}": name for name in DTYPES if name[0] == "f" and "e" in name},
}
"""Other accepted spellings, mapped to the canonical names."""


def parse_dtype(text: str) -> DType:
    """Return the element type with this name or alias.

    Raises:
        SpecError: the name is unknown; the hint suggests the nearest spelling.
    """
    dtype = DTYPES.get(ALIASES.get(text, text))
    if dtype is None:
        raise SpecError(f"unknown dtype {text!r}.", hint=suggestion(text, [*DTYPES, *ALIASES]))
    return dtype
