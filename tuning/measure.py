"""Measure a job: each contest, from its first process to its winner.

The file of results contains everything that is known, so an interrupted run continues where it
stopped. A round is written when it is complete; an interrupted round does not count. Before the
first round, all points are launched, and points whose results differ from the majority's are lost.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pallasc.errors import DeviceError, PallascError, SelectionError, SpecError
from pallasc.runtime.device.devices import Device
from pallasc.runtime.matching.selection import arch_refusal
from pallasc.runtime.timing import Conditions
from pallasc.specs.artifacts.signature import Signature
from pallasc.specs.bundle.bundle import Bundle
from pallasc.specs.bundle.manifest import Entry
from pallasc.specs.gpus import MODELS, device_names
from pallasc.specs.templates import Scalar, typed
from pallasc.specs.tuning import Tuning, key_text
from pallasc.tuning.contest import Measure, Rules, decide
from pallasc.tuning.point_process import NO_ROOM, PointError, PointProcess
from pallasc.tuning.referee import OutputReferee
from pallasc.tuning.results import (
    Contest,
    ContestKey,
    Done,
    End,
    Point,
    ResultsFile,
    Retry,
    Times,
    contest_key,
)

# ---- the job


@dataclass(frozen=True, slots=True)
class Match:
    """The points that compete for one key, most promising first.

    Attributes:
        kernel: the kernel.
        by: the parameters of the key.
        key: their values.
        at: values of the matrix parameters that are not in `by`.
        entries: the points, by id.
    """

    kernel: str
    by: tuple[str, ...]
    key: tuple[Scalar, ...]
    at: dict[str, Scalar]
    entries: dict[str, Entry] = field(default_factory=dict)

    @property
    def contest_key(self) -> ContestKey:
        """The key of its contest in the results."""
        return contest_key(*self.subject)

    @property
    def text(self) -> str:
        """Its name in messages: `matmul m=1024, dtype=bf16`."""
        names, values = (*self.by, *self.at), (*self.key, *self.at.values())
        return f"{self.kernel} {key_text(names, values)}".rstrip()

    @property
    def subject(self) -> tuple[str, tuple[Scalar, ...], dict[str, Scalar]]:
        """The first fields of the records of its results."""
        return self.kernel, self.key, self.at

    def sort_key(self) -> tuple[object, ...]:
        """Return the key of its place in a job: kernel and key, small numbers first."""
        values = (*self.key, *self.at.values())
        return self.kernel, *(
            (isinstance(own, str), own if isinstance(own, str) else own or 0) for own in values
        )


def read_job(bundle: Bundle, device: Device) -> list[Match]:
    """Return the contests of a job on a GPU, sorted by kernel and key, small numbers first.

    If a point has variants for several models, the variant for this model is used, else the first.

    Raises:
        SpecError: the bundle is not a job.
        SelectionError: no point is for this GPU.
    """
    tuned = [(entry, entry.tuning) for entry in bundle.entries() if entry.tuning is not None]
    points = [(entry, tuning) for entry, tuning in tuned if tuning.rank]
    if not points:
        why = "its variants were chosen already" if tuned else "none of its kernels is tuned"
        raise SpecError(
            f"{bundle.name} is not a job: {why}.",
            hint="pallasc tune plan SPECS -o job.pallasc makes one.",
        )
    fitting = [own for own in points if not arch_refusal(own[0].arch, device.major, device.minor)]
    if not fitting:
        archs = ", ".join(sorted({entry.arch for entry, _ in points}))
        raise SelectionError(
            f"{bundle.name} has nothing for {device}: its points are for {archs}.",
            hint="Plan it for this GPU: pallasc tune plan SPECS --target MODEL -o job.pallasc.",
        )
    fitting.sort(key=lambda own: not _is_for(own[0], device))
    distinct: dict[str, tuple[Entry, Tuning]] = {}
    for entry, tuning in fitting:
        distinct.setdefault(f"{entry.name} {typed(list(entry.params))}", (entry, tuning))
    matches: dict[ContestKey, Match] = {}
    for entry, tuning in sorted(
        distinct.values(), key=lambda own: (own[1].rank, not own[1].is_default, own[0].id)
    ):
        params = dict(entry.params)
        others = {name: params[name] for name in params if name not in (*tuning.by, *tuning.over)}
        match = Match(entry.name, tuning.by, tuning.key_of(params), others)
        matches.setdefault(match.contest_key, match).entries[entry.id] = entry
    return sorted(matches.values(), key=Match.sort_key)


def _is_for(entry: Entry, device: Device) -> bool:
    model = MODELS.get(entry.target)
    return model is not None and device.name in device_names(model.description)


# ---- its processes


@dataclass(frozen=True, slots=True)
class Setup:
    """Settings of launches and measurements.

    Attributes:
        bundle: the job.
        ordinal: the GPU.
        timeout_s: time limit for starting, launching, or measuring.
        repeats: measured launches per round.
        cold: True to clear the L2 cache before each launch.
    """

    bundle: Bundle
    ordinal: int
    timeout_s: float
    repeats: int
    cold: bool


class Points:
    """The points of a contest that have processes.

    As many processes run at a time as fit in the GPU's memory: if there is no room for another one,
    the least recently used one is ended.

    Args:
        match: the competing points.
        setup: settings of launches and measurements.
        referee: provides inputs and judges outputs.
        most: maximum number of processes at a time.

    Attributes:
        ready: the launched points, the most recently used one last.
    """

    def __init__(self, match: Match, setup: Setup, referee: OutputReferee, most: int) -> None:
        self._match = match
        self._setup = setup
        self._referee = referee
        self._most = max(2, most)
        self._starting: dict[str, PointProcess] = {}
        self._inputs: dict[object, list[int]] = {}
        self._judged: set[str] = set()
        self.ready: dict[str, PointProcess] = {}

    def start(self, names: Sequence[str]) -> None:
        """Start processes for points that have none, as long as there is room."""
        for name in names:
            if name not in self.ready and len(self.ready) + len(self._starting) < self._most:
                self._process(name)

    def launch(self, name: str) -> None:
        """Launch a point that has no process; the first launch also judges its outputs.

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
        """Measure the current time of a launch of a ready point, in microseconds.

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
        """End all processes and free the inputs."""
        try:
            for name in (*self.ready, *self._starting):
                self.end(name)
        finally:
            for descriptor in (one for own in self._inputs.values() for one in own):
                os.close(descriptor)
            self._inputs.clear()

    def _signature(self, name: str) -> Signature:
        return Signature.of(self._setup.bundle.artifact(self._match.entries[name]).plan)

    def _process(self, name: str) -> PointProcess:
        """Return the process of a point that was not launched yet, starting it if necessary."""
        process = self._starting.get(name)
        if process is None:
            process = PointProcess(name, self._setup.timeout_s, self._input_memory(name))
            self._starting[name] = process
        return process

    def _launched(self, name: str) -> PointProcess:
        process, entry = self._process(name), self._match.entries[name]
        self._open(process)
        message = {
            "op": "launch",
            "bundle": os.path.abspath(self._setup.bundle.name),
            "job": self._setup.bundle.digest,
            "name": entry.name,
            "params": dict(entry.params),
            "target": entry.target,
            "inputs": self._input_memory(name),
            "outputs": process.outputs,
        }
        sizes: list[int] = process.ask(message)["sizes"]  # type: ignore[assignment]
        if name not in self._judged:
            outputs = process.read_outputs(sizes)
            if why := self._referee.disagreement(entry, self._signature(name), outputs):
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
                hint="See nvidia-smi. The results so far are kept; the same command goes on.",
            ) from None

    def _input_memory(self, name: str) -> list[int]:
        """Return descriptors of shared memory with the inputs of a point; points can share them."""
        signature = self._signature(name)
        key = tuple((own.path, own.dtype, own.shape, own.layout) for own in signature.inputs)
        if key not in self._inputs:
            self._inputs[key] = []
            for data in self._referee.inputs(self._match.entries[name], signature):
                descriptor = os.memfd_create("input")
                self._inputs[key].append(descriptor)
                with open(descriptor, "wb", closefd=False) as file:
                    file.write(data)
        return self._inputs[key]


# ---- the run


class Listener(Protocol):
    """Receives the progress of a run."""

    def began(self, match: Match, number: int, total: int) -> None:
        """A contest begins or continues; it is the `number`th of `total`."""

    def measured(self, match: Match, contest: Contest) -> None:
        """A round is over."""

    def failed(self, match: Match, name: str, why: str) -> None:
        """A point is lost."""

    def done(self, match: Match, contest: Contest) -> None:
        """A contest has ended."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a job.

    Attributes:
        file: the file for results, with earlier results.
        setup: how processes launch and measure.
        rules: when a contest ends.
        conditions: reads the state of the GPU.
        referee: returns what provides the inputs of a contest and judges its outputs.
        listener: receives the progress.
    """

    file: ResultsFile
    setup: Setup
    rules: Rules
    conditions: Conditions
    referee: Callable[[], OutputReferee]
    listener: Listener

    def retry_failed(self, matches: Sequence[Match]) -> None:
        """Reopen every contest with failed points; the reasons of their failures stay in the file.

        Raises:
            SpecError: the results cannot be written.
        """
        for match in matches:
            points = self._contest(match).points
            failed = [name for name in match.entries if name in points and points[name].failed]
            if failed:
                self.file.add(Retry(*match.subject, ids=failed))

    def all(self, matches: Sequence[Match]) -> None:
        """Run every contest that is not done; if all are done, nothing is written.

        Raises:
            DeviceError: the GPU can no longer be used.
            SpecError: the results cannot be written.
        """
        why = "failed"
        try:
            for number, match in enumerate(matches, 1):
                if not self._contest(match).done:
                    self.listener.began(match, number, len(matches))
                    self._one(match)
                    self.listener.done(match, self._contest(match))
            why = "done"
        except KeyboardInterrupt:
            why = "interrupted"
            raise
        except PallascError as error:
            why = error.message
            raise
        finally:
            if self.file.changed or self.file.results.ended != why:
                self.file.add(End(why))

    def _contest(self, match: Match) -> Contest:
        return self.file.results.contests.get(match.contest_key, Contest(*match.subject))

    def _one(self, match: Match) -> None:
        referee = self.referee()
        points = Points(match, self.setup, referee, self.rules.together)
        try:
            self._vote(match, points, referee)
            while True:
                decision = decide(self._contest(match), [*match.entries], self.rules)
                if isinstance(decision, Measure):
                    self._round(match, points, decision)
                    continue
                self.file.add(decision)
                if isinstance(decision, Done):
                    return
                points.end(decision.id)
        finally:
            points.close()

    def _vote(self, match: Match, points: Points, referee: OutputReferee) -> None:
        """Launch all points before any is measured, and lose points that differ from the majority.

        An interrupted vote is repeated, and so is a vote if one of its points is retried; points
        that were outvoted before take part again.
        """
        known = dict(self._contest(match).points)
        if all(name in known and not known[name].again for name in match.entries):
            return
        voters = [
            name
            for name in match.entries
            if name not in known or known[name].outvoted or not known[name].failed
        ]
        launched = self._launched(match, points, voters)
        outvoted = referee.outvoted()
        for name in launched:
            if name in outvoted:
                points.end(name)
                self._lose(match, name, PointError(outvoted[name]), outvoted=True)
            elif name not in known or known[name].again or known[name].failed:
                self._note(match, name)

    def _launched(self, match: Match, points: Points, voters: Sequence[str]) -> list[str]:
        """Launch points for a vote; return the points that were not lost."""
        launched = []
        for number, name in enumerate(voters):
            points.start(voters[number:])
            try:
                points.launch(name)
                launched.append(name)
            except PointError as error:
                self._lose(match, name, error)
            if len(voters) > self.rules.together:  # they cannot all stay, so start the next ones
                points.end(name)
        return launched

    def _round(self, match: Match, points: Points, decision: Measure) -> None:
        """Measure each point once; lost points are recorded, and the others count."""
        points.start(decision.ids)  # starting takes most of the time, so processes start together
        times_us, spent_s = {}, self._contest(match).spent_s
        for name in decision.ids:
            try:
                points.launch(name)
                began_s = time.monotonic()
                times_us[name] = points.time_us(name)
                spent_s += time.monotonic() - began_s
            except PointError as error:
                self._lose(match, name, error)
        if times_us:
            known: dict[str, Any] = self.conditions.read()
            spent_s = round(spent_s, 6)
            times = Times(
                *match.subject, round=decision.round, times_us=times_us, spent_s=spent_s, **known
            )
            self.file.add(times)
        self.listener.measured(match, self._contest(match))

    def _lose(self, match: Match, name: str, error: PointError, *, outvoted: bool = False) -> None:
        """Record a lost point; the run ends if its process cannot be killed.

        Raises:
            DeviceError: the process does not end; the next run skips the point.
        """
        self._note(match, name, error.why, outvoted=outvoted)
        self.listener.failed(match, name, error.why)
        if error.stuck is not None:
            raise error.stuck

    def _note(self, match: Match, name: str, why: str = "", *, outvoted: bool = False) -> None:
        entry = match.entries[name]
        point = Point(
            *match.subject,
            id=name,
            params=dict(entry.params),
            target=entry.target,
            artifact=entry.digest,
            state="failed" if why else "ok",
            why=why,
            outvoted=outvoted,
        )
        self.file.add(point)
