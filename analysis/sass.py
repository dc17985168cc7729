"""SASS: instructions, their classes, and the text that nvdisasm prints.

`read_listing` reads the output of `nvdisasm -c`, with or without `-lrm count`. Only these lines of
each section `.text.KERNEL` are used:

    .section .text.KERNEL,"ax",@progbits
    .L_x_3:                                             labels, and functions within the kernel
            /*0a30*/              @!P1 BRA `(.L_x_3) ;         // |  45  |   2  | …

The first column after `//` is the number of live general registers; it is missing if nvdisasm's
data-flow analysis was off. A label may mark something other than a branch target (such as a point
where warps converge), and its number depends on the rest of the file. Therefore, only labels that
an instruction names are used, renumbered by address.

ptxas puts functions for traps and slow divisions after the kernel's own code. In these functions,
and at calls to them, the live count also depends on the rest of the file, so it is left out there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pallasc.specs.artifacts.source_lines import INSTRUCTION_BYTES

_SECTION = re.compile(r'\t\.section\t\.text\.(.+),"[a-z]*",@progbits')
_LABEL = re.compile(r"([^\s:]+):")
_INSTRUCTION = re.compile(
    r"\s+/\*(?P<address>[0-9a-f]+)\*/\s+(?P<predicate>@!?U?P\w+ )?\s*(?P<opcode>[A-Z][\w.]*)"
    r"\s*(?P<operands>.*?)\s*;\s*(?:// \|\s*(?P<live>\d*)\s*\|.*)?"
)
_NAMED = re.compile(r"`\(([^)]+)\)")
_OWN_LABEL = re.compile(r"\.L_\w*")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        address: bytes from the start of the kernel's code.
        predicate: `@!P0`, "" if it has none.
        opcode: the opcode with its modifiers, `HGMMA.64x256x16.F32.BF16`.
        operands: as printed by nvdisasm, `gdesc[UR4]`; a branch's operand is a label.
        label: the label at this address if a branch uses it, else "".
        live_registers: number of live general registers; None if nvdisasm does not know.
        encoding: 16 bytes, little-endian, including the control word.
    """

    address: int
    predicate: str
    opcode: str
    operands: tuple[str, ...]
    label: str
    live_registers: int | None
    encoding: bytes

    @property
    def mnemonic(self) -> str:
        """The opcode without modifiers, `HGMMA`."""
        return self.opcode.partition(".")[0]

    @property
    def text(self) -> str:
        """The instruction as printed by nvdisasm."""
        return " ".join(filter(None, (self.predicate, self.opcode, ", ".join(self.operands))))

    @property
    def target(self) -> str:
        """The label or function that an operand names, "" if there is none."""
        return next((match[1] for match in map(_NAMED.search, self.operands) if match), "")


@dataclass(frozen=True, slots=True)
class Code:
    """The instructions of a kernel by address, without padding at the end.

    `functions` has the names and addresses of called functions within the kernel.
    """

    kernel: str
    instructions: tuple[Instruction, ...]
    functions: tuple[tuple[str, int], ...] = ()


Codes = Mapping[str, Mapping[str, Code]]
"""The code of kernels by cubin digest and kernel name."""


def read_listing(text: str, contents: Mapping[str, bytes]) -> dict[str, Code]:
    """Return the code of the kernels in a listing.

    Args:
        text: the output of nvdisasm.
        contents: the bytes of each kernel's section, by the kernel's name.
    """
    sections: dict[str, tuple[list[re.Match[str]], dict[str, int]]] = {}
    lines, labels = list[re.Match[str]](), dict[str, int]()
    waiting: list[str] = []
    for line in text.splitlines():
        if match := _INSTRUCTION.fullmatch(line):
            labels.update(dict.fromkeys(waiting, int(match["address"], 16)))
            lines.append(match)
            waiting = []
        elif match := _SECTION.match(line):
            lines, labels = sections.setdefault(match[1], ([], {}))
            waiting = []
        elif match := _LABEL.match(line):
            waiting.append(match[1])
    return {name: _code(name, *section, contents[name]) for name, section in sections.items()}


def _code(
    kernel: str, lines: list[re.Match[str]], labels: Mapping[str, int], content: bytes
) -> Code:
    named = {name for line in lines for name in _NAMED.findall(line["operands"])}
    own = {name: labels[name] for name in named & labels.keys() if _OWN_LABEL.fullmatch(name)}
    functions = {name: labels[name] for name in named & labels.keys() - own.keys()}
    numbered = {at: f".L_x_{number}" for number, at in enumerate(sorted({*own.values()}))}
    renamed = {name: numbered[at] for name, at in own.items()}
    end = min(filter(None, functions.values()), default=len(content))
    instructions = list(_instructions(lines, numbered, renamed, content, end))
    while instructions and instructions[-1].opcode == "NOP":  # padding
        instructions.pop()
    return Code(kernel, tuple(instructions), tuple(sorted(functions.items())))


