"""Taking debug sections out of cubins: everything else stays as it is."""

import random
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_bundles import make_cubin, make_elf

from pallasc.errors import CorruptError
from pallasc.specs.artifacts.cubin import parse_cubin, parse_elf
from pallasc.specs.bundle.strip import debug_bytes, strip_debug

KERNELS = Path(__file__).parents[1] / "specs" / "kernels.ptx"
ARCHES = ("sm_80", "sm_90a", "sm_100a", "sm_120a")
NAMES = st.sampled_from(
    [".text.k", ".nv.info", ".debug_line", ".nv_debug_ptx_txt", ".rela.debug_line", ".symtab",
     ".nv.merc.nv_debug_line_sass", ".nv.merc.rela.debug_frame", ".debugger", ".nv.constant0.k"]
)  # fmt: skip
SECTIONS = st.lists(
    st.tuples(NAMES, st.sampled_from([1, 4, 8, 0x70000000]), st.binary(max_size=40)), max_size=8
)


def _is_debug(name: str) -> bool:
    return "debug_" in name


def _check(before: bytes, after: bytes) -> None:
    """Check that debug sections are empty and that all else is as it was."""
    old, new = parse_elf(before), parse_elf(after)
    assert new.size == len(after)
    assert (new.machine, new.abi_version, new.flags) == (old.machine, old.abi_version, old.flags)
    assert [s.name for s in new.sections] == [s.name for s in old.sections]
    assert new.symbols() == old.symbols()
    for was, is_ in zip(old.sections, new.sections, strict=True):
        assert is_.kind == was.kind
        if not _is_debug(was.name):
            assert (is_.size, is_.content) == (was.size, was.content)
        elif was.kind != 8:
            assert is_.size == 0
    assert debug_bytes(after) == 0
    assert strip_debug(after) == after


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], bytes]:
    """Return a function that assembles real kernels with line information."""
    from pallasc.compiler.toolchain.toolchain import find_toolchain

    folder = tmp_path_factory.mktemp("cubins")

    def assemble(arch: str) -> bytes:
        source, output = folder / f"{arch}.ptx", folder / f"{arch}.cubin"
        if not output.exists():
            source.write_text(KERNELS.read_text().replace("@ARCH@", arch))
            command = [find_toolchain().ptxas, "-lineinfo", f"-arch={arch}", "-o", output, source]
            subprocess.run(command, check=True)
        return output.read_bytes()

    return assemble


@pytest.mark.parametrize("arch", ARCHES)
def test_real_cubins_lose_debug_sections_only(compiled: Callable[[str], bytes], arch: str) -> None:
    cubin = compiled(arch)
    stripped = strip_debug(cubin)
    assert debug_bytes(cubin) > 1000
    assert len(stripped) <= len(cubin) - debug_bytes(cubin) // 2  # two may share their bytes
    _check(cubin, stripped)
    before, after = parse_cubin(cubin), parse_cubin(stripped)
    assert (after.sm, after.toolkit, after.kernels) == (before.sm, before.toolkit, before.kernels)
    assert before.ptx
    assert after.ptx in ("", "\n")
    for (kind, old), new in zip(_segments(cubin), _segments(stripped), strict=True):
        assert new[0] == kind
        if kind != 6 and b"\x7fELF" not in old[:4] and old != _programs(cubin):
            assert new[1] == old
    at, count = struct.unpack_from("<Q", stripped, 40)[0], struct.unpack_from("<H", stripped, 60)[0]
    for number in range(count):  # sections stay aligned
        row = struct.unpack_from("<IIQQQQIIQQ", stripped, at + 64 * number)
        assert row[1] == 8 or not row[5] or row[4] % max(1, row[8]) == 0


def _segments(data: bytes) -> list[tuple[int, bytes]]:
    at, size, count = (*struct.unpack_from("<Q", data, 32), *struct.unpack_from("<HH", data, 54))
    rows = [struct.unpack_from("<IIQQQQQQ", data, at + n * size) for n in range(count)]
    return [(row[0], data[row[2] : row[2] + row[5]]) for row in rows]


def _programs(data: bytes) -> bytes:
    at, size, count = (*struct.unpack_from("<Q", data, 32), *struct.unpack_from("<HH", data, 54))
    return data[at : at + size * count]


def test_a_cubin_without_debug_sections_or_with_loaded_ones_stays_as_it_is() -> None:
    cubin = make_cubin(debug=False)
    assert strip_debug(cubin) is cubin
    loaded = bytearray(make_elf([(".debug_frame", 1, b"kept")]))
    struct.pack_into("<Q", loaded, len(loaded) - 64 + 8, 2)  # SHF_ALLOC
    assert strip_debug(bytes(loaded)) == loaded
    assert debug_bytes(bytes(loaded)) == 0


def test_a_section_that_only_claims_bytes_of_the_file_is_none_to_keep() -> None:
    cubin = make_elf([(".debug_line", 1, b"x" * 50), (".nv.merc.nv.shared.reserved.0", 1, b"")])
    row = len(cubin) - 64
    changed = bytearray(cubin)
    struct.pack_into("<I", changed, row + 4, 0x70000015)
    struct.pack_into("<Q", changed, row + 32, 2**40)
    stripped = strip_debug(bytes(changed))
    assert len(stripped) == len(cubin) - 48  # 50 bytes, less what keeps the table in its place
    assert struct.unpack_from("<Q", stripped, len(stripped) - 32) == (2**40,)


@given(SECTIONS, st.sampled_from([1, 4, 16, 128]))
def test_only_debug_sections_go(sections: list[tuple[str, int, bytes]], alignment: int) -> None:
    cubin = make_elf([section for section in sections if section[1] != 8], alignment=alignment)
    _check(cubin, strip_debug(cubin))


@pytest.mark.parametrize(
    ("at", "form", "value", "words"),
    [(0, "<I", 0, "not a 64-bit little-endian ELF file"), (32, "<Q", 2**60, "ends after"),
     (40, "<Q", 2**60, "ends inside its section table"), (58, "<H", 40, "headers of 40"),
     (62, "<H", 99, "has its names in 99")],
)  # fmt: skip
def test_a_damaged_cubin_is_refused(at: int, form: str, value: int, words: str) -> None:
    cubin = bytearray(make_cubin())
    struct.pack_into("<H", cubin, 56, 1)  # one program header, so that its place counts
    struct.pack_into(form, cubin, at, value)
    with pytest.raises(CorruptError, match=words):
        strip_debug(bytes(cubin))


def test_a_mutated_cubin_gives_an_elf_file_or_the_one_error() -> None:
    rng = random.Random(7)
    cubin = make_cubin(rows=4)
    stripped = 0
    for _ in range(2000):
        data = bytearray(cubin)
        for _ in range(rng.choice((1, 2, 8))):
            data[rng.randrange(len(data))] = rng.choice((0, 255, rng.randrange(256)))
        try:
            strip_debug(bytes(data))
            stripped += 1
        except CorruptError:
            continue
    assert 100 < stripped < 2000
