"""What is read from a cubin, against what the assembler says of it; the driver it needs."""

import contextlib
import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from pallasc.compiler.toolchain.toolchain import find_toolchain, tool_version
from pallasc.errors import CompileError, CorruptError
from pallasc.specs.artifacts.cubin import (
    Tool,
    api_version,
    minimum_driver,
    other_maker,
    parse_cubin,
    parse_elf,
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
    assert parsed.kernels["plain"].parameter_bytes == (8, 4)
    assert parsed.kernels["shared"].parameter_bytes == (8, 384, 1)
    version = tool_version(find_toolchain().ptxas)
    (tool,) = parsed.tools
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


def test_a_version_of_cuda_is_written_as_the_driver_writes_it() -> None:
    texts = ("12.8", "13.3", "9.0", "13", "a.b", "12.", "1" * 30 + ".0")
    assert [api_version(text) for text in texts] == [12080, 13030, 9000, None, None, None, None]