def _instructions(
    lines: list[re.Match[str]],
    labels: Mapping[int, str],
    renamed: Mapping[str, str],
    content: bytes,
    end: int,
) -> Iterator[Instruction]:
    for line in lines:
        address, operands = int(line["address"], 16), line["operands"]
        if "`" in operands:
            operands = _NAMED.sub(lambda m: f"`({renamed.get(m[1], m[1])})", operands)
        has_count = line["live"] and address < end and not line["opcode"].startswith("CALL")
        yield Instruction(
            address=address,
            predicate=(line["predicate"] or "").rstrip(),
            opcode=line["opcode"],
            operands=tuple(operands.split(", ")) if operands else (),
            label=labels.get(address, ""),
            live_registers=int(line["live"]) if has_count else None,
            encoding=content[address : address + INSTRUCTION_BYTES],
        )


Class = str
"""A kind of work, such as "tensor"; see `CLASSES`."""

# From the tables "Instruction Set" in NVIDIA's CUDA Binary Utilities, chapters Ampere to Blackwell.
_NAMES: Mapping[Class, str] = MappingProxyType(
    {
        "tensor": "HGMMA QGMMA IGMMA BGMMA HMMA IMMA DMMA BMMA QMMA OMMA UTCHMMA UTCQMMA UTCIMMA "
        "UTCOMMA",
        "tensor_memory": "LDTM STTM LDT STT UTCCP UTCSHIFT UTCATOMSWS UTCLDSWS UTCSTSWS",
        "tma": "UTMALDG UTMASTG UTMAREDG UTMAPF UTMACCTL UTMACMDFLUSH UBLKCP UBLKPF UBLKRED",
        "load_global": "LDG LD LDGSTS LDGMC TEX TLD TLD4 TXD TXQ SULD",
        "store_global": "STG ST SUST",
        "atomic": "ATOM ATOMG RED REDG UREDGR SUATOM SURED",
        "local": "LDL STL",
        "shared": "LDS STS LDSM STSM STAS REDAS ATOMS UMEMSETS",
        "constant": "LDC ULDC LDCU",
        "barrier": "BAR SYNCS DEPBAR LDGDEPBAR MEMBAR ERRBAR CGAERRBAR FENCE CCTL CCTLL CCTLT "
        "UCGABAR_ARV UCGABAR_WAIT UTCBAR WARPGROUP WARPGROUPSET ACQBULK PREEXIT B2R",
        "floating": "FADD FADD2 FADD32I FCHK FFMA FFMA2 FFMA32I FHADD FHFMA FMNMX FMNMX3 FMUL "
        "FMUL2 FMUL32I FRND FSEL FSET FSETP FSWZADD MUFU HADD2 HADD2_32I HFMA2 HFMA2_32I HMNMX2 "
        "HMUL2 HMUL2_32I HSET2 HSETP2 DADD DFMA DMUL DSETP",
        "integer": "BMSK BREV FLO IABS IADD IADD3 IADD32I IDP IDP4A IMAD IMNMX IMUL IMUL32I ISCADD "
        "ISCADD32I ISETP LEA LOP LOP3 LOP32I POPC SEL SGXT SHF SHL SHR VABSDIFF VABSDIFF4 VHMNMX "
        "VIADD VIADDMNMX VIMNMX VIMNMX3",
        "conversion": "F2F F2FP F2I F2IP I2F I2FP I2I I2IP",
        "warp": "SHFL VOTE VOTEU MATCH ELECT REDUX CREDUX WARPSYNC ENDCOLLECTIVE",
        "move": "MOV MOV32I MOVM PRMT PLOP3 PSETP P2R R2P R2UR S2R S2UR CS2R CS2UR UP2UR UR2UP "
        "LEPC GETLMEMBASE SETLMEMBASE",
        "uniform": "",
        "control": "BRA BRX BRXU JMP JMX JMXU CALL RET EXIT BSSY BSYNC BREAK BMOV BPT KILL NOP "
        "NANOSLEEP YIELD RPCMOV PMTRIG SETCTAID USETMAXREG UGETNEXTWORKID UVIRTCOUNT QSPC",
    }
)

CLASSES: tuple[Class, ...] = (*_NAMES, "other")
"""The classes in display order; `other` is for instructions unknown to this module."""

_LISTED = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_UNIFORM = dict.fromkeys((f"U{name}" for name in _LISTED), "uniform")
_CLASS_OF: Mapping[str, Class] = MappingProxyType({**_UNIFORM, **_LISTED})
"""The class of each mnemonic. `UIADD3` is not listed, but `IADD3` is, so it is `uniform`."""


def classify(instruction: Instruction) -> Class:
    """Return the class of an instruction, "other" for an unknown mnemonic.

    Every instruction of the uniform datapath has the class `uniform`: it runs once per warp, in
    parallel with other instructions.
    """
    return _CLASS_OF.get(instruction.mnemonic, "other")


def mix_of(instructions: Iterable[Instruction]) -> dict[Class, int]:
    """Count the instructions of each class, in the order of the classes."""
    counts = Counter(map(classify, instructions))
    return {name: counts[name] for name in CLASSES if counts[name]}
