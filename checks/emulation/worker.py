"""The process that executes plans, one after the other.

Started by the warden as `main([REQUESTS, ANSWERS, PARENT], channel)`; the messages are defined in
`checks.emulation.messages`. It runs no user code and does not import JAX.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pallasc.checks.artifact.faults import fault_finding
from pallasc.checks.emulation.messages import Emulate, Emulated
from pallasc.compiler.workers.channel import Channel
from pallasc.compiler.workers.messages import serve
from pallasc.emulator.arrays import from_bytes, joined, of_devices, split, to_bytes
from pallasc.emulator.machine.machine import Machine
from pallasc.emulator.machine.memory import Fault
from pallasc.emulator.program import PlanRun
from pallasc.specs.artifacts.artifact import Artifact


def main(arguments: list[str], channel: Channel) -> int:
    """Serve requests until there are no more."""
    return serve(arguments[0], channel, {Emulate: _emulate})


def _emulate(request: Emulate) -> Emulated:
    """Run a plan on all of its devices until it ends or a kernel fails.

    Raises:
        UnsupportedError: a kernel has an instruction that the emulator does not support.
    """
    artifact = Artifact(request.record, request.blobs.__getitem__)
    plan, machine = artifact.plan, Machine()
    count = max(plan.device_count, 1)
    arrays: list[list[npt.ArrayLike]] = [[] for _ in range(count)]
    for data, binding in zip(request.inputs, plan.inputs, strict=True):
        array = from_bytes(np.frombuffer(data, np.uint8), of_devices(binding, count))
        for own, part in zip(arrays, split(array, count), strict=True):
            own.append(part)
    try:
        results = PlanRun(artifact, machine, request.xla_ptx).run(arrays)
    except Fault as fault:
        return Emulated(printed="".join(machine.printed), fault=fault_finding(fault, machine))
    outputs = tuple(
        to_bytes(joined([own[number] for own in results]), of_devices(binding, count)).tobytes()
        for number, binding in enumerate(plan.outputs)
    )
    return Emulated(outputs=outputs, printed="".join(machine.printed))
