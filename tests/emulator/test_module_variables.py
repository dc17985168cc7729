"""Variables of a module in global memory: shared by its kernels and launches, and by no other."""

import numpy as np

from pallasc.emulator.machine.machine import Launch, Machine
from pallasc.emulator.program import program

_KERNEL = """
.visible .entry {name}(.param .u64 out)
{{
  .reg .b32 %r<2>; .reg .b64 %out;
  ld.param.b64 %out, [out];
  atom.global.add.u32 %r1, [count], {step};
  st.global.u32 [%out], %r1;
  ret;
}}
"""
_COUNTS = (
    ".version 9.0\n.target sm_90a\n.address_size 64\n"
    ".visible .global .align 4 .u32 count = {start};\n"
) + "".join(_KERNEL.format(name=n, step=s) for n, s in (("first", 1), ("second", 10)))
ONE, OTHER = (_COUNTS.replace("{start}", start) for start in "57")


def found(machine: Machine, text: str, kernel: str, devices: int = 1) -> list[int]:
    """Return what the counter of each device was before one more launch."""
    outs = [machine.memory.allocate(4) for _ in range(devices)]
    one, launches = (1, 1, 1), []
    for device, out in enumerate(outs):
        parameters = machine.parameters(out.base.to_bytes(8, "little"))
        launches.append(Launch(program(text, kernel), one, one, one, 0, parameters, device))
    machine.run(launches)
    return [int(np.array(out.data[:4]).view("u4")[0]) for out in outs]


def test_launches_and_kernels_of_a_module_share_its_variables_on_each_device() -> None:
    machine = Machine()
    assert found(machine, ONE, "first") == [5]
    assert found(machine, OTHER, "first") == [7]  # another variable of the same name
    assert found(machine, ONE, "second") == [6]
    assert found(machine, ONE, "first") == [16]
    assert found(machine, OTHER, "second") == [8]
    assert found(machine, ONE, "first", devices=2) == [17, 5]
    assert found(Machine(), ONE, "first") == [5]
