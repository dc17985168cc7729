"""Run a variant once on the GPU at hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pallasc.cli.launching.launching import naming
from pallasc.cli.launching.operands import Operands, Value

if TYPE_CHECKING:
    from pallasc.cli.launching.launching import Chosen
    from pallasc.cli.launching.profile_trace import TraceFile
    from pallasc.runtime.device.devices import Device


@dataclass(frozen=True, slots=True)
class OnGpu:
    """Launches variants.

    Attributes:
        device: where.
        traces: keeps what profiled kernels write, if that is asked for.
    """

    device: Device
    traces: TraceFile | None = None

    def __call__(self, chosen: Chosen, inputs: list[Value]) -> list[Value]:
        """Launch a variant on inputs, and wait for its outputs.

        Raises:
            DeviceError: the launch fails.
        """
        with naming(chosen.variant):
            operands = Operands(chosen.route.signature, inputs, self.device)
            if self.traces is None:
                chosen.route.enqueue(0, self.device.ordinal, operands.pointers)
            else:
                self.traces.enqueue(chosen, self.device, operands.pointers)
            return operands.read_outputs()
