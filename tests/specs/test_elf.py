"""Reading ELF files: their parts, and refusing what does not fit."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallasc.errors import CorruptError
from pallasc.specs.artifacts.cubin import parse_elf


def _elf(sections: list[tuple[str, int, bytes]], *, machine: int = 190) -> bytes:
    """Return an ELF file with these sections (name, kind, content), the names last."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name, _, _ in sections) + b".shstrtab\0"
    contents = [content for _, _, content in sections] + [names]
    labels = [name for name, _, _ in sections] + [".shstrtab"]
    kinds = [kind for _, kind, _ in sections] + [3]
    at, rows = 64, [bytes(64)]
    for label, kind, content in zip(labels, kinds, contents, strict=True):
        name = names.index(label.encode() + b"\0")
        rows.append(struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, at, len(content), 0, 0, 1, 0))
        at += 0 if kind == 8 else len(content)
    body = b"".join(c for c, kind in zip(contents, kinds, strict=True) if kind != 8)
    header = struct.pack(
        "<4s4B8xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 51, 1, machine, 1, 0, 0, at, 0x5A, 64, 0, 0,
        64, len(rows), len(rows) - 1,
    )  # fmt: skip
    header = header[:8] + bytes([8]) + header[9:]
    return header + body + b"".join(rows)


def test_sections_have_names_kinds_and_contents() -> None:
    elf = parse_elf(_elf([(".text.k", 1, b"abc"), (".bss", 8, b"four")]))
    assert [(s.name, s.kind, s.size, s.content) for s in elf.sections[1:3]] == [
        (".text.k", 1, 3, b"abc"),
        (".bss", 8, 4, b""),
    ]
    assert (elf.machine, elf.abi_version, elf.flags) == (190, 8, 0x5A)
    assert elf.section(".none") is None
    data = _elf([(".text.k", 1, b"abc")])
    assert parse_elf(data + b"more").size == len(data)
    assert parse_elf(data).symbols() == []


def test_symbols_say_whether_they_are_defined() -> None:
    table = bytes(24) + struct.pack("<IBBHQQ", 1, 0, 0, 0, 0, 0)
    table += struct.pack("<IBBHQQ", 7, 0, 0, 2, 0, 0)
    elf = parse_elf(_elf([(".symtab", 2, table), (".strtab", 3, b"\0hello\0world\0")]))
    assert [(s.name, s.section) for s in elf.symbols()] == [("", 0), ("hello", 0), ("world", 2)]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a 64-bit little-endian ELF file"),
        (b"\x7fELF\x01\x01" + bytes(60), "not a 64-bit little-endian ELF file"),
        (_elf([(".text", 1, b"abc")])[:-1], "ends inside its section table"),
    ],
)
def test_what_is_no_such_file_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(CorruptError, match=words):
        parse_elf(data)


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [(40, 1 << 60, "section table"), (58, 40, "section headers of 40 bytes"),
     (62, 9, "has its names in 9"), (32, 1 << 62, "ends after")],
)  # fmt: skip
def test_headers_that_do_not_fit_are_refused(at: int, value: int, words: str) -> None:
    data = bytearray(_elf([(".text", 1, b"abc")]))
    size = 8 if at in (32, 40) else 2
    data[at : at + size] = value.to_bytes(size, "little")
    with pytest.raises(CorruptError, match=words):
        parse_elf(bytes(data))


@given(st.binary(max_size=200))
def test_any_bytes_give_an_answer_or_an_error_of_ours(tail: bytes) -> None:
    try:
        parse_elf(b"\x7fELF\x02\x01" + tail)
    except CorruptError:
        return


def test_a_damaged_file_gives_an_answer_or_an_error_of_ours(
    assemble: Callable[[str], Any],
) -> None:
    data, dice = assemble("sm_90a").cubin, random.Random(2)
    for _ in range(2000):
        damaged = bytearray(data)
        # Headers and the section table, which lies at the end, are what lengths come from.
        for _ in range(dice.randrange(1, 4)):
            at = dice.choice((dice.randrange(64), len(data) - 1 - dice.randrange(2000)))
            damaged[at] = dice.randrange(256)
        try:
            parse_elf(bytes(damaged)).symbols()
        except CorruptError:
            continue
