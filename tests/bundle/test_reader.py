"""Reading parts: bounded, checked, and only what was asked for."""

from collections.abc import Callable

import pytest
from made_bundles import make_items
from msgspec.structs import replace
from taken_apart import Parts

from pallasc.errors import CorruptError
from pallasc.specs.bundle.bundle import Bundle, open_bundle
from pallasc.specs.bundle.format import Extent, pack_rows
from pallasc.specs.bundle.manifest import Entry
from pallasc.specs.bundle.reader import MemorySource
from pallasc.specs.bundle.verify import verify
from pallasc.specs.bundle.writer import build_bundle

Rebuilt = Callable[..., Bundle]


class CountingSource(MemorySource):
    """Bytes that know what was read of them."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.parts: list[Extent] = []

    def read(self, at: int, size: int) -> bytes:
        self.parts.append(Extent(at, size))
        return super().read(at, size)


def _load(bundle: Bundle, entry: Entry) -> tuple[str, bytes]:
    found = next(own for own in bundle.entries(entry.name) if own.key == entry.key)
    artifact = bundle.artifact(found)
    return artifact.digest, artifact.cubin()


def test_a_kernel_is_loaded_when_every_byte_that_is_not_its_own_is_destroyed() -> None:
    data = build_bundle(make_items(150, names=("norm", "scale")))
    name = "norm[m=1232,dtype=bf16]@h100-sxm"
    (entry,) = (own for own in open_bundle(data).entries("norm") if own.id == name)
    source = CountingSource(data)
    expected = _load(Bundle(source, "x"), entry)
    touched = bytearray(len(data))
    for part in source.parts:
        touched[part.at : part.end] = b"\1" * part.size
    left = bytes(byte if used else 0xAA for byte, used in zip(data, touched, strict=True))
    assert _load(open_bundle(left), entry) == expected
    assert sum(touched) < 0.25 * len(data)
    with pytest.raises(CorruptError):
        verify(open_bundle(left))


def test_too_many_bases_are_refused(rebuilt: Rebuilt) -> None:
    def chain(parts: Parts) -> None:
        parts.contents()
        for number in range(1, 12):
            parts.rows[number] = replace(parts.rows[number], step=1, coding=1)

    reader = rebuilt(chain).reader
    assert len(reader.content(0)) > 0
    with pytest.raises(CorruptError, match="blob 11 has 9 bases or more"):
        reader.content(11)


def test_bases_that_are_too_large_are_refused(rebuilt: Rebuilt) -> None:
    def grow(parts: Parts) -> None:
        parts.contents()
        parts.set_content(0, bytes(2**24 + 1))
        parts.rows[1] = replace(parts.rows[1], step=1, coding=1)

    with pytest.raises(CorruptError, match="blob 1 has 1 bases or more"):
        rebuilt(grow).reader.content(1)


def test_a_blob_that_lies_among_the_pages_is_refused(rebuilt: Rebuilt) -> None:
    def stretch(parts: Parts) -> None:
        last = len(parts.rows) - 1
        parts.data()
        size = parts.rows[last].extent.size + 5000
        place = Extent(parts.rows[last].extent.at, size)
        row = replace(parts.rows[last], extent=place, size=size)
        parts.blob_pages = [pack_rows([*parts.rows[:-1], row])]

    bundle = rebuilt(stretch)
    with pytest.raises(CorruptError, match="overlaps the head or the catalog"):
        bundle.reader.row(23)
    with pytest.raises(CorruptError, match="names blob 24, but has only 24 blobs"):
        bundle.reader.row(24)
