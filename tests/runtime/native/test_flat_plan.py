"""What is written into a flat plan, and that its reader refuses whatever breaks the grammar."""

import re
import struct
from collections.abc import Callable
from typing import Any

import flat
import made
import pytest
from msgspec.structs import replace
from native_calls import open_found
from native_plans import PAIR, WINDOW, matrices

from pallasc.errors import CorruptError, NotCachedError, UnsupportedError
from pallasc.runtime.native.library import Library
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.flat_plan import flat_plan
from pallasc.specs.artifacts.plan import Bytes, Copy, Fill
from pallasc.specs.canonical import digest


def _everything() -> Artifact:
    """Return an artifact with a bit of everything."""
    return made.artifact(
        Fill(2, 0, 64, 7, 1),
        made.launch(
            "mapped", 2, PAIR, grid=(4, 2, 1), cluster=(2, 1, 1), dynamic_smem_bytes=64, pdl=True
        ),
        made.launch("valued", Bytes(4, "01020304", ()), 4),
        made.launch("mapped", 1, made.maps(WINDOW, size=512)),
        Copy(0, 0, 2, 256, 128),
        inputs=matrices(),
        outputs=("f16[64, 64]", "b"),
        temporaries=(100,),
        constants=(b"x" * 24,),
    )


@pytest.fixture(scope="module")
def data() -> bytes:
    """Give that as a flat plan."""
    return flat_plan(_everything(), name="made@h100")


# ---- the writer


def _on_two_devices() -> Artifact:
    return made.changed(made.add(), lambda plan: plan.update(mesh=[["x", 2]]))


_WRITTEN = "the launch plan is damaged: step 1 writes to constant 3"


def _of(kernel: str, *parameters: Any, **changes: Any) -> Artifact:
    return made.artifact(made.launch(kernel, *parameters, **changes))


def _writing(step: Fill | Copy) -> Artifact:
    return made.artifact(made.launch("three", 0, 1, 2), step, constants=(b"x" * 8,))


# An artifact that is not written, and why.
REFUSED: list[tuple[Callable[[], Artifact], type[Exception], str]] = [
    (_on_two_devices, UnsupportedError, "it runs on 2 devices together, and a flat plan is for"),
    (lambda: _of("gone", 0), CorruptError, "the cubin has no kernel gone, only "),
    (lambda: _of("two", 0), CorruptError, "the plan passes parameters of [8] bytes to two, and"),
    (
        lambda: _of("one", 0, grid=(3, 1, 1), cluster=(2, 1, 1)),
        CorruptError,
        "the launch plan is damaged: grid (3, 1, 1)",
    ),
    (
        lambda: made.artifact(
            made.launch("mapped", 0, made.maps(replace(WINDOW, swizzle=32), size=512)),
            inputs=matrices(),
        ),
        CorruptError,
        "the launch plan is damaged: the driver would refuse a tensor map of mapped: 128 bytes of",
    ),
    (
        lambda: made.artifact(made.launch("one", 0), arch="sm_100a"),
        CorruptError,
        "the artifact is for sm_100a, but its cubin is for sm_90",
    ),
    (
        lambda: made.artifact(made.launch("two", 0, 1), inputs={"a\0": "f32[4, 64]"}),
        CorruptError,
        "a name of the artifact is not Unicode without zeros: '",
    ),
    (
        lambda: made.add(minimum_driver={"cuda": "13.0", "linux": "580\ud800"}),
        CorruptError,
        "a name of the artifact is not Unicode without zeros: '",
    ),
    (lambda: _writing(Fill(3, 0, 8)), CorruptError, _WRITTEN),
    (lambda: _writing(Copy(0, 0, 3, 0, 8)), CorruptError, _WRITTEN),
    (lambda: _of("one", 0, grid=(1 << 32, 1, 1)), UnsupportedError, "a number of the launch plan"),
]


@pytest.mark.parametrize(("artifact", "kind", "message"), REFUSED, ids=[row[2] for row in REFUSED])
def test_an_artifact_that_c_cannot_launch_is_not_written(
    artifact: Callable[[], Artifact], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=f"^made: {re.escape(message)}"):
        flat_plan(artifact(), name="made")


