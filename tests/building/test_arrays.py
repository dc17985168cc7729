"""Arrays in .npy and .npz files, and random ones that kernels can compute with."""

import hashlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pallasc.compiler.arrays import check_input, names_in, npy_bytes, random_bytes, read_input
from pallasc.errors import ArgumentError, SpecError
from pallasc.specs.arrays import DTYPES

WIDE = [name for name, dtype in DTYPES.items() if dtype.bits >= 8]
SHAPE = (3, 5)


def _kind(dtype: str) -> Any:
    name = DTYPES[dtype].jax_name.rstrip("_")
    return np.dtype(getattr(ml_dtypes, name, None) or name)


@pytest.mark.parametrize("dtype", WIDE)
def test_every_type_is_read_from_what_numpy_saves_and_written_for_it(
    dtype: str, tmp_path: Path
) -> None:
    array = np.random.default_rng(0).integers(0, 2, SHAPE).astype(_kind(dtype))
    file = tmp_path / "a.npy"
    np.save(file, array)
    assert read_input(file, "x", dtype, SHAPE, "k") == array.tobytes()
    file.write_bytes(npy_bytes(dtype, SHAPE, array.tobytes()))
    read = np.load(file)
    assert (read.shape, read.tobytes()) == (SHAPE, array.tobytes())
    assert read_input(file, "x", dtype, SHAPE, "k") == array.tobytes()


@pytest.mark.parametrize(
    ("dtype", "values", "packed"),
    [
        ("i4", [1, -1, -8, 7, 3], [0xF1, 0x78, 0x03]),
        ("u4", [1, 15, 8, 7, 3], [0xF1, 0x78, 0x03]),
        ("i2", [1, -1, -2, 0, 1], [0b00101101, 0b01]),
        ("u1", [1, 0, 1, 1, 0, 0, 0, 0, 1], [0b00001101, 1]),
    ],
)
def test_small_types_are_packed_first_element_lowest(
    dtype: str, values: list[int], packed: list[int], tmp_path: Path
) -> None:
    kind, shape = ("i1" if dtype[0] == "i" else "u1"), (len(values),)
    np.save(tmp_path / "plain.npy", np.array(values, kind))
    np.save(tmp_path / "own.npy", np.array(values, kind).astype(_kind(dtype)))
    for name in ("plain.npy", "own.npy"):
        assert read_input(tmp_path / name, "x", dtype, shape, "k") == bytes(packed)
    (tmp_path / "a.npy").write_bytes(npy_bytes(dtype, shape, bytes(packed)))
    assert np.load(tmp_path / "a.npy").tolist() == values


@pytest.mark.parametrize(("dtype", "kind"), [("i4", "i1"), ("u2", "u1")])
def test_numbers_that_a_small_type_has_not_are_refused(
    dtype: str, kind: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "a.npy", np.array([1, 100], kind))
    with pytest.raises(ArgumentError, match=rf"k: x: \S+a.npy holds numbers that are not {dtype}"):
        read_input(tmp_path / "a.npy", "x", dtype, (2,), "k")
    with pytest.raises(ArgumentError, match="no type for f6e2m3fn"):
        npy_bytes("f6e2m3fn", (4,), bytes(3))


def test_arrays_of_any_shape_order_and_version_of_the_header_are_read(tmp_path: Path) -> None:
    file = tmp_path / "a.npy"
    for shape in ((), (0, 4), (1, 1)):
        array = np.zeros(shape, np.float32)
        np.save(file, array)
        assert read_input(file, "x", "f32", shape, "k") == array.tobytes()
        file.write_bytes(npy_bytes("f32", shape, array.tobytes()))
        assert np.load(file).shape == shape
    with file.open("wb") as opened:
        np.lib.format.write_array(opened, np.ones(4, np.float16), version=(2, 0))
    assert read_input(file, "x", "f16", (4,), "k") == np.ones(4, np.float16).tobytes()
    array = np.arange(15, dtype=np.float32).reshape(SHAPE)
    np.save(file, np.asfortranarray(array))
    assert read_input(file, "x", "f32", SHAPE, "k") == array.tobytes()


@pytest.mark.parametrize("kind", ["U3", "O", "M8[s]", [("a", "f4")]])
def test_what_is_no_plain_number_is_refused(kind: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(4, kind), allow_pickle=True)
    with pytest.raises((SpecError, ArgumentError)) as caught:
        read_input(tmp_path / "a.npy", "x", "f32", (4,), "k")
    assert caught.value.exit_code == 2


VALID = npy_bytes("f32", (4,), bytes(16))


@pytest.mark.parametrize(
    "data",
    [
        b"", VALID[:9], VALID[:40], VALID[:-1], VALID.replace(b"(4,)", b"(-4,"),
        VALID.replace(b"'<f4'", b"print"), b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(9),
    ],
)  # fmt: skip
def test_damaged_files_are_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(SpecError, match=r"a is not a \.npy file of plain numbers, or is damaged"):
        read_input(tmp_path / "a", "x", "f32", (4,), "k")


