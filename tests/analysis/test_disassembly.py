"""Cubins as instructions, with the real disassembler."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pallasc.analysis import nvdisasm
from pallasc.analysis.nvdisasm import disassemble, disassemble_all, sass
from pallasc.analysis.sass import INSTRUCTION_BYTES, Code, classify
from pallasc.compiler.toolchain import toolchain
from pallasc.errors import CorruptError, ToolError
from pallasc.specs.artifacts.cubin import parse_elf


def _text_section(cubin: bytes) -> bytes:
    return next(s for s in parse_elf(cubin).sections if s.name.startswith(".text.")).content


def _with_damaged_code(cubin: bytes) -> bytes:
    at = cubin.index(_text_section(cubin))
    return cubin[: at + 64] + b"\xff" * 64 + cubin[at + 128 :]


def test_many_at_once_are_the_same_as_one_by_one(
    cubins: Mapping[str, bytes], together: Mapping[str, Mapping[str, Code]]
) -> None:
    for name in ("add", "hopper_matmul"):
        assert dict(disassemble(cubins[name])) == together[name]


def test_every_instruction_has_its_text_its_bytes_and_a_class_and_branches_have_labels(
    artifacts: Mapping[str, Any], together: Mapping[str, Mapping[str, Code]]
) -> None:
    for name, artifact in artifacts.items():
        (code,), cubin = together[name].values(), artifact.cubin()
        counts = [each.live_registers for each in code.instructions]
        assert counts[0] is not None
        most = max(count for count in counts if count is not None)
        assert 1 < most <= artifact.kernels[0].registers
        raw = _text_section(cubin)
        listed = [line.partition("*/")[2] for line in sass(cubin).splitlines() if "/*" in line]
        texts = [" ".join(line.rstrip(" ;").split()) for line in listed]
        labels = {each.label for each in code.instructions} | {n for n, _ in code.functions}
        assert {each.target for each in code.instructions} - {""} <= labels
        assert "other" not in {classify(each) for each in code.instructions}
        for number, each in enumerate(code.instructions):
            assert each.address == number * INSTRUCTION_BYTES
            assert each.encoding == raw[each.address : each.address + INSTRUCTION_BYTES]
            if "`" not in each.text:
                assert each.text == texts[number]
            else:
                assert each.text.partition("`")[0] == texts[number].partition("`")[0]
        assert set(texts[len(code.instructions) :]) <= {"NOP"}


@pytest.mark.parametrize("bad", [b"", b"no cubin at all", b"\x7fELF\x02\x01" + bytes(100)])
def test_what_is_no_cubin_is_refused(bad: bytes) -> None:
    with pytest.raises(CorruptError):
        disassemble(bad)
    with pytest.raises(CorruptError, match=r"^the bad one: "):
        disassemble_all({"the bad one": bad})


def test_a_damaged_cubin_among_good_ones_is_named(cubins: Mapping[str, bytes]) -> None:
    good, bad = cubins["add"], _with_damaged_code(cubins["add"])
    with pytest.raises(CorruptError, match=r"^bad: nvdisasm cannot read the cubin: ") as caught:
        disassemble_all({"good": good, "bad": bad})
    assert "\n" not in caught.value.message


def test_a_missing_disassembler_says_how_to_get_it(
    cubins: Mapping[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "find_package", lambda name: None)
    with pytest.raises(ToolError, match="pip install nvidia-cuda-nvdisasm"):
        disassemble_all({"add": cubins["add"]})


def test_what_is_no_cubin_is_refused_without_naming_a_temporary_file() -> None:
    with pytest.raises(CorruptError, match="nvdisasm cannot read the cubin") as caught:
        sass(b"\x7fELF" + bytes(100))
    assert "/" not in caught.value.message
    assert caught.value.exit_code == 5


def test_a_disassembler_that_does_not_end_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvdisasm"
    tool.write_text("#!/bin/sh\nexec sleep 1000\n")
    tool.chmod(0o755)
    monkeypatch.setattr(nvdisasm, "find_disassembler", lambda: tool)
    monkeypatch.setattr(nvdisasm, "_LONGEST_S", 0.1)
    with pytest.raises(ToolError, match=r"nvdisasm took longer than 0 s for a cubin of 4 bytes"):
        sass(b"\x7fELF")
