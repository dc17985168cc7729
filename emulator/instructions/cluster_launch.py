"""`clusterlaunchcontrol`: a cluster takes over the work of one that has not started.

PTX ISA 9.0, 9.7.14.18 and 9.7.14.19. The format of the 16-byte response is not documented; the
emulator stores the first block's index and a flag for success.
"""

from __future__ import annotations

import numpy as np

from pallasc.emulator.instructions.builder import PREDICATE, Builder, refusal
from pallasc.emulator.instructions.memory import lanes
from pallasc.emulator.machine.block import Asynchronous, Block
from pallasc.emulator.machine.memory import OFFSET_MASK
from pallasc.emulator.machine.warp import Step, Warp
from pallasc.emulator.ptx.syntax import Instruction, Register

_ANSWER_BYTES = 16
_U4 = np.dtype("u4")


def build(instruction: Instruction, builder: Builder) -> Step:
    """`clusterlaunchcontrol.try_cancel` and `.query_cancel`."""
    if instruction.parts[1] == "try_cancel":
        return _try_cancel(instruction, builder)
    if instruction.parts[1:3] == ("query_cancel", "is_canceled"):
        return _is_canceled(instruction, builder)
    if instruction.parts[1] == "query_cancel" and instruction.parts[2].startswith("get_first_"):
        return _first_index(instruction, builder)
    raise refusal(instruction)


def _try_cancel(instruction: Instruction, builder: Builder) -> Step:
    target, signal = instruction.operands
    address, barrier = builder.address(target), builder.address(signal)
    everyone = "multicast::cluster::all" in instruction.parts

    def run(w: Warp, place: int) -> int:
        addresses, barriers = address(w), barrier(w)
        cluster = w.block.cluster
        for lane in lanes(w):
            at, signal = int(addresses[lane]) & OFFSET_MASK, int(barriers[lane]) & OFFSET_MASK
            blocks = cluster.blocks if everyone else [w.block]

            def complete(at: int = at, signal: int = signal, blocks: list[Block] = blocks) -> None:
                first = w.block.launch.cancel(is_busy=w.block.machine.policy.busy)
                answer = np.array([*(first or (0, 0, 0)), first is not None], "u4")
                for block in blocks:
                    block.shared.data[at : at + _ANSWER_BYTES] = answer.view(np.uint8)
                    block.mbarrier(block.base + signal).complete(_ANSWER_BYTES)

            text: Instruction = w.block.launch.program.kernel.instructions[place]
            operation = Asynchronous(complete, "an answer to try_cancel", text, w.actor, lane)
            operation.writes = [(block.shared, at, _ANSWER_BYTES) for block in blocks]
            operation.signals = [(block, signal) for block in blocks]
            if w.block.machine.observer is not None:
                w.block.machine.observer.issued(w, place, operation)
            w.block.machine.issue(operation)
        return place + 1

    return run


def _answer(w: Warp, number: int) -> np.ndarray:
    words: np.ndarray = np.ascontiguousarray(w.registers[number]).view(_U4)
    return words


def _number(instruction: Instruction) -> int:
    handle = instruction.operands[1]
    if not isinstance(handle, Register) or handle.type != "b128":
        raise refusal(instruction)
    return handle.number


def _is_canceled(instruction: Instruction, builder: Builder) -> Step:
    number = _number(instruction)
    write = builder.write(instruction.operands[0], PREDICATE)

    def run(w: Warp, place: int) -> int:
        write(w, _answer(w, number)[:, 3] != 0)
        return place + 1

    return run


def _first_index(instruction: Instruction, builder: Builder) -> Step:
    number = _number(instruction)
    writes = [builder.write(e, _U4) for e in builder.elements(instruction.operands[0])]
    name, _, of_axis = instruction.parts[2].partition("::")
    axis = "xyz".find(of_axis or "?")
    if name != "get_first_ctaid" or of_axis not in ("", "x", "y", "z"):
        raise refusal(instruction)
    if len(writes) != (1 if axis >= 0 else 4):
        raise refusal(instruction)

    def run(w: Warp, place: int) -> int:
        words = _answer(w, number)
        for n, write in enumerate(writes):
            write(w, np.ascontiguousarray(words[:, max(axis, n)]))
        return place + 1

    return run
