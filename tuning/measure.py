"""Run a tuning job on a GPU.

A key is, for example, a size and a dtype. For each key, the points (variants with different tile
sizes, for example) compete in a contest, until one wins. In a round, each remaining point is
measured once.

The file of results contains everything that is known, so an interrupted run continues where it
stopped. A round is written when it is complete; an interrupted round does not count. Before the
first round, all points are launched, and points with wrong results are excluded.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pallasc.errors import DeviceError, SelectionError, SpecError
from pallasc.runtime.device.devices import Device
from pallasc.runtime.matching.selection import arch_refusal
from pallasc.runtime.timing import Conditions
from pallasc.specs.artifacts.plan import LaunchPlan
from pallasc.specs.bundle.bundle import Bundle
from pallasc.specs.bundle.manifest import Entry
from pallasc.specs.canonical import Scalar, typed
from pallasc.specs.tuning import Tuning, key_text, names_of, scalar_order
from pallasc.tuning.contest import Measure, Rules, decide
from pallasc.tuning.point_process import NO_ROOM, PointError, PointProcess
from pallasc.tuning.results import (
    Contest,
    ContestKey,
    Done,
    Point,
    ResultsFile,
    Times,
    contest_key,
)

if TYPE_CHECKING:
    from pallasc.compiler.arrays import Comparison
    from pallasc.specs.artifacts.plan import Binding
    from pallasc.specs.bundle.tuned import Reference

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
        """The key of the match's contest in the results."""
        return contest_key(*self.subject)

    @property
    def text(self) -> str:
        """Its name in messages: `matmul m=1024, dtype=bf16`."""
        names, values = (*self.by, *self.at), (*self.key, *self.at.values())
        return f"{self.kernel} {key_text(names, values)}".rstrip()

    @property
    def subject(self) -> tuple[str, tuple[Scalar, ...], dict[str, Scalar]]:
        """The first fields of each record in the results of its contest."""
        return self.kernel, self.key, self.at


