"""What is read from a cubin, against what the assembler says of it; the driver it needs."""

from __future__ import annotations

import contextlib
import random
import re
import struct
from collections.abc import Callable
from typing import Any

import pytest

from pallasc.compiler.toolchain.toolchain import find_toolchain, tool_version
from pallasc.errors import CompileError, CorruptError
from pallasc.specs.artifacts.cubin import (
    Parameter,
    Tool,
    minimum_driver,
    other_maker,
    parse_cubin,
    parse_elf,
    tools_of,
)

Assemble = Callable[[str], Any]
ARCHITECTURES = (
    "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_110a", "sm_120a",
)  # fmt: skip

_FUNCTION = re.compile(
    r"Function properties for (?P<name>\w+)\s+(?P<stack>\d+) bytes stack frame.*?\n"
    r".*?Used (?P<registers>\d+) registers, used (?P<barriers>\d+) barriers(?P<rest>.*)"
)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_cubin_holds_what_the_assembler_reports(assemble: Assemble, arch: str) -> None:
    cubin, report = assemble(arch)
    parsed = parse_cubin(cubin)
    assert parsed.sm == int(arch.strip("sm_a"))
    assert parsed.ptx == ""
    found = {match["name"]: match for match in _FUNCTION.finditer(report)}
    assert set(parsed.kernels) == set(found) == {"plain", "shared", "stacked"}
    for name, kernel in parsed.kernels.items():
        smem = re.search(r"(\d+) bytes smem", found[name]["rest"])
        assert kernel.registers == int(found[name]["registers"])
        assert kernel.barriers == int(found[name]["barriers"])
        assert kernel.stack_bytes == int(found[name]["stack"])
        assert kernel.static_smem_bytes == (int(smem[1]) if smem else 0)
    assert parsed.kernels["plain"].parameters == (Parameter(0, 8), Parameter(8, 4))
    assert [p.size for p in parsed.kernels["shared"].parameters] == [8, 384, 1]
    version = tool_version(find_toolchain().ptxas)
    (tool,) = parsed.tools
    assert tools_of(cubin) == (tool,)
    assert (tool.name, tool.version) == ("ptxas", version)
    assert f"-arch {arch}" in tool.options
    assert version.startswith(f"{parsed.toolkit}.")


def test_any_damage_gives_an_answer_or_an_error_of_ours(assemble: Assemble) -> None:
    cubin, dice = assemble("sm_100a").cubin, random.Random(1)
    for _ in range(3000):
        damaged = bytearray(cubin)
        # Headers and the section table at the end are what lengths come from.
        size = dice.choice((64, 64, len(cubin)))
        for _ in range(dice.choice((1, 1, 4, 40))):
            at = dice.choice((dice.randrange(size), len(cubin) - 1 - dice.randrange(2000)))
            damaged[at] = dice.choice((0, 0xFF, dice.randrange(256)))
        with contextlib.suppress(CorruptError):
            parse_elf(bytes(damaged)).symbols()
            parse_cubin(bytes(damaged))


PTXAS = Tool("ptxas", "13.5.37", "")


@pytest.mark.parametrize(
    ("tools", "maker"),
    [
        ((Tool("nvlink", "13.4.1", ""), PTXAS), ""),
        ((Tool("nvlink", "13.5.37", ""), Tool("ptxas", "13.0.88", "")), "ptxas 13.0.88"),
        ((Tool("nvJIT API", "13.5.37", ""), PTXAS), "nvJIT API 13.5.37"),
        ((), "a tool that it does not name"),
    ],
)
def test_another_maker_than_the_assembler_is_named(tools: tuple[Tool, ...], maker: str) -> None:
    assert other_maker(tools, "13.5.37") == maker
    assert other_maker((), "12.9.86") == ""


def test_what_is_no_whole_cubin_is_refused(assemble: Assemble) -> None:
    cubin = assemble("sm_90a").cubin
    with pytest.raises(CorruptError, match="ELF machine 62 instead of 190"):
        parse_cubin(cubin[:18] + (62).to_bytes(2, "little") + cubin[20:])
    info = parse_elf(cubin).section(".nv.info.plain")
    assert info is not None
    at = cubin.find(info.content)
    with pytest.raises(CorruptError, match="attributes end inside attribute 0x17"):
        parse_cubin(cubin[:at] + b"\x04\x17\xff\xff" + cubin[at + 4 :])
    for size in range(0, len(cubin), 7):
        with pytest.raises(CorruptError):
            parse_cubin(cubin[:size])


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


def test_what_is_no_such_file_is_refused() -> None:
    whole = _elf([(".text", 1, b"abc")])
    cases = [
        (b"", "not a 64-bit little-endian ELF file"),
        (b"\x7fELF\x01\x01" + bytes(60), "not a 64-bit little-endian ELF file"),
        (whole[:-1], "ends inside its section table"),
    ]
    for at, size, value, words in (
        (40, 8, 1 << 60, "section table"), (58, 2, 40, "section headers of 40 bytes"),
        (62, 2, 9, "has its names in 9"), (32, 8, 1 << 62, "ends after"),
    ):  # fmt: skip
        cases.append((whole[:at] + value.to_bytes(size, "little") + whole[at + size :], words))
    for data, words in cases:
        with pytest.raises(CorruptError, match=words):
            parse_elf(data)


@pytest.mark.parametrize(
    ("toolkit", "sm", "cuda", "linux"),
    [
        ("12.9", 80, "12.0", "525.60.13"),
        ("12.9", 100, "12.8", "570.26"),
        ("12.9", 103, "12.9", "575.51.03"),
        ("13.0", 80, "13.0", "580.65.06"),
        ("13.5", 110, "13.0", "580.65.06"),
    ],
)
def test_minimum_driver(toolkit: str, sm: int, cuda: str, linux: str) -> None:
    assert minimum_driver(toolkit=toolkit, sm=sm) == {"cuda": cuda, "linux": linux}


@pytest.mark.parametrize("toolkit", ["11.8", "14.0", ""])
def test_a_toolkit_that_was_not_tested_is_refused(toolkit: str) -> None:
    with pytest.raises(CompileError, match=f"CUDA toolkit {toolkit or 'unknown'}; tested are 12"):
        minimum_driver(toolkit=toolkit, sm=90)
