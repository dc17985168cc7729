"""The points of a job: the contests on a GPU, and a process for each point.

Requests to a process have a time limit; a process is killed together with everything that it
started. The run itself creates no context on the GPU, so that no error of a kernel can reach it.
"""

from __future__ import annotations

import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from pallasc.errors import DeviceError, SelectionError, SpecError
from pallasc.runtime.device.devices import Device
from pallasc.runtime.matching.selection import arch_refusal
from pallasc.specs.artifacts.signature import Signature
from pallasc.specs.bundle.bundle import Bundle
from pallasc.specs.bundle.manifest import Entry
from pallasc.specs.canonical import as_list, as_whole
from pallasc.specs.gpus import MODELS, device_names
from pallasc.specs.templates import Scalar
from pallasc.specs.tuning import Tuning, key_text
from pallasc.tuning.point_process import NO_ROOM, decode, encode
from pallasc.tuning.referee import OutputReferee
from pallasc.tuning.results import ContestKey, contest_key

_MODULE = "pallasc.tuning.point_process"
_MOST_BYTES = 4096
_KILL_S = 30.0
"""A process that is still alive after this time hangs in the driver."""


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
        return contest_key(self.kernel, self.key, self.at)

    @property
    def text(self) -> str:
        """Its name in messages: `matmul m=1024, dtype=bf16`."""
        names, values = (*self.by, *self.at), (*self.key, *self.at.values())
        return f"{self.kernel} {key_text(names, values)}".rstrip()

    def subject(self) -> dict[str, object]:
        """Return the fields that every line of its results has."""
        own: dict[str, object] = {"kernel": self.kernel, "key": list(self.key)}
        return {**own, "at": self.at} if self.at else own


def read_job(bundle: Bundle, device: Device) -> list[Match]:
    """Return the contests of a job on a GPU, sorted by kernel and key, small numbers first.

    If a point has variants for several models, the variant for this model is used, else the first.

    Raises:
        SpecError: the bundle is not a job.
        SelectionError: no point is for this GPU.
    """
    tuned = [entry for entry in bundle.entries() if entry.tuning is not None]
    points = [own for own in tuned if own.tuning is not None and own.tuning.rank]
    if not points:
        why = "its variants were chosen already" if tuned else "none of its kernels is tuned"
        raise SpecError(
            f"{bundle.name} is not a job: {why}.",
            hint="pallasc tune plan SPECS -o job.pallasc makes one.",
        )
    fitting = [own for own in points if not arch_refusal(own.arch, device.major, device.minor)]
    if not fitting:
        archs = ", ".join(sorted({entry.arch for entry in points}))
        raise SelectionError(
            f"{bundle.name} has nothing for {device}: its points are for {archs}.",
            hint="Plan it for this GPU: pallasc tune plan SPECS --target MODEL -o job.pallasc.",
        )
    matches: dict[ContestKey, Match] = {}
    for entry, tuning in _one_of_each_point(fitting, device):
        match = _match_of(entry, tuning)
        matches.setdefault(match.contest_key, match).entries[entry.id] = entry
    for match in matches.values():
        in_order = sorted(match.entries.values(), key=_likeliest)
        match.entries.clear()
        match.entries.update((entry.id, entry) for entry in in_order)
    return sorted(matches.values(), key=_in_order)


def _one_of_each_point(entries: Sequence[Entry], device: Device) -> Iterator[tuple[Entry, Tuning]]:
    points: dict[tuple[object, ...], Entry] = {}
    for entry in entries:
        point = (entry.name, *((name, type(own), own) for name, own in entry.params))
        known = points.setdefault(point, entry)
        if not _is_for(known, device) and _is_for(entry, device):
            points[point] = entry
    for entry in points.values():
        if entry.tuning is not None:
            yield entry, entry.tuning


def _is_for(entry: Entry, device: Device) -> bool:
    model = MODELS.get(entry.target)
    return model is not None and device.name in device_names(model.description)


def _match_of(entry: Entry, tuning: Tuning) -> Match:
    params = dict(entry.params)
    at = {
        name: own
        for name, own in params.items()
        if name not in tuning.by and name not in tuning.over
    }
    return Match(entry.name, tuning.by, tuning.key_of(params), at)


def _in_order(match: Match) -> tuple[object, ...]:
    values = (*match.key, *match.at.values())
    return match.kernel, *(
        (isinstance(v, str), v if isinstance(v, str) else v or 0) for v in values
    )


def _likeliest(entry: Entry) -> tuple[int, bool, str]:
    tuning = entry.tuning
    if tuning is None:
        raise ValueError(f"{entry.id} is not a point")
    return tuning.rank, not tuning.is_default, entry.id


