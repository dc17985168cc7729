"""Launches on the GPU, and traces of profiled kernels in the format that Perfetto and Chrome open.

One object: `traceEvents`, a list of complete events (`ph` "X": a region, its begin and duration in
microseconds) and of names (`ph` "M"). A process (`pid`) is a multiprocessor during one launch, a
thread (`tid`) one trace: a warp or warpgroup of a block. A kernel counts cycles; the model's
nominal clock turns them into microseconds, and `args` has the cycles too.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pallasc.cli.launching.launching import naming
from pallasc.cli.launching.request import Operands, Value
from pallasc.cli.terminal.output import refusing
from pallasc.errors import ArgumentError, CorruptError, SpecError
from pallasc.specs.artifacts.profile import EXIT, HEAD_WORDS, Profile

if TYPE_CHECKING:
    from pallasc.cli.launching.launching import Chosen
    from pallasc.runtime.adapters.device_arrays import DeviceArray
    from pallasc.runtime.device.devices import Device

_HALF = 1 << 32  # kernels record the lower half of the 64-bit global timer
_PIDS_A_LAUNCH = 1000  # more than any GPU has multiprocessors


@dataclass(frozen=True, slots=True)
class Region:
    """A stay in a region: cycles since the trace began."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Trace:
    """What one warp or warpgroup recorded.

    Attributes:
        block, number: which block it is of, which trace in there.
        sm: the multiprocessor.
        start_ns: the global timer at its begin, lower half.
        regions: in the order in which they were entered.
    """

    block: int
    number: int
    sm: int
    start_ns: int
    regions: tuple[Region, ...]


def decode_profile(profile: Profile, blocks: int, data: bytes) -> list[Trace]:
    """Return the traces in the memory that a profiled launch wrote.

    Raises:
        CorruptError: it does not hold traces.
        SpecError: a kernel entered more regions than it has space for.
    """
    words = struct.unpack(f"<{len(data) // 4}I", data)
    if len(words) != blocks * profile.traces * profile.words:
        raise CorruptError(f"a profile of {len(data)} bytes for {blocks} blocks")
    traces = []
    for index in range(blocks * profile.traces):
        block, number = divmod(index, profile.traces)
        start, sm, used, *events = words[index * profile.words : (index + 1) * profile.words]
        if used % 2 or used > profile.words - HEAD_WORDS:
            raise SpecError(
                f"block {block} of the kernel wrote {used} words into a trace that has room for "
                f"{profile.words - HEAD_WORDS}.",
                hint="Give it a larger profile_space.",
            )
        regions = tuple(_regions(profile, events[:used]))
        traces.append(Trace(block, number, sm, start, regions))
    return traces


def _regions(profile: Profile, events: list[int]) -> Iterator[Region]:
    regions: list[tuple[int, Region]] = []
    entered: list[tuple[int, int, int]] = []
    begin = events[1] if events else 0
    cycles = 0
    for order, (tag, clock) in enumerate(zip(events[::2], events[1::2], strict=True)):
        cycles = (clock - begin) % _HALF
        region = tag & ~EXIT
        if region >= len(profile.names):
            raise CorruptError(f"a profile names region {region} of {len(profile.names)}")
        if not tag & EXIT:
            entered.append((order, region, cycles))
            continue
        if not entered or entered[-1][1] != region:
            raise CorruptError(f"a profile leaves {profile.names[region]} without entering it")
        entered_at, _, start = entered.pop()
        regions.append((entered_at, Region(profile.names[region], start, cycles)))
    # A trace that ran full ends inside its regions.
    regions += [(at, Region(profile.names[name], start, cycles)) for at, name, start in entered]
    yield from (region for _, region in sorted(regions, key=lambda item: item[0]))


