"""Classifies instructions by kind of work.

The names are from the tables "Instruction Set" in NVIDIA's CUDA Binary Utilities, chapters Ampere
to Blackwell. An instruction of the uniform datapath is always `uniform`: it runs once per warp, in
parallel with the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, get_args

from pallasc.analysis.sass.instructions import Instruction

Class = Literal[
    "tensor",
    "tensor_memory",
    "tma",
    "load_global",
    "store_global",
    "atomic",
    "local",
    "shared",
    "constant",
    "barrier",
    "floating",
    "integer",
    "conversion",
    "warp",
    "move",
    "uniform",
    "control",
    "other",
]
"""In display order; `other` is for instructions unknown to this module."""

CLASSES: tuple[Class, ...] = get_args(Class)

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
        "control": "BRA BRX BRXU JMP JMX JMXU CALL RET EXIT BSSY BSYNC BREAK BMOV BPT KILL NOP "
        "NANOSLEEP YIELD RPCMOV PMTRIG SETCTAID USETMAXREG UGETNEXTWORKID UVIRTCOUNT QSPC",
    }
)

_CLASS_OF: Mapping[str, Class] = MappingProxyType(
    {name: kind for kind, names in _NAMES.items() for name in names.split()}
)


def classify(instruction: Instruction) -> Class:
    """Return the class of an instruction, "other" for an unknown mnemonic."""
    mnemonic = instruction.mnemonic
    known = _CLASS_OF.get(mnemonic)
    if known is not None:
        return known
    return "uniform" if mnemonic.startswith("U") and _CLASS_OF.get(mnemonic[1:]) else "other"
