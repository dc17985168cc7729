"""The points of a job: the contests on a GPU, and a process for each point.

Requests to a process have a time limit; a process is killed together with everything that it
started. The run itself creates no context on the GPU, so that no error of a kernel can reach it.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from pallasc.errors import DeviceError, SelectionError, SpecError
from pallasc.runtime.device.devices import Device
from pallasc.runtime.matching.selection import arch_refusal
from pallasc.specs.artifacts.signature import Signature
from pallasc.specs.bundle.bundle import Bundle
from pallasc.specs.bundle.manifest import Entry
from pallasc.specs.gpus import MODELS, device_names
from pallasc.specs.templates import Scalar, typed
from pallasc.specs.tuning import Tuning, key_text
from pallasc.tuning.point_process import NO_ROOM, encode
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
        self.outputs = os.memfd_create("outputs")
        self._errors = os.memfd_create("errors")
        self._last_line = ""
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(timeout_s)
        self._answers = self._socket.makefile("rb")
        with theirs:
            numbers = str(os.getpid()), str(theirs.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, *numbers],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=(theirs.fileno(), self.outputs, *descriptors),
                start_new_session=True,
            )

    def ask(self, message: Mapping[str, object]) -> dict[str, object]:
        """Send a message and return the answer.

        Raises:
            PointError: the process reported an error, ended, or timed out; it is then killed.
        """
        try:
            self._socket.sendall(encode(message))
            line = self._answers.readline()
        except TimeoutError:
            why = f"no answer in {self._socket.gettimeout():g} s: it hangs"
            raise PointError(why, stuck=self._killed()) from None
        except ConnectionError:
            line = b""
        if not line:
            stuck = self._killed()
            raise PointError(self._ending(), stuck=stuck)
        answer: dict[str, object] = json.loads(line)
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
        if self._socket.fileno() < 0:
            return
        self._answers.close()
        self._socket.close()
        os.close(self.outputs)
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
            self._last_line = _last_line(self._errors)
            os.close(self._errors)

    def _ending(self) -> str:
        """Describe how a process ended by itself, with the last line that it wrote."""
        code = self._process.returncode
        if code is None:
            return "its process gives no answers any more"
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return f"its process ended with {how}" + (f": {self._last_line}" if self._last_line else "")


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
        sizes: list[int] = process.ask(message)["sizes"]  # type: ignore[assignment]
        if name not in self._judged:
            why = self._referee.disagreement(entry, signature, process.read_outputs(sizes))
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
