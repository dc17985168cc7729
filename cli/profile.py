"""Traces of profiled kernels for `pallasc run --profile`, in the format of Perfetto."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pallasc.cli.output.text import refusing
from pallasc.errors import ArgumentError, CorruptError, SpecError
from pallasc.specs.artifacts.plan import PROFILE_EXIT, PROFILE_HEAD_WORDS, Profile

if TYPE_CHECKING:
    from pallasc.cli.launching import Chosen
    from pallasc.runtime.device.devices import Device

_HALF = 1 << 32  # kernels record the lower half of the 64-bit global timer
_PIDS_A_LAUNCH = 1000  # more than any GPU has multiprocessors


class Region(NamedTuple):
    """One execution of a profiled region, in cycles since the start of the trace."""

    name: str
    start: int
    end: int


class Trace(NamedTuple):
    """Trace of one warp or warpgroup.

    Attributes:
        block: index of the block.
        number: index of the trace in its block.
        sm: the multiprocessor.
        start_ns: lower half of the global timer at the start.
        regions: regions in the order in which they were entered.
    """

    block: int
    number: int
    sm: int
    start_ns: int
    regions: tuple[Region, ...]


def decode_profile(profile: Profile, blocks: int, data: bytes) -> list[Trace]:
    """Decode the traces that a profiled launch wrote to memory.

    Raises:
        CorruptError: the data does not contain traces.
        SpecError: a kernel entered more regions than its space can hold.
    """
    words = struct.unpack(f"<{len(data) // 4}I", data)
    if len(words) != blocks * profile.traces * profile.words:
        raise CorruptError(f"a profile of {len(data)} bytes for {blocks} blocks")
    traces = []
    for index in range(blocks * profile.traces):
        block, number = divmod(index, profile.traces)
        start, sm, used, *events = words[index * profile.words : (index + 1) * profile.words]
        if used % 2 or used > profile.words - PROFILE_HEAD_WORDS:
            raise SpecError(
                f"block {block} of the kernel wrote {used} words into a trace that has room for "
                f"{profile.words - PROFILE_HEAD_WORDS}.",
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
        region = tag & ~PROFILE_EXIT
        if region >= len(profile.names):
            raise CorruptError(f"a profile names region {region} of {len(profile.names)}")
        if not tag & PROFILE_EXIT:
            entered.append((order, region, cycles))
            continue
        if not entered or entered[-1][1] != region:
            raise CorruptError(f"a profile leaves {profile.names[region]} without entering it")
        entered_at, _, start = entered.pop()
        regions.append((entered_at, Region(profile.names[region], start, cycles)))
    # A trace without space for more events ends inside its regions.
    regions += [(at, Region(profile.names[name], start, cycles)) for at, name, start in entered]
    yield from (region for _, region in sorted(regions, key=lambda item: item[0]))


def trace_events(
    traces: list[Trace], *, title: str, clock_ghz: float, launch: int, base_ns: int
) -> list[dict[str, object]]:
    """Return the trace events of one launch.

    Args:
        traces: traces that the kernel wrote.
        title: name of the kernel.
        clock_ghz: cycles per nanosecond.
        launch: unique number of the launch.
        base_ns: global timer at the start of the whole trace.
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
    """Return the earliest start; a time over half the timer's range ahead counts as earlier."""
    if not traces:
        return 0
    first = traces[0].start_ns
    after = [(trace.start_ns - first + _HALF // 2) % _HALF for trace in traces]
    return (first + min(after) - _HALF // 2) % _HALF


@dataclass(slots=True)
class TraceFile:
    """Launches variants, and collects the traces of their profiled kernels in one file.

    Attributes:
        path: path of the file.
    """

    path: Path
    _launches: list[tuple[str, float, list[Trace]]] = field(default_factory=list)

    def enqueue(self, chosen: Chosen, device: Device, pointers: list[int]) -> None:
        """Launch a variant with a workspace that is read back afterwards.

        Raises:
            ArgumentError: none of its kernels is profiled.
            DeviceError: the launch failed.
            CorruptError, SpecError: see `decode_profile`.
        """
        from pallasc.runtime.adapters.device_arrays import DeviceArray
        from pallasc.runtime.device.streams import lay_out

        plan, name = chosen.artifact.plan, chosen.variant.id
        if not plan.profiles:
            raise ArgumentError(
                f"no kernel of {name} is profiled.",
                hint="Compile it with CompilerParams(profile_space=…, profile_dir=…).",
            )
        workspace = DeviceArray((chosen.route.workspace_bytes,), "u8", device.ordinal)
        chosen.route.enqueue(0, device.ordinal, pointers, workspace.pointer)
        held, offsets = workspace.to_bytes(), dict(lay_out(plan)[0])
        clock_ghz = float(chosen.artifact.target["clock_ghz"])
        for profile in plan.profiles:
            launch, start = plan.launches[profile.launch], offsets[profile.buffer]
            data = held[start : start + plan.buffers[profile.buffer].size]
            traces = decode_profile(profile, math.prod(launch.grid), data)
            self._launches.append((f"{name} {launch.kernel}", clock_ghz, traces))

    def write(self) -> None:
        """Write the file.

        Raises:
            SpecError: the file cannot be written.
        """
        import json

        base_ns = earliest([trace for _, _, traces in self._launches for trace in traces])
        events = [
            event
            for number, (title, clock_ghz, traces) in enumerate(self._launches)
            for event in trace_events(
                traces, title=title, clock_ghz=clock_ghz, launch=number, base_ns=base_ns
            )
        ]
        text = json.dumps({"displayTimeUnit": "ns", "traceEvents": events})
        with refusing(self.path, hint="Give --profile another path."):
            self.path.write_text(text)
