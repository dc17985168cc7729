"""Variables of a module in global memory: shared by its kernels and launches, and by no other."""

from __future__ import annotations

import numpy as np

from pallasc.emulator.machine.machine import Launch, Machine
from pallasc.emulator.program import program

_COUNTS = """
.version 9.0
.target sm_90a
.address_size 64
.visible .global .align 4 .u32 count = {start};
.visible .entry first(.param .u64 out)
{{
  .reg .b32 %r<2>; .reg .b64 %out;
  ld.param.b64 %out, [out];
  atom.global.add.u32 %r1, [count], 1;
  st.global.u32 [%out], %r1;
  ret;
}}
.visible .entry second(.param .u64 out)
{{
  .reg .b32 %r<2>; .reg .b64 %out;
  ld.param.b64 %out, [out];
  atom.global.add.u32 %r1, [count], 10;
  st.global.u32 [%out], %r1;
  ret;
}}
"""
ONE, OTHER = _COUNTS.format(start=5), _COUNTS.format(start=7)


def found(machine: Machine, text: str, kernel: str, devices: int = 1) -> list[int]:
    """Return what the counter of each device was before one more launch."""
    outs = [machine.memory.allocate(4) for _ in range(devices)]
    launches = [
        Launch(
            program(text, kernel),
            (1, 1, 1),
            (1, 1, 1),
            (1, 1, 1),
            0,
            machine.parameters(out.base.to_bytes(8, "little")),
            device,
        )
        for device, out in enumerate(outs)
    ]
    machine.run(launches)
    return [int(np.array(out.data[:4]).view("u4")[0]) for out in outs]


def test_launches_and_kernels_of_a_module_share_its_variables() -> None:
    machine = Machine()
    assert found(machine, ONE, "first") == [5]
    assert found(machine, ONE, "first") == [6]
    assert found(machine, ONE, "second") == [7]
    assert found(machine, ONE, "first") == [17]


def test_a_variable_of_the_same_name_in_another_module_is_another() -> None:
    machine = Machine()
    assert found(machine, ONE, "first") == [5]
    assert found(machine, OTHER, "first") == [7]
    assert found(machine, ONE, "first") == [6]
    assert found(machine, OTHER, "second") == [8]


def test_each_device_and_each_machine_has_its_own() -> None:
    machine = Machine()
    assert found(machine, ONE, "first") == [5]
    assert found(machine, ONE, "first", devices=2) == [6, 5]
    assert found(Machine(), ONE, "first") == [5]
