"""The file that a shard writes: what is read is what was written, and damage is told."""

from __future__ import annotations

import hashlib
import os
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache.packs.reader import open_pack
from pallasc.compiler.shards.part import MAGIC, read_part, write_part
from pallasc.errors import CorruptError, PallascError, SpecError


def test_what_is_read_is_what_was_written(parts: Any) -> None:
    path = parts.write("2/3", "b a", "a b c", sources={"k file:k.py": "f" * 64}, whole=False)
    part = read_part(path)
    expected = parts.head("2/3", ["b", "a"], ["a", "b", "c"], sources={"k file:k.py": "f" * 64})
    assert part.head == expected._replace(packs=part.head.packs, whole=False)
    assert list(part.head.listed) == ["a", "b", "c"]
    (data,) = part.packs()
    assert len(list(open_pack(data).listed("ac"))) == 2


def test_equal_shards_give_equal_parts(parts: Any) -> None:
    first = parts.write("1/2", "a b", "a b c").read_bytes()
    assert parts.write("1/2", "a b", "a b c", name="again").read_bytes() == first


def test_a_shard_of_nothing_is_a_part_too(parts: Any) -> None:
    part = read_part(parts.write("8/8", "", "a"))
    assert (list(part.packs()), part.head.own, list(part.head.listed)) == ([], [], ["a"])


def test_large_parts_have_several_packs(parts: Any) -> None:
    words = " ".join(f"k{number}" for number in range(20))
    part = read_part(parts.write("1/1", words, words, pack_bytes=300))
    assert len(part.head.packs) > 5
    names = [name for data in part.packs() for name, _ in open_pack(data).listed("man")]
    assert len(names) == len(set(names)) == 20


def test_every_flipped_byte_is_told(parts: Any) -> None:
    path = parts.write("1/2", "a b", "a b c", pack_bytes=100)
    whole = path.read_bytes()
    for at in {*range(0, len(whole), 13), *range(len(whole) - 90, len(whole)), *range(20)}:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(CorruptError) as caught:
            list(read_part(path).packs())
        assert str(path) in str(caught.value)


def test_a_part_that_was_cut_off_or_has_more_is_told(parts: Any) -> None:
    path = parts.write("1/2", "a b", "a b c")
    whole = path.read_bytes()
    for data in (*(whole[:end] for end in range(0, len(whole), 37)), whole + b"\0", b"\0" + whole):
        path.write_bytes(data)
        with pytest.raises(CorruptError):
            list(read_part(path).packs())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not a part of a sharded build"),
        (b"PK\x03\x04" * 50, "is not a part of a sharded build"),
        (b"<?xml version='1.0'?>", "is not a part of a sharded build"),
        (b"pallasc-part 2\n" + b"x" * 90, "a part of another version than this pallasc reads"),
        (MAGIC, "it was cut short"),
        (MAGIC * 2, "it was cut short"),
        (MAGIC + b"\xff" * 56 + MAGIC, "its footer contradicts its size"),
    ],
)
def test_what_is_no_part_is_named(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(CorruptError, match=message) as caught:
        read_part(path)
    assert caught.value.exit_code == 5
    assert caught.value.hint


def test_a_head_that_would_unpack_to_a_gigabyte_is_refused_unread(tmp_path: Path) -> None:
    stored = b"\0" * 1000
    footer = struct.pack("<QQQ", len(MAGIC), len(stored), 2**30) + hashlib.sha256(stored).digest()
    (tmp_path / "bomb").write_bytes(MAGIC + stored + footer + MAGIC)
    with pytest.raises(CorruptError, match="its footer contradicts its size"):
        read_part(tmp_path / "bomb")


def test_random_files_are_never_parts(tmp_path: Path) -> None:
    chance = random.Random(7)
    path = tmp_path / "file"
    for _ in range(200):
        path.write_bytes(MAGIC + chance.randbytes(chance.randrange(200)) + MAGIC)
        with pytest.raises(PallascError):
            read_part(path)


def test_a_head_with_other_fields_is_told(parts: Any) -> None:
    for changed in (
        {"entries": {"a": ("x", "y", "z")}},
        {"costs_s": {"a": -1.0}},
        {"rule": "1"},
        {"listed": {"a": 3}},
        {"own": [1]},
        {"costs": None},
    ):
        path = parts.write("1/2", "", "a", **changed)
        with pytest.raises(CorruptError, match="its head is malformed"):
            read_part(path)


def test_a_file_that_is_not_there_or_not_a_file_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="there is no such file"):
        read_part(tmp_path / "none")
    with pytest.raises(SpecError, match="a directory, not a file"):
        read_part(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SpecError, match="a named pipe, not a file"):
        read_part(tmp_path / "pipe")


def test_writing_is_one_step_and_leaves_nothing_behind(parts: Any, tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "1.part"
    write_part(path, parts.head("1/1", [], ["a"]), [])
    assert os.listdir(path.parent) == ["1.part"]
    with pytest.raises(SpecError, match="Give --shard-output another path"):
        write_part(path / "below", parts.head("1/1", [], ["a"]), [])

    def broken() -> Any:
        yield parts.files(["a"])[0]
        raise CorruptError("too large")

    before = path.read_bytes()
    with pytest.raises(CorruptError, match="too large"):
        write_part(path, parts.head("1/1", ["a"], ["a"]), broken())
    assert (os.listdir(path.parent), path.read_bytes()) == (["1.part"], before)
