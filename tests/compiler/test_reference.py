"""References run in a process of their own, with the arguments that the kernel gets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from msgspec.structs import replace

from pallasc.compiler.references import ArrayFile, LaunchFiles, compare, kernel_call, run_reference
from pallasc.errors import Location, PallascError, SpecError
from pallasc.specs.arrays import resolve_array
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.gpus import resolve_target
from pallasc.specs.spec import Args, Budget, Variant

REFERENCES = """
import os
import jax
import jax.numpy as jnp

assert jax.default_backend() == "cpu"

def by_name(a, cache, *, scale):
    assert isinstance(cache["k"], list) and cache["none"] is None
    return {"sum": a * scale + cache["k"][0], "b": cache["b"] - 1}

def by_position(first, second, /, **static):
    assert static == {"scale": 3, "kind": ("x", 1)}
    return first - second["y"]

def plain(a):
    return a

def wide(a):
    return a + 2**40

def forgotten(a):
    return plain

def shouting(a):
    raise ValueError("a" * 10**7)

def dying(a):
    os._exit(7)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the references."""
    made = tmp_path_factory.mktemp("references")
    (made / "references.py").write_text(REFERENCES)
    return made


def _variant(folder: Path, reference: str, args: Args, **static: Any) -> Variant:
    return Variant(
        name="kernel",
        params=(),
        target=resolve_target("h100-sxm"),
        entry="references.py:plain",
        args=args,
        static=static,
        reference=f"references.py:{reference}",
        tolerance=None,
        budget=Budget(),
        files=(),
        location=Location("kernels.yaml", 4, 5),
        base_dir=str(folder),
    )


def _array(path: str, values: Any) -> tuple[Binding, bytes]:
    dtype = {"f4": "f32", "i4": "i32", "i8": "i64"}[values.dtype.str[1:]]
    return Binding(path, dtype, values.shape, 0), values.tobytes()


def _launched(folder: Path, inputs: list[Any], outputs: list[Any]) -> LaunchFiles:
    def write(kind: str, arrays: list[Any]) -> Iterator[ArrayFile]:
        for number, (array, data) in enumerate(arrays):
            (folder / f"{kind}{number}").write_bytes(data)
            yield ArrayFile(array, f"{kind}{number}")

    return LaunchFiles(folder, tuple(write("input", inputs)), tuple(write("output", outputs)))


def _ones(value: float, kind: str = "f4") -> Any:
    return np.full(4, value, kind)


def test_references_get_what_the_kernel_gets(folder: Path, tmp_path: Path) -> None:
    array = resolve_array("f32[4]")
    cache = {"k": [array], "none": None, "b": array}
    named = _variant(folder, "by_name", {"cache": cache, "a": array}, scale=2, tile=64)
    placed = _variant(folder, "by_position", [array, {"z": array, "y": array}], scale=3,
                      kind=["x", 1])  # fmt: skip
    wide = _variant(folder, "wide", {"a": resolve_array("i64[4]")})
    launches = [
        (
            [_array(p, _ones(n)) for p, n in (("a", 1), ("cache.b", 10), ("cache.k.0", 5))],
            [_array("out.b", _ones(9)), _array("out.sum", _ones(7))],
        ),
        # JAX flattens a mapping in the order of its keys: y, then z.
        (
            [_array(p, _ones(n)) for p, n in (("first", 1), ("second.y", 2), ("second.z", 3))],
            [_array("out", _ones(-1))],
        ),
        ([_array("a", _ones(1, "i8"))], [_array("out", _ones(2**40 + 1, "i8"))]),
    ]
    variants = [named, placed, wide]
    found = dict(compare(variants, lambda n: _launched(tmp_path, *launches[n])))
    assert sorted(found) == [0, 1, 2]
    assert all(output.mismatches == 0 for outputs in found.values() for output in outputs)
    assert [output.max_abs for output in found[0]] == [0, 0]


def test_a_process_that_dies_is_an_error(folder: Path, tmp_path: Path) -> None:
    variant = _variant(folder, "dying", {"a": resolve_array("f32[4]")})
    arrays = [_array("a", _ones(1))]
    with pytest.raises(PallascError, match="the process that runs the reference of kernel@h100"):
        list(compare([variant], lambda _: _launched(tmp_path, arrays, arrays)))


def test_a_huge_message_of_a_reference_is_cut(folder: Path, tmp_path: Path) -> None:
    variant = _variant(folder, "shouting", {"a": resolve_array("f32[4]")})
    arrays = [_array("a", _ones(1))]
    with pytest.raises(SpecError, match=r"ValueError: aaa.*characters cut") as caught:
        list(compare([variant], lambda _: _launched(tmp_path, arrays, arrays)))
    assert len(str(caught.value)) < 10_000


def test_a_launch_that_fails_ends_the_comparison(folder: Path) -> None:
    def launch(_: int) -> Any:
        raise SpecError("no launch today")

    variant = _variant(folder, "plain", {"a": resolve_array("f32[4]")})
    with pytest.raises(SpecError, match="no launch today"):
        list(compare([variant, replace(variant)], launch))


@pytest.mark.parametrize("call", [kernel_call, run_reference])
def test_arrays_of_single_bits_are_refused_before_jax_fails(call: Any, folder: Path) -> None:
    variant = _variant(folder, "plain", {"a": resolve_array("i1[8]")})
    with pytest.raises(SpecError, match="JAX cannot compute with arrays of i1") as caught:
        call(variant, {"a": np.zeros(8, ml_dtypes.int1)})
    assert caught.value.location == variant.location