def read_job(bundle: Bundle, device: Device) -> list[Match]:
    """Return the matches of a job on a GPU, sorted by kernel and key, small numbers first.

    If a point has variants for several models, the variant for this GPU's model is used, else the
    first one.

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
            hint="Make a job: pallasc tune plan SPECS -o job.pallasc",
        )
    fitting = [own for own in points if not arch_refusal(own[0].arch, device.major, device.minor)]
    if not fitting:
        archs = ", ".join(sorted({entry.arch for entry, _ in points}))
        raise SelectionError(
            f"{bundle.name} has nothing for {device}: its points are for {archs}.",
            hint="Plan it for this GPU: pallasc tune plan SPECS --target MODEL -o job.pallasc.",
        )
    fitting.sort(key=lambda own: device.name not in names_of(own[0].target))
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
    return sorted(
        matches.values(), key=lambda own: (own.kernel, *scalar_order(*own.key, *own.at.values()))
    )


# ---- right and wrong results


@dataclass(slots=True)
class Referee:
    """Provides the inputs of a contest's points, and checks their outputs.

    Outputs must agree with the job's reference values, which cover some elements. The first outputs
    that agree are the standard: all elements of later outputs are compared with them.

    Attributes:
        bundle: the job.
        standard: id and outputs of the point that the others are compared with.
    """

    bundle: Bundle
    standard: tuple[str, Sequence[bytes]] | None = None

    def inputs(self, entry: Entry, signature: LaunchPlan) -> list[bytes]:
        """Return the inputs of a point, as `pallasc run` makes them."""
        from pallasc.compiler.arrays import random_bytes

        reference = self.bundle.reference(entry)
        seed = 0 if reference is None else reference.seed
        return [
            random_bytes(own.dtype, own.size_bytes, seed=seed, name=own.path)
            for own in signature.inputs
        ]

    def disagreement(self, entry: Entry, signature: LaunchPlan, outputs: Sequence[bytes]) -> str:
        """Describe the first wrong element of outputs, "" if they are right."""
        from pallasc.compiler.arrays import compare_outputs, compare_samples

        reference = self.bundle.reference(entry)
        if reference is not None:
            tolerance = reference.rtol, reference.atol
            for binding, data, own in zip(
                signature.outputs, outputs, reference.outputs, strict=True
            ):
                if own.positions:
                    values: Any = own.values  # never strings
                    compared = compare_samples(binding, data, own.positions, values, tolerance)
                    if why := _wrong(binding, compared, "the reference has"):
                        return why
        if self.standard is None:
            self.standard = entry.id, outputs
            return ""
        name, expected = self.standard
        for binding, data, right in zip(signature.outputs, outputs, expected, strict=True):
            if data != right:
                compared = compare_outputs(binding, data, right, _of_two(reference))
                if why := _wrong(binding, compared, f"{name} gives"):
                    return why
        return ""


def _of_two(reference: Reference | None) -> tuple[float, float] | None:
    """Return the tolerance for two outputs that both match `reference`; None without one."""
    if reference is None:
        return None
    rtol = 2 * reference.rtol / max(0.5, 1 - reference.rtol)
    return rtol, (2 + rtol) * reference.atol


def _wrong(binding: Binding, compared: Comparison, whose: str) -> str:
    """Describe the first difference of an output, "" if there is none."""
    if (first := compared.first) is None:
        return ""
    place = ", ".join(map(str, first.index))
    return (
        f"wrong result: {binding.path}[{place}] is {first.got}, but {whose} {first.wanted}; "
        f"{compared.mismatches:,} of {compared.count:,} elements differ by more than rtol "
        f"{compared.rtol:g} and atol {compared.atol:g}"
    )


# ---- processes of points


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
    """The processes of a contest's points.

    As many processes run at a time as fit in the GPU's memory: if there is no room for another one,
    the least recently used one is ended.

    Args:
        match: the competing points.
        setup: settings of launches and measurements.
        referee: provides inputs, and judges outputs.
        most: maximum number of processes at a time.

    Attributes:
        ready: the launched points, the most recently used one last.
    """

    def __init__(self, match: Match, setup: Setup, referee: Referee, most: int) -> None:
        self._match = match
        self._setup = setup
        self._referee = referee
        self._most = max(2, most)
        self._starting: dict[str, PointProcess] = {}
        self._inputs: dict[object, list[int]] = {}
        self.ready: dict[str, PointProcess] = {}

    def start(self, names: Sequence[str]) -> None:
        """Start processes for points that have none, as long as there is room."""
        for name in names:
            if name not in self.ready and len(self.ready) + len(self._starting) < self._most:
                self._process(name)

    def launch(self, name: str, *, judge: bool = False) -> None:
        """Launch a point unless it is ready; with `judge`, check its outputs.

        Raises:
            PointError: the point cannot be launched, or its outputs are wrong.
            DeviceError: the GPU cannot be used.
        """
        while name not in self.ready:
            while len(self.ready) >= self._most:
                self.end(next(iter(self.ready)))
            try:
                self.ready[name] = self._launched(name, judge=judge)
            except PointError as error:
                if error.code not in NO_ROOM or not self.ready:
                    raise
                self.end(name)
                self._most = len(self.ready)

    def time_us(self, name: str) -> float:
        """Measure how long a launch of a ready point takes, in microseconds.

        Raises:
            PointError: the launch failed, or took too long.
        """
        process = self.ready[name] = self.ready.pop(name)
        message = {"op": "time", "repeats": self._setup.repeats, "cold": self._setup.cold}
        us = float(str(process.ask(message)["us"]))
        if not 0 < us < math.inf:
            raise PointError(f"a launch took {us:g} µs by the driver's clock")
        return us

    def end(self, name: str) -> None:
        """End the process of a point, if it has one.

        Raises:
            DeviceError: the process does not end.
        """
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

    def _signature(self, name: str) -> LaunchPlan:
        return self._setup.bundle.artifact(self._match.entries[name]).plan

    def _process(self, name: str) -> PointProcess:
        """Return the process of a point before its launch; start the process if needed."""
        process = self._starting.get(name)
        if process is None:
            process = PointProcess(name, self._setup.timeout_s, self._input_memory(name))
            self._starting[name] = process
        return process

    def _launched(self, name: str, *, judge: bool) -> PointProcess:
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
        if judge:
            outputs = process.read_outputs(sizes)
            if why := self._referee.disagreement(entry, self._signature(name), outputs):
                raise PointError(why)
        return self._starting.pop(name)

    def _open(self, process: PointProcess) -> None:
        try:
            process.ask({"op": "open", "device": self._setup.ordinal})
        except PointError as error:
            if error.code in NO_ROOM and self.ready:
                raise
            raise DeviceError(
                f"GPU {self._setup.ordinal} cannot be used by a new process: {error.why}",
                hint="See nvidia-smi. The results so far are kept; repeat the command to continue.",
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


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a job.

    Attributes:
        file: the file for results, with earlier results.
        setup: settings of launches and measurements.
        rules: the rules for ending a contest.
        conditions: reads the state of the GPU.
        referee: returns the `Referee` of a contest of a job.
        on_failure: called with the id of a point that is excluded, and the reason.
    """

    file: ResultsFile
    setup: Setup
    rules: Rules
    conditions: Conditions
    referee: Callable[[Bundle], Referee]
    on_failure: Callable[[str, str], None]

    def all(self, matches: Sequence[Match]) -> Iterator[Match]:
        """Run the contest of every match that is not done, and yield the match at its end.

        If all contests are done, nothing is written.

        Raises:
            DeviceError: the GPU can no longer be used.
            SpecError: the results cannot be written.
        """
        for match in matches:
            if not self._contest(match).done:
                self._one(match)
                yield match

    def _contest(self, match: Match) -> Contest:
        return self.file.results.contests.get(match.contest_key, Contest(*match.subject))

    def _one(self, match: Match) -> None:
        points = Points(match, self.setup, self.referee(self.setup.bundle), self.rules.together)
        try:
            self._check(match, points)
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

    def _check(self, match: Match, points: Points) -> None:
        """Launch all points before any is measured, and exclude those with wrong results.

        Later results are compared with the first correct one. Points that were correct before an
        interruption are launched first, then the spec's default.
        """
        known, entries = dict(self._contest(match).points), match.entries
        if known.keys() >= entries.keys():
            return
        left = [name for name in entries if name not in known or not known[name].failed]
        left.sort(key=lambda name: (name not in known, not _is_default(entries[name])))
        for number, name in enumerate(left):
            points.start(left[number:])
            try:
                points.launch(name, judge=True)
                if name not in known:
                    self._note(match, name)
            except PointError as error:
                self._exclude(match, points, name, error.why)
            if len(left) > self.rules.together:  # not all fit, so make room for the next ones
                points.end(name)

    def _round(self, match: Match, points: Points, decision: Measure) -> None:
        """Measure each point once; exclude points that fail, and record the times of the others."""
        points.start(decision.ids)  # starting takes most of the time, so processes start together
        times_us, spent_s = {}, self._contest(match).spent_s
        for name in decision.ids:
            try:
                points.launch(name)
                began_s = time.monotonic()
                times_us[name] = points.time_us(name)
                spent_s += time.monotonic() - began_s
            except PointError as error:
                self._exclude(match, points, name, error.why)
        if times_us:
            known: dict[str, Any] = self.conditions.read()
            spent_s = round(spent_s, 6)
            times = Times(
                *match.subject, round=decision.round, times_us=times_us, spent_s=spent_s, **known
            )
            self.file.add(times)

    def _exclude(self, match: Match, points: Points, name: str, why: str) -> None:
        """Record an excluded point, then end its process.

        Raises:
            DeviceError: the process does not end; the next run skips the point.
        """
        self._note(match, name, why)
        self.on_failure(name, why)
        points.end(name)

    def _note(self, match: Match, name: str, why: str = "") -> None:
        entry = match.entries[name]
        point = Point(
            *match.subject,
            id=name,
            params=dict(entry.params),
            target=entry.target,
            artifact=entry.digest,
            state="failed" if why else "ok",
            why=why,
        )
        self.file.add(point)


def _is_default(entry: Entry) -> bool:
    return entry.tuning is not None and entry.tuning.is_default