def trace_events(
    traces: list[Trace], *, title: str, clock_ghz: float, launch: int, base_ns: int
) -> list[dict[str, object]]:
    """Return the events of one launch.

    Args:
        traces: what its kernel wrote.
        title: what the kernel is called.
        clock_ghz: cycles in a nanosecond.
        launch: a number of its own.
        base_ns: the global timer at which the whole trace begins.
    """
    events: list[dict[str, object]] = []
    per_block = 1 + max((trace.number for trace in traces), default=0)
    for trace in traces:
        place = {
            "pid": 1 + launch * _PIDS_A_LAUNCH + trace.sm,
            "tid": 1 + trace.block * per_block + trace.number,
        }
        thread = f"block {trace.block}" + (f", trace {trace.number}" if per_block > 1 else "")
        events.append(_name("process_name", f"{title}, SM {trace.sm}", place))
        events.append(_name("thread_name", thread, place))
        begin_ns = (trace.start_ns - base_ns) % _HALF
        for region in trace.regions:
            cycles = region.end - region.start
            events.append(
                {
                    "name": region.name,
                    "ph": "X",
                    "ts": (begin_ns + region.start / clock_ghz) / 1000,
                    "dur": cycles / clock_ghz / 1000,
                    **place,
                    "args": {"cycles": cycles},
                }
            )
    return events


def _name(what: str, text: str, place: dict[str, int]) -> dict[str, object]:
    return {"name": what, "ph": "M", **place, "args": {"name": text}}


def earliest(traces: list[Trace]) -> int:
    """Return the global timer at the first begin; a time half its range ahead counts as before."""
    if not traces:
        return 0
    first = traces[0].start_ns
    after = [(trace.start_ns - first + _HALF // 2) % _HALF for trace in traces]
    return (first + min(after) - _HALF // 2) % _HALF


@dataclass(slots=True)
class TraceFile:
    """Launches variants and keeps what their profiled kernels wrote, for one file.

    Attributes:
        path: the file.
    """

    path: Path
    _launches: list[tuple[str, float, list[Trace]]] = field(default_factory=list)

    def enqueue(self, chosen: Chosen, device: Device, pointers: list[int]) -> None:
        """Launch a variant with memory for temporaries that is read afterwards.

        Raises:
            ArgumentError: none of its kernels is profiled.
            DeviceError: the launch fails.
            CorruptError, SpecError: as `decode_profile`.
        """
        from pallasc.runtime.adapters.device_arrays import DeviceArray

        plan, name = chosen.artifact.plan, chosen.variant.id
        if not plan.profiles:
            raise ArgumentError(
                f"no kernel of {name} is profiled.",
                hint="Compile it with CompilerParams(profile_space=…, profile_dir=…).",
            )
        size = chosen.route.workspace_bytes
        workspace = DeviceArray((size,), "u8", device.ordinal)
        chosen.route.enqueue(0, device.ordinal, pointers, workspace.pointer)
        self._read(chosen, workspace)

    def _read(self, chosen: Chosen, workspace: DeviceArray) -> None:
        from pallasc.runtime.calls.program import lay_out

        plan = chosen.artifact.plan
        held, offsets = workspace.to_bytes(), dict(lay_out(plan)[0])
        clock_ghz = float(chosen.artifact.target["clock_ghz"])
        for profile in plan.profiles:
            launch, start = plan.launches[profile.launch], offsets[profile.buffer]
            data = held[start : start + plan.buffers[profile.buffer].size]
            traces = decode_profile(profile, math.prod(launch.grid), data)
            title = f"{chosen.variant.id} {launch.kernel}"
            self._launches.append((title, clock_ghz, traces))

    def events(self) -> list[dict[str, object]]:
        """Return the events of all launches so far."""
        everything = [trace for _, _, traces in self._launches for trace in traces]
        base_ns = earliest(everything)
        return [
            event
            for number, (title, clock_ghz, traces) in enumerate(self._launches)
            for event in trace_events(
                traces, title=title, clock_ghz=clock_ghz, launch=number, base_ns=base_ns
            )
        ]

    def write(self) -> None:
        """Write the file.

        Raises:
            SpecError: it cannot be written.
        """
        import json

        text = json.dumps({"displayTimeUnit": "ns", "traceEvents": self.events()})
        with refusing(self.path, hint="Give --profile another path."):
            self.path.write_text(text)


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
