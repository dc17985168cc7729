"""Functions whose arguments and results have every form of pytree."""

import dataclasses
import functools
from collections import OrderedDict
from typing import Any

import jax
from jax.experimental.pallas import mosaic_gpu as plgpu


@functools.partial(jax.tree_util.register_dataclass, data_fields=["right", "left"], meta_fields=[])
@dataclasses.dataclass
class Sides:
    """A type that JAX flattens in another order than that of its fields."""

    left: Any
    right: Any


def k(x: Any) -> Any:
    """Add one, in a Mosaic kernel."""

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def trees(x: Any) -> Any:
    # Shapes tell which leaf is which.
    def part(n: int) -> Any:
        return x[:n] * 2

    return {
        "ordered": OrderedDict(z=part(1), a=part(2)),
        "plain": {"z": part(3), "a": part(4)},
        "node": Sides(left=part(5), right=part(6)),
        "list": [part(7), (part(8),)],
        "numbers": {10: part(9), 2: part(10)},
    }


def nothing(x: Any) -> Any:
    return None


def given_back(x: Any) -> Any:
    return x


def one_of_none(x: Any) -> Any:
    return None, k(x), None


def updated_in_place(x: Any) -> Any:
    ref = jax.new_ref(x)

    def body(x_ref: Any) -> None:
        x_ref[...] = x_ref[...] + 1

    plgpu.kernel(body, out_type=())(ref)
    return ref[...]


def optional(x: Any, y: Any = None) -> Any:
    return k(x) if y is None else k(x) + y


def between(x: Any, mask: Any, y: Any, bias: Any = None) -> Any:
    return k(x) + y


def transposed(x: Any, w: Any) -> Any:
    def body(x_ref: Any, w_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + w_ref[...]

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, w.T)


def keywords(**arrays: Any) -> Any:
    return arrays["a"] + arrays["b"]


def positional(x: Any, /, y: Any) -> Any:
    return x + y


def variadic(*arrays: Any) -> Any:
    return arrays[0] - arrays[1]


def scaled(x: Any, *, by: Any, name: str = "plain") -> Any:
    return x * by if name == "plain" else x


def wide(x: Any) -> Any:
    return x + 1


_X = "f32[16]"
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "trees": (trees, {"x": _X}, {}),
    "given_back": (given_back, {"x": _X}, {}),
    "nothing": (nothing, {"x": _X}, {}),
    "one_of_none": (one_of_none, {"x": "f32[128]"}, {}),
    "updated_in_place": (updated_in_place, {"x": "f32[128]"}, {}),
    "optional": (optional, {"y": None, "x": "f32[128]"}, {}),
    "optional_given": (optional, {"y": "f32[128]", "x": "f32[128]"}, {}),
    "between": (between, {"y": "f32[128]", "mask": None, "x": "f32[128]"}, {}),
    "copied": (transposed, {"x": "f32[64, 128]", "w": "f32[128, 64]"}, {}),
    "laid_out": (transposed, {"x": "f32[64, 128]", "w": "f32[128, 64]{0,1}"}, {}),
    "laid_out_result": (given_back, {"x": "f32[128, 64]{0,1}"}, {}),
    "keywords": (keywords, {"b": _X, "a": _X}, {}),
    "positional": (positional, [_X, _X], {}),
    "variadic": (variadic, [_X, _X], {}),
    "scaled": (scaled, {"x": _X}, {"by": 3}),
    "partial": (functools.partial(scaled, by=2), {"x": _X}, {}),
    "lambda": (lambda x: x * 2, {"x": _X}, {}),
    "wide": (wide, {"x": "i64[16]"}, {}),
    "narrow": (wide, {"x": "i32[16]"}, {}),
    "too_many_bound": (functools.partial(scaled, by=2), [_X, _X], {}),
    "nearly": (scaled, {"x": _X}, {"by": 3, "nam": "x"}),
}
