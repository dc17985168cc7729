"""What is written into a flat plan, and that its reader refuses whatever breaks the grammar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import flat
import made
import pytest
from native_calls import open_found
from native_plans import PAIR, PLANS, WINDOW, matrices

from pallasc.errors import CorruptError, NotCachedError, UnsupportedError
from pallasc.runtime.native.library import Library
from pallasc.specs.arrays import DTYPES
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.flat_plan import flat_plan
from pallasc.specs.artifacts.plan import Bytes, Copy, Fill, plan_to_json
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


def test_equal_artifacts_give_equal_bytes(data: bytes) -> None:
    assert flat_plan(_everything(), name="made@h100") == data
    assert flat_plan(_everything(), name="other") != data


def test_a_plan_for_several_devices_is_refused() -> None:
    artifact = made.add()
    record = {**artifact.record, "plan": {**artifact.record["plan"], "mesh": [["x", 2]]}}
    with pytest.raises(UnsupportedError) as caught:
        flat_plan(Artifact(record, artifact.blob), name="made")
    assert caught.value.message == (
        "made: it runs on 2 devices together, and a flat plan is for one."
    )


@pytest.mark.parametrize(
    ("artifact", "message"),
    [
        (
            lambda: made.artifact(made.launch("gone", 0)),
            "made: the cubin has no kernel gone, only ",
        ),
        (
            lambda: made.artifact(made.launch("two", 0)),
            "made: the plan passes parameters of [8] bytes to two, and its cubin says [8, 8]",
        ),
        (
            lambda: made.artifact(made.launch("one", 0, grid=(3, 1, 1), cluster=(2, 1, 1))),
            "made: the grid (3, 1, 1) of one does not divide into clusters of 2×1×1",
        ),
        (
            lambda: made.artifact(
                made.launch("mapped", 0, made.maps(replace(WINDOW, swizzle=32), size=512)),
                inputs=matrices(),
            ),
            "made: the driver would refuse a tensor map of mapped: 128 bytes of channels are "
            "longer than the swizzle of 32",
        ),
        (
            lambda: made.artifact(made.launch("one", 0), arch="sm_100a"),
            "made: the artifact is for sm_100a, but its cubin is for sm_90",
        ),
    ],
)
def test_a_damaged_artifact_is_not_written(artifact: Callable[[], Artifact], message: str) -> None:
    with pytest.raises(CorruptError) as caught:
        flat_plan(artifact(), name="made")
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("sign", "message"), [("\0", "contains a zero"), ("\ud800", "is not Unicode")]
)
def test_names_that_no_text_has_are_refused(sign: str, message: str) -> None:
    for artifact in (
        made.artifact(made.launch("two", 0, 1), inputs={f"a{sign}": "f32[4, 64]"}),
        made.add(minimum_driver={"cuda": "13.0", "linux": f"580{sign}"}),
    ):
        with pytest.raises(CorruptError, match=f"made: a name of the artifact {message}: '"):
            flat_plan(artifact, name="made")


def test_arrays_in_one_buffer_are_refused() -> None:
    artifact = made.add()
    plan = artifact.plan
    unused = replace(plan.buffers[1], size=0)
    shared = replace(plan, inputs=(plan.inputs[0], replace(plan.inputs[1], buffer=0)))
    shared = replace(shared, buffers=(plan.buffers[0], unused, *plan.buffers[2:]))
    record = {**artifact.record, "plan": plan_to_json(shared)}
    with pytest.raises(CorruptError, match="made: two of its arrays lie in one buffer"):
        flat_plan(Artifact(record, artifact.blob), name="made")


def test_maps_over_each_other_are_refused() -> None:
    over = made.maps(made.tensor_map(0), made.tensor_map(1), size=512, step=64)
    artifact = made.artifact(made.launch("mapped", 2, over), inputs=matrices())
    with pytest.raises(CorruptError, match="made: tensor maps of mapped lie over each other"):
        flat_plan(artifact, name="made")


@pytest.mark.parametrize("step", [Fill(3, 0, 8), Copy(0, 0, 3, 0, 8)])
def test_steps_that_write_to_constants_are_refused(step: Fill | Copy) -> None:
    artifact = made.artifact(made.launch("three", 0, 1, 2), step, constants=(b"x" * 8,))
    with pytest.raises(CorruptError, match="made: a step writes to constant 3"):
        flat_plan(artifact, name="made")


def test_numbers_that_do_not_fit_are_refused() -> None:
    artifact = made.artifact(made.launch("one", 0, grid=(1 << 32, 1, 1)))
    with pytest.raises(UnsupportedError, match="made: a number of the launch plan does not fit"):
        flat_plan(artifact, name="made")


# ---- the reader


@pytest.mark.parametrize("name", PLANS)
def test_what_is_written_opens(name: str, native: Library) -> None:
    artifact = PLANS[name]()
    native.open(flat_plan(artifact, name=name))
    open_found(native, flat_plan(artifact, name=name, inside=False), artifact.blob)


def test_blobs_are_asked_for_by_digest(native: Library) -> None:
    artifact, asked = _everything(), []

    def find(key: str) -> bytes:
        asked.append(key)
        return artifact.blob(key)

    open_found(native, flat_plan(artifact, name="made", inside=False), find)
    assert asked == [digest(b"x" * 24), digest(made.cubin())]


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


def test_another_version_is_refused_in_words(native: Library, data: bytes) -> None:
    with pytest.raises(CorruptError) as caught:
        native.open(data[:8] + bytes([2, 0, 0, 0]) + data[12:])
    assert str(caught.value) == (
        "the flat plan has version 2, and this library reads version 1.\n"
        "  Write it with this version of pallasc, or install the one that wrote it."
    )


def test_what_is_no_flat_plan_is_refused(native: Library) -> None:
    for other in (b"", b"PALLASC\n", b"\x7fELF" + bytes(1000)):
        with pytest.raises(CorruptError, match="are not a flat plan"):
            native.open(other)


DAMAGED: dict[str, tuple[str, int, dict[str, int]]] = {
    "facts: a name that is not there": ("facts", 0, {"f0": 1 << 20}),
    "facts: a name that begins inside a text": ("facts", 0, {"f0": 1}),
    "facts: no architecture": ("facts", 0, {"f1": 0}),
    "facts: more inputs than arrays": ("facts", 0, {"f5": 4}),
    "facts: other inputs": ("facts", 0, {"f5": 1}),
    "a buffer of an unknown role": ("buffers", 0, {"f2": 4}),
    "a buffer beyond all sizes": ("buffers", 3, {"f0": 1 << 62}),
    "a buffer larger than its array": ("buffers", 0, {"f0": 8193}),
    "a buffer smaller than its array": ("buffers", 0, {"f0": 8191}),
    "a buffer without alignment": ("buffers", 0, {"f1": 0}),
    "a constant without bytes": ("buffers", 4, {"f3": 2}),
    "a constant of another size": ("buffers", 4, {"f0": 23}),
    "a temporary with bytes": ("buffers", 3, {"f3": 0}),
    "an array of no buffer": ("arrays", 0, {"f6": 5}),
    "an array in a temporary": ("arrays", 0, {"f6": 3}),
    "two arrays in one buffer": ("arrays", 1, {"f6": 0}),
    "an array of other numbers": ("arrays", 1, {"f4": 0}),
    "an array of too many dimensions": ("arrays", 2, {"f3": 65}),
    "an array of other elements": ("arrays", 0, {"f2": 32}),
    "an array of an unknown dtype": ("arrays", 0, {"f1": 0}),
    "an array that is not updated": ("arrays", 1, {"f7": 1}),
    "an array that is updated": ("arrays", 0, {"f7": 5}),
    "a result that is an input": ("arrays", 2, {"f7": 1}),
    "a size that wraps around": ("numbers", 0, {"f0": (1 << 62) + 64}),
    "a negative size": ("numbers", 0, {"f0": -64}),
    "an output in another array": ("outputs", 0, {"f5": 1}),
    "an unknown step": ("steps", 0, {"f0": 3}),
    "a fill behind its buffer": ("steps", 0, {"f4": 8129}),
    "a fill that wraps around": ("steps", 0, {"f4": (1 << 64) - 1}),
    "a fill of an odd width": ("steps", 0, {"f3": 2}),
    "a fill with more than its width": ("steps", 0, {"f7": 256}),
    "a fill of nothing": ("steps", 0, {"f6": 0}),
    "launches out of order": ("steps", 1, {"f1": 1}),
    "a copy behind its source": ("steps", 4, {"f5": 8065}),
    "a fill of a constant": ("steps", 0, {"f1": 4, "f4": 0, "f6": 24}),
    "a copy into a constant": ("steps", 4, {"f1": 4, "f4": 0, "f6": 24}),
    "a copy to no buffer": ("steps", 4, {"f1": 5}),
    "a launch of no kernel": ("launches", 0, {"f0": 2}),
    "a launch of another kernel": ("launches", 0, {"f0": 1}),
    "a grid without blocks": ("launches", 0, {"f2": 0}),
    "a cluster without blocks": ("launches", 0, {"f5": 0}),
    "a cluster that does not divide": ("launches", 0, {"f4": 3}),
    "a launch with other parameters": ("launches", 1, {"f12": 0}),
    "a launch with too many parameters": ("launches", 2, {"f13": 3}),
    "an unknown attribute": ("launches", 0, {"f11": 2}),
    "an unknown parameter": ("parameters", 0, {"f0": 3}),
    "a pointer behind its buffer": ("parameters", 0, {"f2": 8193}),
    "a pointer of 4 bytes": ("parameters", 0, {"f3": 4}),
    "a value of another size": ("parameters", 2, {"f3": 8}),
    "a value behind all values": ("parameters", 2, {"f2": 1}),
    "zeros beyond all sizes": ("parameters", 1, {"f3": 0xFFFFFFFF}),
    "maps of another parameter": ("parameters", 5, {"f4": 0}),
    "more maps than there are": ("parameters", 5, {"f5": 2}),
    "a map behind its parameter": ("maps", 0, {"f0": 385}),
    "a map far behind its parameter": ("maps", 0, {"f0": 0xFFFFFFFF}),
    "maps over each other": ("maps", 1, {"f0": 127}),
    "maps out of order": ("maps", 0, {"f0": 256}),
    "a map of no buffer": ("maps", 0, {"f1": 5}),
    "a map behind its buffer": ("maps", 0, {"f2": 8208}),
    "a kernel of no cubin": ("kernels", 0, {"f1": 1}),
    "a kernel without a name": ("kernels", 0, {"f0": 0xFFFFFFFF}),
    "a kernel of other sizes": ("kernels", 1, {"f3": 0}),
    "a kernel of too many sizes": ("kernels", 1, {"f4": 3}),
    "a parameter that the kernel has otherwise": ("sizes", 1, {"f0": 256}),
    "a cubin without bytes": ("cubins", 0, {"f0": 2}),
    "a blob behind all data": ("blobs", 1, {"f2": 1 << 40}),
    "blobs over each other": ("blobs", 1, {"f1": 0}),
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


def test_parameters_by_value_are_bounded_by_what_is_passed(native: Library, data: bytes) -> None:
    size, many = 32764, (64 << 20) // 32764 + 1
    launch = (0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0)
    kernel = flat.rows(data, "kernels")[0]
    huge = flat.with_tables(
        data,
        steps=flat.packed("steps", *((2, n, *[0] * 6) for n in range(many))),
        launches=flat.packed("launches", *((*launch, n, 1, 1, 0) for n in range(many))),
        parameters=flat.packed("parameters", *[(2, 0, 0, size, 0, 0, 0)] * many),
        maps=b"",
        values=b"",
        kernels=flat.packed("kernels", (*kernel[:3], 0, 1, 0)),
        sizes=flat.packed("sizes", (size,)),
    )
    assert len(huge) < 1 << 20
    with pytest.raises(CorruptError, match="it passes too much by value"):
        native.open(huge)


def test_dtypes_are_those_of_specs_with_their_bits(native: Library, data: bytes) -> None:
    strings, arrays = flat.raw(data, "strings"), flat.rows(data, "arrays")
    for dtype in DTYPES.values():
        for bits in (dtype.bits, dtype.bits + 1):
            first = (arrays[0][0], len(strings), bits, *arrays[0][3:])
            changed = flat.with_tables(
                data,
                strings=strings + dtype.name.encode() + b"\0",
                arrays=flat.packed("arrays", first, *arrays[1:]),
            )
            try:
                native.open(changed)
                is_known = True
            except CorruptError as error:
                is_known = "array 0 does not fit." not in error.message
            assert is_known == (bits == dtype.bits), dtype


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


def test_what_is_damaged_is_told(native: Library, data: bytes) -> None:
    def message(table: str, entry: int, **fields: int) -> str:
        with pytest.raises(CorruptError) as caught:
            native.open(flat.changed(data, table, entry, **fields))
        return caught.value.message

    assert message("steps", 0, f4=8129) == (
        "the flat plan is damaged: step 0 fills 64 bytes with 0x7."
    )
    assert message("sizes", 1, f0=256) == (
        "the plan passes parameters of [8, 512] bytes to mapped, and its cubin says [8, 256]"
    )
    assert message("buffers", 0, f0=8191) == (
        "the flat plan is damaged: array 0 is larger than its buffer of 8191 bytes."
    )


def test_parameters_that_the_cubin_has_otherwise_are_refused(native: Library, data: bytes) -> None:
    for table, entry, field in (("parameters", 1, 3), ("parameters", 5, 3), ("sizes", 1, 0)):
        data = flat.changed(data, table, entry, **{f"f{field}": 496})
    with pytest.raises(CorruptError) as caught:
        native.open(data)
    assert caught.value.message == (
        "made@h100: its cubin has no kernel mapped with the parameters that the plan passes."
    )


def test_a_name_without_an_end_in_sight_is_refused(native: Library, data: bytes) -> None:
    # The table of strings is the first, so all others move behind what is put in front.
    offset, count, _ = flat.place(data, "strings")
    longer = b"x" * (1 << 15) + b"\0" + bytes(15)
    head = bytearray(data[: flat.HEADER.size + flat.TABLE.size * len(flat.NAMES)])
    for number, name in enumerate(flat.NAMES):
        at, entries, size = flat.place(data, name)
        place = (
            (at, count + len(longer), 1) if name == "strings" else (at + len(longer), entries, size)
        )
        flat.TABLE.pack_into(head, flat.HEADER.size + flat.TABLE.size * number, *place)
    total = len(data) + len(longer)
    flat.HEADER.pack_into(head, 0, b"PALLASC\n", 1, len(head), total, bytes(32))
    strings = data[offset : offset + count] + longer
    rest = data[offset + count :]
    moved = flat.sealed(bytes(head) + data[len(head) : offset] + strings + rest)
    native.open(moved)
    with pytest.raises(CorruptError, match="kernel 0 does not fit"):
        native.open(flat.changed(moved, "kernels", 0, f0=count))


def test_a_cubin_that_is_none_is_refused(native: Library) -> None:
    artifact = made.add()
    data = flat_plan(artifact, name="made", inside=False)
    image = made.cubin()
    sections = int.from_bytes(image[40:48], "little")
    other_sm = bytes([image[48], image[49] + 1]) if image[8] >= 8 else bytes([image[48] + 1, 0])

    def with_number(at: int, width: int, value: int) -> bytes:
        return image[:at] + value.to_bytes(width, "little") + image[at + width :]

    no_elf = "not a 64-bit little-endian ELF file"
    cases = [
        (b"", no_elf),
        (b"\x7fELF", no_elf),
        (b".version 8.8\n.target sm_90a\n" + b" " * 64, no_elf),
        (image[:64], "an ELF file of 64 bytes ends inside its section table"),
        (image[:-1], f"an ELF file of {len(image) - 1} bytes "),
        (with_number(18, 2, 62), "not a cubin: ELF machine 62 instead of 190"),
        (with_number(32, 8, 1 << 63), f"an ELF file of {len(image)} bytes names what is not in it"),
        (with_number(40, 8, (1 << 64) - 64), f"an ELF file of {len(image)} bytes ends inside its"),
        (with_number(58, 2, 63), "an ELF file has section headers of 63 bytes"),
        (with_number(62, 2, 0xFFFF), r"an ELF file with \d+ sections has its names in 65535"),
        (
            with_number(sections + 64 + 32, 8, 1 << 40),
            f"an ELF file of {len(image)} bytes names what is not in it",
        ),
        (
            image[:48] + other_sm + image[50:],
            "the artifact is for sm_90, but its cubin is for sm_91",
        ),
        (image.replace(b".nv.info.three", b"x" * 14), "its cubin has no kernel three with"),
        (image.replace(b".text.three", b"x" * 11), "its cubin has no kernel three with"),
    ]
    for other, words in cases:
        digest_of = bytes.fromhex(digest(other))
        offset, _, _ = flat.place(data, "blobs")
        row = digest_of + (0).to_bytes(8, "little") + len(other).to_bytes(8, "little")
        changed = flat.sealed(data[:offset] + row + data[offset + len(row) :])
        with pytest.raises(CorruptError, match=f"made: {words}"):
            open_found(native, changed, lambda key, other=other: other)


# Field of `maps`, its value, and what the driver's rules say in Python's words.
_RULES = [
    (0, {"f30": 10}, "element type 10 is unknown"),
    (0, {"f32": 4}, "swizzle 4 is unknown"),
    (0, {"f33": 3}, "interleave 3 is unknown"),
    (0, {"f34": 4}, "L2 promotion 4 is unknown"),
    (0, {"f31": 0}, "rank 0 is not in 1 to 5"),
    (0, {"f31": 6}, "rank 6 is not in 1 to 5"),
    (0, {"f2": 8}, "it starts at byte 8, no multiple of 16"),
    (0, {"f3": 0}, "sizes (0, 32) exceed 2^32 or are zero"),
    (0, {"f4": (1 << 32) + 1}, "sizes (64, 4294967297) exceed 2^32 or are zero"),
    (0, {"f8": 120}, "byte strides (120,) are not all multiples of 16 below 2^40"),
    (0, {"f18": 9}, "element strides (1, 9) are not all within 1 to 8"),
    (0, {"f13": 257}, "box (8, 257) is not within 1 to 256"),
    (0, {"f12": 4}, "the inner box of 8 bytes is not a multiple of 16 bytes"),
    (0, {"f12": 32, "f32": 1}, "the inner box of 64 bytes is longer than the swizzle of 32"),
    (2, {"f22": -129}, "window bounds [-129, -2, 1, 2] are not all within -128 to 127"),
    (2, {"f28": 257}, "257 channels a pixel are not within 1 to 256"),
    (2, {"f29": 0}, "0 pixels a column are not within 1 to 1024"),
    (2, {"f32": 2}, "128 bytes of channels are longer than the swizzle of 64"),
    (2, {"f12": 1}, "fields that are not used are not 0"),
    (0, {"f28": 1}, "fields that are not used are not 0"),
    (0, {"f5": 1}, "fields that are not used are not 0"),
]


@pytest.mark.parametrize(("entry", "fields", "rule"), _RULES, ids=[rule for *_, rule in _RULES])
def test_the_rules_of_tensor_maps_are_checked(
    entry: int, fields: dict[str, int], rule: str, native: Library, data: bytes
) -> None:
    with pytest.raises(CorruptError) as caught:
        native.open(flat.changed(data, "maps", entry, **fields))
    assert caught.value.message == f"the driver would refuse a tensor map of mapped: {rule}"