class PointError(Exception):
    """A point that cannot be measured; its process has ended or can no longer be used.

    Args:
        why: the reason.
        code: the driver's error code, 0 for other reasons.
        stuck: the error if its process cannot be killed, else None.
    """

    def __init__(self, why: str, code: int = 0, stuck: DeviceError | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.code = code
        self.stuck = stuck


class PointProcess:
    """A process for one point, started immediately.

    Args:
        name: the variant's id.
        timeout_s: time limit for an answer.
        descriptors: shared memory that it reads.

    Attributes:
        name: as given.
        outputs: descriptor of shared memory that it writes.
    """

    def __init__(self, name: str, timeout_s: float, descriptors: Sequence[int]) -> None:
        self.name = name
        self._timeout_s = timeout_s
        self._answers, answers = os.pipe()
        self._errors = os.memfd_create("errors")
        self.outputs = os.memfd_create("outputs")
        requests, taken = os.pipe()
        self._requests = os.fdopen(taken, "wb")
        self._said = ""
        command = [sys.executable, "-P", "-m", _MODULE, str(os.getpid()), str(answers)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=requests,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=(answers, self.outputs, *descriptors),
                start_new_session=True,
            )
        finally:
            os.close(answers)
            os.close(requests)

    def ask(self, message: Mapping[str, object]) -> dict[str, object]:
        """Send a message and return the answer.

        Raises:
            PointError: the process reported an error, ended, or timed out; it is then killed.
        """
        try:
            self._requests.write(encode(message))
            self._requests.flush()
            answer = decode(self._line())
        except (BrokenPipeError, EOFError):
            stuck = self._killed()
            raise PointError(self._ending(), stuck=stuck) from None
        except TimeoutError:
            why = f"no answer in {self._timeout_s:g} s: it hangs"
            raise PointError(why, stuck=self._killed()) from None
        except BaseException:
            self.kill()
            raise
        if "error" in answer:
            raise PointError(str(answer["error"]), int(str(answer["code"])), self._killed())
        return answer

    def read_outputs(self, sizes: Sequence[int]) -> list[bytes]:
        """Return its outputs, given their sizes, and remove them from the shared memory."""
        with open(self.outputs, "rb", closefd=False) as file:
            file.seek(0)
            outputs = [file.read(size) for size in sizes]
        os.ftruncate(self.outputs, 0)
        return outputs

    def _line(self) -> bytes:
        """Return the next line from the process.

        Raises:
            EOFError: the process has ended.
            TimeoutError: the time limit is over.
        """
        line, deadline_s = b"", time.monotonic() + self._timeout_s
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        while not line.endswith(b"\n"):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not poll.poll(1000 * left_s):
                raise TimeoutError
            data = os.read(self._answers, 1 << 16)
            if not data:
                raise EOFError
            line += data
        return line

    def _killed(self) -> DeviceError | None:
        """Kill the process; return the error if it does not end."""
        try:
            self.kill()
        except DeviceError as error:
            return error
        return None

    def kill(self) -> None:
        """Kill the process and its whole session; repeated calls do nothing.

        Raises:
            DeviceError: it does not end.
        """
        if self._answers < 0:
            return
        os.close(self._answers)
        self._answers = -1
        with suppress(ProcessLookupError):
            # The process was not waited for yet, so its id cannot have been reused.
            os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.wait(_KILL_S)
        except subprocess.TimeoutExpired:
            raise DeviceError(
                f"the process of {self.name}, {self._process.pid}, does not end after SIGKILL.",
                hint="The GPU may need a reset: see nvidia-smi and the kernel's log.",
            ) from None
        finally:
            with suppress(BrokenPipeError):
                self._requests.close()
            self._said = _last_line(self._errors)
            os.close(self._errors)
            os.close(self.outputs)

    def _ending(self) -> str:
        """Describe how a process ended by itself, with the last line that it wrote."""
        code = self._process.returncode
        if code is None:
            return "its process gives no answers any more"
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return f"its process ended with {how}" + (f": {self._said}" if self._said else "")


def _last_line(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    text = os.pread(descriptor, _MOST_BYTES, max(0, size - _MOST_BYTES)).decode("utf-8", "replace")
    return next((line.strip() for line in reversed(text.split("\n")) if line.strip()), "")


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
            if len(self.ready) + len(self._starting) < self._most and not self._has(name):
                self._process(name)

    def was_launched(self, name: str) -> bool:
        """Return True if a point was launched once and its outputs were correct."""
        return name in self._judged

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
            for descriptors in self._inputs.values():
                for descriptor in descriptors:
                    os.close(descriptor)
            self._inputs.clear()

    def _has(self, name: str) -> bool:
        return name in self.ready or name in self._starting

    def _signature(self, name: str) -> Signature:
        return Signature.of(self._setup.bundle.artifact(self._match.entries[name]).plan)

    def _process(self, name: str) -> PointProcess:
        """Return the process of a point that was not launched yet, starting it if necessary."""
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
                hint="See nvidia-smi. The results so far are kept; the same command goes on.",
            ) from None

    def _input_memory(self, name: str, signature: Signature) -> list[int]:
        """Return descriptors of shared memory with the inputs of a point; points can share them."""
        key = tuple((own.path, own.dtype, own.shape, own.layout) for own in signature.inputs)
        if key not in self._inputs:
            self._inputs[key] = []
            for data in self._referee.inputs(self._match.entries[name], signature):
                descriptor = os.memfd_create("input")
                self._inputs[key].append(descriptor)
                with open(descriptor, "wb", closefd=False) as file:
                    file.write(data)
        return self._inputs[key]
