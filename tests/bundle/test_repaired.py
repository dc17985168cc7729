"""The fuzzer's bundles: read as others are, and digests that fit after every change."""

from __future__ import annotations

import random

from mutations import damage, make_bundle, read_all
from repaired import frame, plain_bundle, repair

from pallasc.errors import CorruptError
from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.bundle.compress import decompress
from pallasc.specs.bundle.verify import verify


def test_a_plain_bundle_reads_as_the_compressed_one() -> None:
    plain = open_bundle(plain_bundle())
    verify(plain)
    assert read_all(plain) == read_all(open_bundle(make_bundle()))


def test_a_frame_holds_its_content_as_it_is() -> None:
    for size in (1, 1000, 2**17, 2**17 + 1):
        content = random.Random(size).randbytes(size)
        assert decompress(frame(content), size) == content


def test_a_bundle_that_is_sound_stays_as_it_is() -> None:
    data = plain_bundle()
    assert repair(data) == data


def test_most_changes_get_past_the_digests() -> None:
    data = plain_bundle()
    past = 0
    for seed in range(300):
        changed = bytearray(data)
        at = random.Random(seed).randrange(300, len(data))
        changed[at] ^= 1
        try:
            read_all(open_bundle(repair(bytes(changed))))
            past += 1
        except CorruptError as error:
            past += "digest" not in error.message and "names" not in error.message
    assert past > 250
    for seed in range(300):
        repair(damage(data, random.Random(seed)))
