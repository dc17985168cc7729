"""Lines of PTX as a kernel of their own: assembled, run on arrays, and what they leave.

The lines find each thread's number in %t, its block's in %b, the addresses of the arrays in %a0,
%a1, …, and in %out the place of the thread's own word of the result, whose start is in %outs.
"""

from typing import Any

import numpy as np

from pallasc.emulator.machine.machine import Launch, Machine, Policy
from pallasc.emulator.machine.memory import Region
from pallasc.emulator.program import assemble
from pallasc.emulator.ptx.parse import parse

_TEXT = """
.version 9.0
.target sm_100a
.address_size 64
{module}
.visible .entry k({parameters})
{{
  .reg .b16 %h<20>; .reg .b32 %r<60>; .reg .b64 %rd<60>; .reg .pred %p<20>; .reg .b128 %q<4>;
  .reg .b32 %t, %b, %n; .reg .b64 %outs, %out{addresses};
  {variables}
  ld.param.b64 %outs, [outs];
  {loads}
  mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x; mov.u32 %n, %ntid.x;
  mad.lo.u32 %n, %b, %n, %t;
  mad.wide.u32 %out, %n, {width}, %outs;
{body}
  ret;
}}
"""


class Run:
    """One execution: the machine, and the result's words, `width` bytes for each thread."""

    def __init__(
        self,
        body: str,
        *arrays: np.ndarray,
        threads: int = 32,
        blocks: int = 1,
        cluster: int = 1,
        variables: str = "",
        module: str = "",
        width: int = 4,
        policy: Policy | None = None,
        registers: int = 0,
    ) -> None:
        self.machine = Machine(policy or Policy())
        self.threads, self.blocks, self.cluster, self.width = threads, blocks, cluster, width
        self.registers = registers
        self.out = self._filled(np.zeros(threads * blocks * width, np.uint8))
        self.inputs = [self._filled(np.ascontiguousarray(array)) for array in arrays]
        names = [f"a{number}" for number in range(len(arrays))]
        self.text = _TEXT.format(
            module=module,
            parameters=", ".join(f".param .u64 {name}" for name in ("outs", *names)),
            addresses="".join(f", %{name}" for name in names),
            variables=variables,
            loads=" ".join(f"ld.param.b64 %{name}, [{name}];" for name in names),
            width=width,
            body=body,
        )

    def _filled(self, array: np.ndarray) -> Region:
        data = np.frombuffer(array.tobytes(), np.uint8)
        region = self.machine.memory.allocate(data.size, label=f"array {len(array)}")
        region.adopt(data)
        return region

    def run(self) -> np.ndarray:
        """Run; return the result as uint32, or uint64 where `width` is 8 or more."""
        regions = (self.out, *self.inputs)
        data = b"".join(region.base.to_bytes(8, "little") for region in regions)
        launch = Launch(
            assemble(parse(self.text), "k"),
            (self.blocks, 1, 1),
            (self.threads, 1, 1),
            (self.cluster, 1, 1),
            0,
            self.machine.parameters(data),
            registers=self.registers,
        )
        self.machine.run([launch])
        return np.array(self.out.data[: self.out.size]).view(f"u{min(self.width, 8)}")

    def run_on_two_devices(self) -> None:
        """Run on two devices; `outs` is memory of the own one, %a0 the second word of the other."""
        program = assemble(parse(self.text), "k")
        signals = [
            self.machine.memory.allocate(256, label=f"the signals of device {device}")
            for device in range(2)
        ]
        for device, region in enumerate(signals):
            region.device = device
        launches = []
        for device, (own, other) in enumerate((signals, signals[::-1])):
            data = b"".join(address.to_bytes(8, "little") for address in (own.base, other.base + 4))
            parameters = self.machine.parameters(data)
            sizes = ((self.blocks, 1, 1), (self.threads, 1, 1), (self.cluster, 1, 1))
            launches.append(Launch(program, *sizes, 0, parameters, device))
        self.machine.run(launches)


def run(body: str, *arrays: np.ndarray, **options: Any) -> np.ndarray:
    """Run lines on arrays and return the result: what each thread has stored at %out."""
    return Run(body, *arrays, **options).run()
