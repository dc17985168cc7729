"""The notation of arrays and of their element types."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallasc.errors import SpecError
from pallasc.specs.arrays import (
    DTYPES,
    ArraySpec,
    DType,
    layout_of,
    parse_dtype,
    resolve_array,
    strides_of,
)
from pallasc.specs.canonical import Scalar


@pytest.mark.parametrize(
    ("text", "params", "canonical"),
    [
        ("bfloat16[1024,4096]", {}, "bf16[1024, 4096]"),
        (" f32 [ 8 ] ", {}, "f32[8]"),
        ("f32[]", {}, "f32[]"),
        ("i4[0, 3]", {}, "i4[0, 3]"),
        ("f8_e4m3fn[{m}, {m // 2}, {m * 2 + 1}]", {"m": 10}, "f8e4m3fn[10, 5, 21]"),
        ("{dtype}[{m}]", {"m": 2, "dtype": "float16"}, "f16[2]"),
    ],
)
def test_resolve_gives_the_canonical_notation(
    text: str, params: dict[str, Scalar], canonical: str
) -> None:
    assert str(resolve_array(text, params)) == canonical


@given(
    st.builds(
        ArraySpec,
        dtype=st.sampled_from(sorted(DTYPES)),
        shape=st.lists(st.integers(0, 2**58) | st.integers(0, 9), max_size=5)
        .filter(lambda shape: math.prod(shape) < 2**58)
        .map(tuple),
    )
)
def test_the_notation_reads_back_as_the_same_array(array: ArraySpec) -> None:
    assert resolve_array(str(array)) == array


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("bf16[3, 5]", 30), ("i2[9]", 3), ("bool[7]", 7), ("f32[0, 9]", 0), ("c128[2]", 32)],
)
def test_nbytes_packs_elements_under_a_byte(text: str, nbytes: int) -> None:
    assert resolve_array(text).nbytes == nbytes


@pytest.mark.parametrize(
    ("text", "params", "message"),
    [
        ("f32[8]]", {}, "'f32[8]]' is not an array."),
        ("[8]", {}, "'[8]' is not an array."),
        ("f32[1.5]", {}, "'f32[1.5]': '1.5' is not a dimension."),
        ("f32[{m}0]", {}, "'f32[{m}0]': '{m}0' is not a dimension."),
        ("f32[4,096]", {}, "'f32[4,096]': '096' is not a dimension."),
        ("f32[²]", {}, "'f32[²]': '²' is not a dimension."),
        ("f32[8, {m}]", {"m": True}, "'f32[8, {m}]': dimension 1 is true with m=true."),
        ("f32[{m}]", {"m": "8"}, "'f32[{m}]': dimension 0 is '8' with m=8."),
        ("f32[9223372036854775808]", {}, "'f32[9223372036854775808]': dimension 0 is 92233"),
        ("{t}[8]", {"t": 32}, "unknown dtype '32'."),
        ("f32[4294967296, 536870912]", {}, f"takes {2**63} bytes."),
        ("i4[4611686018427387904, 4]", {}, f"takes {2**63} bytes."),
        ("f32[4, 8]{0}", {}, "the layout {0} does not name each of 2 dimensions once"),
        ("f32[4, 8]{0,2}", {}, "the layout {0,2} does not name each of 2 dimensions once"),
        ("f32[4, 8]{m}", {}, "is not an array"),
        ("i4[4, 8]{0,1}", {}, "a type of 4 bits has no layout but row-major"),
    ],
)
def test_what_is_no_array_is_refused(text: str, params: dict[str, Scalar], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        resolve_array(text, params)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("text", "layout", "strides"),
    [
        ("f32[4, 8]{1,0}", None, (8, 1)),
        ("f32[4, 8]{0,1}", (0, 1), (1, 4)),
        ("f32[2, 3, 4]{1, 2, 0}", (1, 2, 0), (12, 1, 3)),
        ("f32[1, 8]{0,1}", None, (8, 1)),
        ("f32[0, 8]{0,1}", None, (8, 1)),
        ("f32[2, 1, 4]{0,1,2}", (0, 2, 1), (1, 8, 2)),
    ],
)
def test_a_layout_says_the_order_in_memory(text: str, layout: Any, strides: Any) -> None:
    array = resolve_array(text)
    assert (array.layout, strides_of(array.shape, array.layout)) == (layout, strides)
    assert resolve_array(str(array)) == array
    if 0 not in array.shape:
        assert layout_of(array.shape, strides) == layout


def test_arrays_with_gaps_have_no_layout() -> None:
    assert layout_of((4, 8), (16, 1)) is None
    assert layout_of((4, 8), (1, 8)) is None
    assert layout_of((4, 8), (0, 1)) is None


@pytest.mark.parametrize(("text", "hint"), [("float23", "'float32'"), ("f8e4m3fnn", "'f8e4m3fn'")])
def test_parse_dtype_names_the_nearest_spelling(text: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_dtype(text)
    assert str(caught.value) == f"unknown dtype {text!r}.\n  Did you mean {hint}?"


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