def test_an_array_of_an_archive_is_read_by_its_name(tmp_path: Path) -> None:
    x, q = np.arange(15, dtype=np.float32).reshape(SHAPE), np.ones((2,), np.int8)
    np.savez(tmp_path / "in.npz", **{"x": x, "cache.0": q})
    assert names_in(tmp_path / "in.npz") == ["cache.0", "x"]
    check_input(tmp_path / "in.npz", "x", "f32", SHAPE, "k")
    assert read_input(tmp_path / "in.npz", "x", "f32", SHAPE, "k") == x.tobytes()
    with pytest.raises(
        ArgumentError, match=r"x in .*in.npz holds float32\[3, 5\].*takes f16\[3, 5\]"
    ):
        read_input(tmp_path / "in.npz", "x", "f16", SHAPE, "k")


MISFITS = [
    # what is saved, what is taken, and how both are told
    (np.zeros(4, "f4"), ("f32", (8,)), "float32[4]", "f32[8]", "float32"),
    (np.zeros(4, "f8"), ("f32", (4,)), "float64[4]", "f32[4]", "float32"),
    (np.zeros(4, ">f4"), ("f32", (4,)), ">f4[4]", "f32[4]", "float32"),
    (np.zeros((), "?"), ("i8", (2, 2)), "bool[]", "i8[2, 2]", "int8"),
    (np.zeros(4, "f4"), ("bf16", (4,)), "float32[4]", "bf16[4]", "uint16, for the bits of bf16"),
    (np.zeros(4, "V4"), ("bool", (4,)), "|V4[4]", "bool[4]", "bool"),
]


@pytest.mark.parametrize(("saved", "taken", "told", "needed", "kind"), MISFITS)
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_another_array_is_told_by_its_head(
    saved: Any, taken: Any, told: str, needed: str, kind: str, suffix: str, tmp_path: Path
) -> None:
    file = tmp_path / f"in.{suffix}"
    if suffix == "npy":
        np.save(file, saved)
    else:
        np.savez(file, x=saved)
    messages = []
    for read in (check_input, read_input):
        with pytest.raises(ArgumentError) as caught:
            read(file, "x", *taken, "k")
        messages.append((caught.value.message, caught.value.hint))
    holds = f"k: x in {file}" if suffix == "npz" else f"k: x: {file}"
    shape = list(taken[1])
    assert set(messages) == {
        (
            f"{holds} holds {told}, and the kernel takes {needed}.",
            f"Save an array of shape {shape} and of numpy's type {kind}.",
        )
    }


def test_a_damaged_archive_says_so(tmp_path: Path) -> None:
    file, message = tmp_path / "in.npz", r"is not a \.npz file, or is damaged"
    for data in (b"", b"PK\x03\x04", b"text"):
        file.write_bytes(data)
        with pytest.raises(SpecError, match=message):
            names_in(file)
    np.savez_compressed(file, x=np.arange(15, dtype=np.float32).reshape(SHAPE))
    held = file.read_bytes()
    for data in (b"PK\x05\x06" + bytes(18), held[:60] + b"\xff" * 30 + held[90:]):
        file.write_bytes(data)
        with pytest.raises(SpecError, match=message):
            read_input(file, "x", "f32", SHAPE, "k")


# ---- random numbers


def test_names_and_seeds_choose_the_numbers() -> None:
    chosen = [("x", 0), ("y", 0), ("x", 1)]
    drawn = [random_bytes("f32", 4096, seed=seed, name=name) for name, seed in chosen]
    assert len(set(drawn)) == 3
    assert random_bytes("f32", 4096, seed=0, name="x") == drawn[0]


@pytest.mark.parametrize(
    ("dtype", "digest"),
    [
        ("bf16", "e7f7b3450d4ca0a3"), ("f8e4m3fn", "48f6531e7869be73"), ("i4", "3bf337d56d66896f"),
        ("i32", "5e4dffafecabb51c"), ("f16", "ac511d6c76249648"), ("f32", "c1d2437052404d1c"),
        ("f64", "109aee8d9c76fabc"), ("c64", "b19b8e442dac52e2"), ("f8e5m2", "4dd0a35f4900b6d8"),
        ("bool", "172a7a95df3f4053"), ("u8", "1513cea027c550a1"), ("i16", "e70fbc23183ce2de"),
        ("f4e2m1fn", "0a5b6a5f937dea71"),
    ],
)  # fmt: skip
def test_numbers_are_the_same_everywhere(dtype: str, digest: str) -> None:
    data = random_bytes(dtype, 1 << 20, seed=0, name="x")
    assert hashlib.sha256(data).hexdigest()[:16] == digest
