"""PTX is read whole: scopes, labels, vectors, variables; what is not understood is refused."""

import pytest

from pallasc.emulator.ptx.parse import parse
from pallasc.emulator.ptx.syntax import Immediate, Kernel, Label
from pallasc.errors import UnsupportedError

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"


REGISTERS = ".reg .b32 %r<9>;\n.reg .b64 %rd<9>;\n.reg .pred %p<9>;\n"


def kernel(body: str, registers: str = REGISTERS) -> Kernel:
    return parse(
        f"{HEAD}.visible .entry k(\n.param .u64 a,\n.param .align 64 .b8 b[384]\n)\n"
        f".maxntid 128, 1, 1\n{{\n{registers}{body}\nret;\n}}\n"
    ).kernel("k")


@pytest.mark.parametrize(
    ("text", "value"), [("(0xf0 & 0xcc) ^ 0xaa", 0x6A), ("~3 & 0xFF", 0xFC), ("1 + 2", 3)]
)
def test_constant_expressions(text: str, value: int) -> None:
    found = kernel(f"lop3.b32 %r1, %r2, %r3, %r4, {text};\n").instructions[0]
    assert found.operands[4] == Immediate(value)


@pytest.mark.parametrize("text", ["1 & ", "() & 1", "(" * 500 + "1 &"])
def test_malformed_constant_expressions(text: str) -> None:
    with pytest.raises(UnsupportedError, match="unexpected"):
        kernel(f"lop3.b32 %r1, %r2, %r3, %r4, {text};\n")


def test_names_of_inner_scopes_are_their_own() -> None:
    block = "{ .reg .pred P1; WAIT: setp.eq.b32 P1, %r1, 0; @P1 bra.uni DONE; bra WAIT; DONE: }\n"
    code = kernel(block + block).instructions
    labels = [i.operands[0] for i in code if i.opcode.startswith("bra")]
    assert labels == [Label("DONE", 3), Label("WAIT", 0), Label("DONE", 6), Label("WAIT", 3)]
    first, second = (i.operands[0] for i in code if i.opcode.startswith("setp"))
    assert first != second
    assert [i.guard for i in code if i.guard] == [first, second]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("mov.u32 %r1, %nothing;", "%nothing"),
        ("bra NOWHERE;", "no label"),
        (".surprise 3;", "unexpected '.surprise'"),
        ("add.s32 %r1, ^;", r"unexpected '\^'"),
        ("add.s32 %r1, %r2", "line 11: unexpected '%r2 ret'"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_line(body: str, complaint: str) -> None:
    with pytest.raises(UnsupportedError, match=complaint):
        kernel(body, ".reg .b32 %r<9>;\n")
