"""The points of one contest: their processes, inputs that all share, outputs that are compared."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pallasc.errors import DeviceError
from pallasc.runtime.tuning.job import Match
from pallasc.runtime.tuning.processes import PointError, PointProcess
from pallasc.runtime.tuning.protocol import NO_ROOM
from pallasc.specs.artifacts.signature import Signature
from pallasc.specs.bundle.bundle import Bundle
from pallasc.specs.bundle.manifest import Entry
from pallasc.specs.untrusted_json import as_list, as_whole


class Referee(Protocol):
    """Knows what the points of a contest are launched on, and what must come out."""

    def inputs(self, entry: Entry, signature: Signature) -> Sequence[bytes]:
        """Return the bytes of each input of a point."""

    def disagreement(self, entry: Entry, signature: Signature, outputs: Sequence[bytes]) -> str:
        """Return how outputs differ from what is known of them, "" where they do not."""

    def outvoted(self) -> dict[str, str]:
        """Return the points whose outputs are not those of most, of all judged, and why."""


@dataclass(frozen=True, slots=True)
class Setup:
    """How the points of a job are launched and measured.

    Attributes:
        bundle: the job.
        ordinal: the GPU.
        timeout_s: how long a process may take to start, to launch, or to measure.
        repeats: launches that are measured in a round.
        cold: the L2 cache is emptied before each.
    """

    bundle: Bundle
    ordinal: int
    timeout_s: float
    repeats: int
    cold: bool


class Points:
    """The points of a contest that have processes.

    As many live at a time as the GPU has memory for: where a process cannot be made beside the
    others, the one that was asked longest ago makes room.

    Args:
        match: what competes.
        setup: how.
        referee: gives inputs and judges outputs.
        most: how many live at a time at most.

    Attributes:
        ready: the points that are launched; the one that was asked last is the last.
    """

    def __init__(self, match: Match, setup: Setup, referee: Referee, most: int) -> None:
        self._match = match
        self._setup = setup
        self._referee = referee
        self._most = max(2, most)
        self._starting: dict[str, PointProcess] = {}
        self._inputs: dict[object, list[int]] = {}
        self._judged: set[str] = set()
        self.ready: dict[str, PointProcess] = {}

    def start(self, names: Sequence[str]) -> None:
        """Start processes for points that have none, as far as there is room."""
        for name in names:
            if len(self.ready) + len(self._starting) < self._most and not self._has(name):
                self._process(name)

    def was_launched(self, name: str) -> bool:
        """Tell whether a point was launched once, and its outputs were right."""
        return name in self._judged

    def launch(self, name: str) -> None:
        """Launch a point that has no process, the first time to judge its outputs.

        Raises:
            PointError: it cannot be launched, or its outputs are wrong.
            DeviceError: the GPU cannot be used.
        """
        while name not in self.ready:
            while len(self.ready) >= self._most:
                self.end(next(iter(self.ready)))
            try:
                self.ready[name] = self._launched(name)
            except PointError as error:
                self.end(name)
                if error.code not in NO_ROOM or not self.ready:
                    raise
                self._most = len(self.ready)

    def time_us(self, name: str) -> float:
        """Return what a launch of a point that is ready takes now, in microseconds.

        Raises:
            PointError: it failed, or took too long.
        """
        process = self.ready[name] = self.ready.pop(name)
        message = {"op": "time", "repeats": self._setup.repeats, "cold": self._setup.cold}
        try:
            us = float(str(process.ask(message)["us"]))
            if not 0 < us < math.inf:
                raise PointError(f"a launch took {us:g} µs by the driver's clock")
        except PointError:
            self.end(name)
            raise
        return us

    def end(self, name: str) -> None:
        """End the process of a point, if it has one."""
        for processes in (self.ready, self._starting):
            if name in processes:
                processes.pop(name).kill()

    def close(self) -> None:
        """End everything."""
        try:
            for name in (*self.ready, *self._starting):
                self.end(name)
        finally:
            for descriptors in self._inputs.values():
                for descriptor in descriptors:
                    os.close(descriptor)
            self._inputs.clear()

    def _has(self, name: str) -> bool:
        return name in self.ready or name in self._starting

    def _signature(self, name: str) -> Signature:
        return Signature.of(self._setup.bundle.artifact(self._match.entries[name]).plan)

    def _process(self, name: str) -> PointProcess:
        """Return the process of a point that was not launched yet."""
        process = self._starting.get(name)
        if process is None:
            inputs = self._input_memory(name, self._signature(name))
            process = PointProcess(name, self._setup.timeout_s, inputs)
            self._starting[name] = process
        return process

    def _launched(self, name: str) -> PointProcess:
        process, entry = self._process(name), self._match.entries[name]
        signature = self._signature(name)
        self._open(process)
        message = {
            "op": "launch",
            "bundle": os.path.abspath(self._setup.bundle.name),
            "job": self._setup.bundle.digest,
            "name": entry.name,
            "params": dict(entry.params),
            "target": entry.target,
            "inputs": self._input_memory(name, signature),
            "outputs": process.outputs,
        }
        sizes = as_list(process.ask(message)["sizes"])
        if name not in self._judged:
            outputs = process.read_outputs([as_whole(size) for size in sizes])
            why = self._referee.disagreement(entry, signature, outputs)
            if why:
                raise PointError(why)
            self._judged.add(name)
        return self._starting.pop(name)

    def _open(self, process: PointProcess) -> None:
        try:
            process.ask({"op": "open", "device": self._setup.ordinal})
        except PointError as error:
            if error.code in NO_ROOM and self.ready:
                raise
            raise DeviceError(
                f"GPU {self._setup.ordinal} cannot be used by a new process: {error.why}",
                hint="See nvidia-smi. What was measured is kept; the same command goes on from it.",
            ) from None

    def _input_memory(self, name: str, signature: Signature) -> list[int]:
        """Return descriptors of memory with the inputs of a point, which others share."""
        key = tuple((own.path, own.dtype, own.shape, own.layout) for own in signature.inputs)
        if key not in self._inputs:
            self._inputs[key] = []
            for data in self._referee.inputs(self._match.entries[name], signature):
                descriptor = os.memfd_create("input")
                self._inputs[key].append(descriptor)
                with open(descriptor, "wb", closefd=False) as file:
                    file.write(data)
        return self._inputs[key]
