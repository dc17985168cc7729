"""Verifying a whole bundle: every byte has its place, and is what its digest says."""

from collections.abc import Callable
from typing import Any

import pytest
from made_bundles import make_items
from taken_apart import Parts

from pallasc.errors import CorruptError
from pallasc.specs.bundle.bundle import Bundle, open_bundle
from pallasc.specs.bundle.format import HEAD_BYTES
from pallasc.specs.bundle.verify import verify
from pallasc.specs.bundle.writer import build_bundle


def test_a_sound_bundle_is_verified(rebuilt: Callable[..., Bundle]) -> None:
    verify(open_bundle(build_bundle(make_items(140))))
    verify(rebuilt(lambda parts: None))
    verify(rebuilt(lambda parts: parts.contents() and None))


def test_a_changed_byte_anywhere_in_the_body_is_seen(small: bytes) -> None:
    for at in range(HEAD_BYTES, len(small), 67):
        data = bytearray(small)
        data[at] ^= 0x10
        with pytest.raises(CorruptError, match=r"^the bundle"):
            verify(open_bundle(bytes(data)))


def _add_blob(parts: Parts, content: bytes) -> None:
    parts.stored.append(b"")
    parts.rows.append(parts.rows[-1])
    parts.set_content(len(parts.rows) - 1, content)


EDITS: dict[str, tuple[Callable[[Parts], Any], str]] = {
    "bytes behind a frame": (
        lambda parts: parts.stored.append(parts.stored.pop() + b"hidden"),
        "6 bytes of unused data",
    ),
    "a gap": (
        lambda parts: setattr(parts, "gap", b"in no part of it"),
        "its bytes .* belong to no part",
    ),
    "a blob that nobody has": (
        lambda parts: _add_blob(parts, b"smuggled"), "no variant uses its blob 24"
    ),
    "another first key": (
        lambda parts: parts.first_keys.__setitem__(0, b"aaa"),
        "page 0 of its entries begins with another key",
    ),
    "another content digest": (
        lambda parts: setattr(parts, "content", bytes(32)), "the digest of its content"
    ),
    "other provenance": (
        lambda parts: parts.head.update(provenance_digest=bytes(32))
        or setattr(parts, "provenance", b"[]"),
        "provenance does not match the digest",
    ),
    "another body digest": (
        lambda parts: parts.head.update(body_digest=bytes(32)), "bytes do not match their digest"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_verifying_sees(name: str, rebuilt: Callable[..., Bundle]) -> None:
    edit, words = EDITS[name]
    bundle = rebuilt(edit)
    assert len(list(bundle.entries())) == 12  # reading what is asked for does not see it
    with pytest.raises(CorruptError, match=words):
        verify(bundle)


def test_entries_out_of_order_are_seen() -> None:
    parts = Parts.of(build_bundle(make_items(2)))
    page = parts.entry_pages[0]
    first, second = (int.from_bytes(page[at : at + 4], "little") for at in (0, 4))
    head, other = page[8 : 8 + first], page[8 + first :]
    swapped = (second - first).to_bytes(4, "little") + page[4:8] + other + head
    parts.entry_pages[0] = swapped
    parts.first_keys = [other.partition(b"\n")[0]]
    with pytest.raises(CorruptError, match="out of order"):
        verify(open_bundle(parts.data()))


@pytest.mark.parametrize("minor", [0, 2, 3])
def test_what_a_later_minor_version_says_of_a_variant_is_passed_over(minor: int) -> None:
    parts = Parts.of(build_bundle(make_items(1)))
    text = parts.entry_pages[0][4:-1] + b',"what is new":1}'
    parts.entry_pages[0] = len(text).to_bytes(4, "little") + text
    parts.content = bytes(32)  # over what is new as well, so this version cannot tell it
    parts.head = {"minor": minor}
    with open_bundle(parts.data()) as bundle:
        assert len(list(bundle.entries())) == 1
        if minor > 2:
            verify(bundle)
            return
        with pytest.raises(CorruptError, match="does not match the digest of its content"):
            verify(bundle)