# ---- the reader


@pytest.mark.parametrize(
    ("find", "kind", "words"),
    [
        (None, NotCachedError, "by digest, and it is not here."),
        (lambda key: None, NotCachedError, "by digest, and it is not here."),
        (lambda key: b"x" * 23, CorruptError, "does not match its digest"),
        (lambda key: b"y" * 24, CorruptError, "does not match its digest"),
    ],
)
def test_a_blob_that_is_missing_or_another_is_told(
    find: Callable[[str], bytes | None] | None, kind: Any, words: str, native: Library
) -> None:
    with pytest.raises(kind) as caught:
        open_found(native, flat_plan(_everything(), name="made", inside=False), find)
    assert type(caught.value) is kind
    assert caught.value.message.startswith("made: ")
    assert caught.value.message.endswith(words)


def test_every_cut_and_every_flipped_byte_is_refused(native: Library, data: bytes) -> None:
    for size in (*range(400), *range(400, len(data), 97)):
        with pytest.raises(CorruptError):
            native.open(data[:size])
    for at in range(0, len(data), 7):
        with pytest.raises(CorruptError) as caught:
            native.open(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert at < 8 or "flat plan" in caught.value.message


def test_what_is_no_flat_plan_or_one_of_another_version_is_refused(
    native: Library, data: bytes
) -> None:
    for other in (b"", b"PALLASC\n", b"\x7fELF" + bytes(1000)):
        with pytest.raises(CorruptError, match="are not a flat plan"):
            native.open(other)
    with pytest.raises(CorruptError) as caught:
        native.open(data[:8] + bytes([2, 0, 0, 0]) + data[12:])
    assert str(caught.value) == (
        "the flat plan has version 2, and this library reads version 1.\n"
        "  Write it with this version of pallasc, or install the one that wrote it."
    )


DAMAGED: dict[str, tuple[str, int, dict[str, int]]] = {
    "facts: a name that is not there": ("facts", 0, {"f0": 1 << 20}),
    "facts: no architecture": ("facts", 0, {"f1": 0}),
    "facts: more inputs than arrays": ("facts", 0, {"f5": 4}),
    "a buffer of an unknown role": ("buffers", 0, {"f2": 4}),
    "a buffer beyond all sizes": ("buffers", 3, {"f0": 1 << 62}),
    "a buffer larger than its array": ("buffers", 0, {"f0": 8193}),
    "a buffer without alignment": ("buffers", 0, {"f1": 0}),
    "a constant of another size": ("buffers", 4, {"f0": 23}),
    "an array of no buffer": ("arrays", 0, {"f6": 5}),
    "an array in a temporary": ("arrays", 0, {"f6": 3}),
    "two arrays in one buffer": ("arrays", 1, {"f6": 0}),
    "an array of other elements": ("arrays", 0, {"f2": 32}),
    "a size that wraps around": ("numbers", 0, {"f0": (1 << 62) + 64}),
    "an unknown step": ("steps", 0, {"f0": 3}),
    "a fill behind its buffer": ("steps", 0, {"f4": 8129}),
    "a fill with more than its width": ("steps", 0, {"f7": 256}),
    "launches out of order": ("steps", 1, {"f1": 1}),
    "a copy behind its source": ("steps", 4, {"f5": 8065}),
    "a fill of a constant": ("steps", 0, {"f1": 4, "f4": 0, "f6": 24}),
    "a copy into a constant": ("steps", 4, {"f1": 4, "f4": 0, "f6": 24}),
    "a launch of no kernel": ("launches", 0, {"f0": 2}),
    "a cluster without blocks": ("launches", 0, {"f5": 0}),
    "a cluster that does not divide": ("launches", 0, {"f4": 3}),
    "an unknown parameter": ("parameters", 0, {"f0": 3}),
    "a pointer behind its buffer": ("parameters", 0, {"f2": 8193}),
    "a value of another size": ("parameters", 2, {"f3": 8}),
    "maps of another parameter": ("parameters", 5, {"f4": 0}),
    "a map behind its parameter": ("maps", 0, {"f0": 385}),
    "maps over each other": ("maps", 1, {"f0": 127}),
    "a map of no buffer": ("maps", 0, {"f1": 5}),
    "a map without a rank": ("maps", 0, {"f31": 0}),
    "a map of six dimensions": ("maps", 0, {"f31": 6}),
    "a map of an unknown type": ("maps", 0, {"f30": 10}),
    "a map of an unknown swizzle": ("maps", 0, {"f32": 4}),
    "a window of two dimensions": ("maps", 2, {"f31": 2}),
    "a window without pixels": ("maps", 2, {"f28": 0}),
    "a kernel of no cubin": ("kernels", 0, {"f1": 1}),
    "a kernel without a name": ("kernels", 0, {"f0": 0xFFFFFFFF}),
    "a kernel of other sizes": ("kernels", 1, {"f3": 0}),
    "a parameter that the kernel has otherwise": ("sizes", 1, {"f0": 256}),
    "a blob behind all data": ("blobs", 1, {"f2": 1 << 40}),
    "a blob that is there and is not": ("blobs", 0, {"f3": 0}),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_what_breaks_the_grammar_is_refused(what: str, native: Library, data: bytes) -> None:
    table, entry, fields = DAMAGED[what]
    with pytest.raises((CorruptError, NotCachedError)):
        native.open(flat.changed(data, table, entry, **fields))


def test_a_blob_or_cubin_that_stands_there_twice_is_refused(native: Library, data: bytes) -> None:
    for table in ("blobs", "cubins"):
        rows = flat.rows(data, table)
        twice = flat.with_tables(data, **{table: flat.packed(table, *rows, rows[-1])})
        with pytest.raises(CorruptError, match=f"{table[:-1]} {len(rows)}"):
            native.open(twice)
    assert flat.with_tables(data) == data


def test_words_of_strangers_are_shown_without_what_a_terminal_obeys(
    native: Library, data: bytes
) -> None:
    for name, shown in (
        ("a\x1b[31mb\x07\x7f\r", "a?[31mb???"),
        ("a\x9b31m", "a??31m"),
        ("é\n×", "é\n×"),
    ):
        with pytest.raises(NotCachedError) as caught:
            native.open(flat_plan(_everything(), name=name, inside=False))
        assert caught.value.message.startswith(f"{shown}: the plan names")
    with pytest.raises(NotCachedError):
        native.open(flat_plan(_everything(), name="é" * 5000, inside=False))
    native.functions.pallasc_last_error().decode()  # cut between characters


def test_a_cubin_that_is_none_is_refused(native: Library) -> None:
    data, image = flat_plan(made.add(), name="made", inside=False), made.cubin()

    def with_number(at: int, width: int, value: int) -> bytes:
        return image[:at] + value.to_bytes(width, "little") + image[at + width :]

    for other, words in (
        (b"\x7fELF", "not a 64-bit little-endian ELF file"),
        (image[:64], "an ELF file of 64 bytes refers to missing data"),
        (image[:-1], f"an ELF file of {len(image) - 1} bytes refers to missing data"),
        (with_number(18, 2, 62), "not a cubin: ELF machine 62 instead of 190"),
        (with_number(32, 8, 1 << 63), f"an ELF file of {len(image)} bytes refers to missing data"),
        (with_number(58, 2, 63), f"an ELF file of {len(image)} bytes refers to missing data"),
        (with_number(62, 2, 0xFFFF), f"an ELF file of {len(image)} bytes refers to missing data"),
    ):
        row = bytes.fromhex(digest(other)) + struct.pack("<QQ", 0, len(other))
        at = flat.place(data, "blobs")[0]
        changed = flat.sealed(data[:at] + row + data[at + len(row) :])
        with pytest.raises(CorruptError, match=f"made: {words}"):
            open_found(native, changed, lambda key, other=other: other)
