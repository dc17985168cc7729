"""Maps opcodes to the functions that build their steps."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pallasc.emulator.instructions import (
    arithmetic,
    calls,
    cluster_launch,
    cluster_memory,
    control,
    copies,
    memory,
    multimem,
    synchronisation,
    tensor_core,
    warp_matrices,
    warpgroup,
)
from pallasc.emulator.instructions.builder import Build, Builder, refusal
from pallasc.emulator.instructions.forms import form_of
from pallasc.emulator.machine.warp import Step
from pallasc.emulator.ptx.syntax import Instruction

BUILDERS: Mapping[str, Build] = MappingProxyType(
    {
        "activemask": control.activemask,
        "atom": memory.atom,
        "bar": synchronisation.bar,
        "barrier": synchronisation.barrier,
        "bra": control.bra,
        "call": calls.call,
        "clusterlaunchcontrol": cluster_launch.build,
        "cp": copies.cp,
        "cvta": control.cvta,
        "elect": control.elect,
        "exit": control.ret,
        "fence": synchronisation.fence,
        "getctarank": cluster_memory.getctarank,
        "griddepcontrol": control.nothing,
        "isspacep": control.isspacep,
        "ld": memory.ld,
        "ldmatrix": warp_matrices.ldmatrix,
        "ldu": memory.ld,
        "mapa": cluster_memory.mapa,
        "mbarrier": synchronisation.mbarrier,
        "membar": synchronisation.fence,
        "mma": warp_matrices.mma,
        "mov": control.mov,
        "multimem": multimem.build,
        "nanosleep": control.nothing,
        "prefetch": control.nothing,
        "prefetchu": control.nothing,
        "red": memory.red,
        "redux": control.redux,
        "ret": control.ret,
        "setmaxnreg": control.setmaxnreg,
        "shfl": control.shfl,
        "st": memory.st,
        "stmatrix": warp_matrices.stmatrix,
        "tcgen05": tensor_core.build,
        "trap": control.trap,
        "vote": control.vote,
        "wgmma": warpgroup.build,
    }
)
"""By the first part of the opcode; arithmetic is looked up by the full opcode."""


def build(instruction: Instruction, builder: Builder) -> Step:
    """Return the step that executes an instruction.

    Raises:
        UnsupportedError: the emulator does not support it, or a part of it.
    """
    parts = instruction.parts
    known = BUILDERS.get(parts[0])
    if known is not None:
        if form_of(instruction.opcode) is None:
            raise refusal(instruction)
        if parts[0] in ("st", "red") and parts[1] == "async":
            known = cluster_memory.st_async
        return known(instruction, builder)
    step = arithmetic.build(instruction, builder)
    if step is None:
        raise refusal(instruction)
    return step
