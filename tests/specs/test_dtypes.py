"""The element types, against JAX's own list."""

from __future__ import annotations

import pytest

from pallasc.errors import SpecError
from pallasc.specs.arrays import ALIASES, DTYPES, DType, parse_dtype


@pytest.mark.parametrize(
    ("text", "name", "bits"),
    [
        ("bfloat16", "bf16", 16),
        ("int4", "i4", 4),
        ("f8_e4m3fn", "f8e4m3fn", 8),
        ("float4_e2m1fn", "f4e2m1fn", 4),
        ("bool_", "bool", 8),
        ("complex128", "c128", 128),
    ],
)
def test_parse_dtype_accepts_short_names_and_those_of_jax(text: str, name: str, bits: int) -> None:
    dtype = parse_dtype(text)
    assert (dtype.name, dtype.bits) == (name, bits)


@pytest.mark.parametrize(("text", "hint"), [("float23", "'float32'"), ("f8e4m3fnn", "'f8e4m3fn'")])
def test_parse_dtype_names_the_nearest_spelling(text: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_dtype(text)
    assert str(caught.value) == f"unknown dtype {text!r}.\n  Did you mean {hint}?"


def test_no_alias_hides_a_canonical_name() -> None:
    assert [alias for alias in ALIASES if ALIASES[alias] != alias and alias in DTYPES] == []


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
def test_jax_has_the_dtype_under_its_name_and_width(dtype: DType) -> None:
    jax = pytest.importorskip("jax")
    known = jax.numpy.dtype(getattr(jax.numpy, dtype.jax_name))
    assert known.name == dtype.jax_name.removesuffix("_")
    assert dtype.bits == (8 if dtype.name == "bool" else jax.dtypes.itemsize_bits(known))


def test_every_dtype_of_jax_has_a_name() -> None:
    jnp = pytest.importorskip("jax.numpy")
    scalars = (getattr(jnp, name) for name in dir(jnp))
    found = {jnp.dtype(item).name for item in scalars if isinstance(item, type(jnp.float32))}
    assert found == {dtype.jax_name.removesuffix("_") for dtype in DTYPES.values()}
