"""Packs: written, read, and refused where anything is not as it was written."""

import hashlib
import io
import os
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest

from pallasc.cache import pack_writer
from pallasc.cache import packs as format
from pallasc.cache.pack_writer import PackSummary, write_pack
from pallasc.cache.packs import Entry, Footer, Frame, Pack, Place, open_pack, packed_name
from pallasc.errors import CorruptError
from pallasc.specs.bundle import compress


def name(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def blob(data: bytes) -> Entry:
    return Entry("cas", hashlib.sha256(data).hexdigest(), data)


def group(number: int, *, blobs: Sequence[bytes] = ()) -> list[Entry]:
    own = f"cubin {number} ".encode() * 50
    return [
        Entry("man", name(f"request {number}"), f"manifest {number}".encode()),
        Entry("ac", name(f"action {number}"), f"record {number}".encode()),
        *map(blob, (own, b"shared by all" * 9, *blobs)),
    ]


def packed(groups: Sequence[Sequence[Entry]]) -> tuple[bytes, PackSummary]:
    out = io.BytesIO()
    summary = write_pack(groups, out)
    return out.getvalue(), summary


def names(pack: Pack) -> dict[tuple[str, str], Place]:
    return {format.unpacked_name(packed): pack.place(packed) for packed in pack.names}


def fault(pack: Pack) -> str:
    try:
        assert len(list(pack.check())) == len(pack)
    except CorruptError as error:
        return error.message
    return ""


GROUPS = [group(number) for number in range(5)]
DATA, SUMMARY = packed(GROUPS)


def test_a_pack_gives_every_file_back(tmp_path: Path) -> None:
    (tmp_path / "pack").write_bytes(DATA)
    wanted = {(entry.area, entry.name): entry.data for group in GROUPS for entry in group}
    for pack in (open_pack(DATA), open_pack(tmp_path / "pack", digest=SUMMARY.digest)):
        assert {key: pack.read(*key) for key in names(pack)} == wanted
        assert len(pack) == len(wanted) == 5 + 5 + 6
        assert fault(pack) == ""
        assert pack.read("ac", name("request 1")) is None
        assert not pack.has(packed_name("cas", "0" * 64))
        assert SUMMARY.digest == pack.computed_digest() == hashlib.sha256(DATA).hexdigest()
        assert (SUMMARY.size, SUMMARY.names) == (pack.size, list(names(pack)))
    pack = open_pack(tmp_path / "pack")
    os.truncate(tmp_path / "pack", 20)
    with pytest.raises(CorruptError):
        pack.read("man", name("request 3"))


def test_packs_may_be_empty_and_the_first_file_of_a_name_stays() -> None:
    data, summary = packed([])
    assert (len(open_pack(data)), summary.names) == (0, [])
    empty, zeros = blob(b""), blob(bytes(3 * 2**20))
    one, two = Entry("ac", "a" * 64, b"one"), Entry("ac", "a" * 64, b"two")
    pack = open_pack(packed([[empty], [one], [one], [two]])[0])
    assert (pack.read("cas", empty.name), pack.read("ac", one.name)) == (b"", b"one")
    pack = open_pack(packed([[zeros]])[0])
    (frame,) = pack.frames
    assert frame.size == frame.raw_size, "what compresses too well is stored as it is"
    assert pack.read("cas", zeros.name) == zeros.data


def test_every_flipped_byte_and_every_truncation_is_corrupt() -> None:
    for position in range(len(DATA)):
        damaged = bytearray(DATA)
        damaged[position] ^= 0x41
        assert _is_refused(bytes(damaged)), position
        assert _is_refused(DATA[:position]), position
    assert _is_refused(DATA + b"\0")
    assert _is_refused(b"\0" + DATA)


def _is_refused(data: bytes) -> bool:
    """Tell whether each file, or the whole, is refused; no other error is raised."""
    try:
        pack = open_pack(data)
    except CorruptError:
        return True
    damaged = 0
    for key in names(pack):
        try:
            right = pack.read(*key) == open_pack(DATA).read(*key)
            assert right
        except CorruptError:
            damaged += 1
    return damaged > 0


def test_other_files_are_no_packs() -> None:
    with pytest.raises(CorruptError, match="does not begin as a pack of version 2"):
        open_pack(DATA.replace(format.MAGIC, b"pallasc-pack 3\n"))
    for data in (b"", b"pallasc-pack 2", format.MAGIC, b"\0" * 500):
        with pytest.raises(CorruptError):
            open_pack(data)


def forged(
    held: list[tuple[bytes, int]],
    places: dict[bytes, Place],
    *,
    order: Sequence[bytes] | None = None,
    **footer: int,
) -> bytes:
    """Return a pack with whatever its index says, digests and sizes fitting."""
    data, table = format.MAGIC, []
    for stored, raw_size in held:
        table.append(Frame(len(data), len(stored), raw_size, hashlib.sha256(stored).hexdigest()))
        data += stored
    index = pack_writer.write_index(table, places)
    if order is not None:
        cut = len(table) * 48
        index = index[:cut] + b"".join(order) + index[cut + 33 * len(order) :]
    end = Footer(len(data), len(index), len(table), len(places), hashlib.sha256(index).digest())
    return data + index + pack_writer.write_footer(end._replace(**footer))


A, B = (packed_name("cas", digit * 64) for digit in "ab")
CONTENT = b"." * 72 + b"abc"


def test_a_frame_that_would_unpack_to_gigabytes_is_refused_unread() -> None:
    zeros = compress.compress(bytes(60 * 2**20), 3)
    tracemalloc.start()
    try:
        for raw_size in (60 * 2**20, 2**31, len(zeros) * format.MOST_DENSE):
            with pytest.raises(CorruptError):
                open_pack(forged([(zeros, raw_size)], {A: Place(0, 72, 3)})).read("cas", "a" * 64)
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


def test_an_index_that_contradicts_its_frames_is_a_fault() -> None:
    def with_places(places: dict[bytes, Place]) -> Pack:
        return open_pack(forged([(CONTENT, len(CONTENT))], places))

    right = with_places({A: Place(0, 72, 3)})
    assert (right.read("cas", "a" * 64), fault(right)) == (b"abc", "")
    for place in (Place(1, 72, 3), Place(0, 73, 3), Place(0, 2**32 - 1, 2**32 - 1)):
        assert fault(with_places({A: place}))
    assert fault(with_places({A: Place(0, 0, 40), B: Place(0, 0, 40)})), "they overlap"


WHOLE, PLACES = [(CONTENT, len(CONTENT))], {A: Place(0, 72, 3)}


@pytest.mark.parametrize(
    "data",
    [
        *(forged(WHOLE, PLACES, **{name: value}) for name, value in (
            ("frames", 2**16 + 1), ("names", 2**31), ("offset", 2**63), ("size", 2**32 - 1))),
        *(forged([(CONTENT, size)], PLACES) for size in (
            0, format.MAX_FRAME_BYTES + 1, len(CONTENT) - 1)),
        *(forged([], {A: Place(0, 0, 0), B: Place(0, 0, 0)}, order=o) for o in ([A, A], [B, A])),
        forged([], {A: Place(0, 0, 0)}, order=[b"\7" + A[1:]]),
    ],
)  # fmt: skip
def test_an_index_over_a_limit_or_out_of_order_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptError):
        open_pack(data)


def test_a_file_over_the_limit_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(format, "MAX_FILE_BYTES", 10)
    with pytest.raises(CorruptError, match="has 11 bytes; a pack takes files of up to 10"):
        packed([[blob(b"x" * 11)]])
