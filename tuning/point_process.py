"""Both ends of the process of one point, which launches one variant and measures it on request.

Requests have a time limit; a process is killed together with everything that it started. The run
(the process of `pallasc tune run`) creates no context on the GPU, so an error of a kernel cannot
affect the run.

The process is started as `python -P -m pallasc.tuning.point_process PARENT SOCKET`. It ends with
the run, even if the run is killed. The two exchange JSON objects, one per line, in turn:

    run:     {"op": "open", "device"}: begin to use a GPU
    process: {}
    run:     {"op": "launch", "bundle", "job", "name", "params", "target", "inputs", "outputs"}:
             load the variant, launch it once, write its outputs
    process: {"sizes": [bytes of each output]}
    run:     {"op": "time", "repeats", "cold"}: measure
    process: {"us": time of a launch}
    process: {"error", "code"}, instead of any answer: the reason, and the driver's code or 0

`inputs` and `outputs` are descriptors of shared memory: one for each input, and one for all
outputs, stored one after the other. The process ends when the socket is closed.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import socket
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pallasc.errors import DeviceError, DriverError, PallascError

if TYPE_CHECKING:
    from pallasc.runtime.adapters.device_arrays import Operands
    from pallasc.runtime.calls.launch import Route
    from pallasc.runtime.device.devices import Device


NO_ROOM = frozenset({2, 46})
"""The driver's codes for lack of memory for another process, and for exclusive use of the GPU."""

_PR_SET_PDEATHSIG = 1
_MOST_BYTES = 4096
_KILL_S = 30.0
"""A process that is still alive after this time hangs in the driver."""


def encode(message: Mapping[str, object]) -> bytes:
    """Return a message as one line; the order of its keys is kept."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class PointError(Exception):
    """A point that cannot be measured; its process has ended or can no longer be used.

    Args:
        why: the reason.
        code: the driver's error code, 0 for other reasons.
    """

    def __init__(self, why: str, code: int = 0) -> None:
        super().__init__(why)
        self.why = why
        self.code = code


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
                [sys.executable, "-P", "-m", __name__, *numbers],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=(theirs.fileno(), self.outputs, *descriptors),
                start_new_session=True,
            )

    def ask(self, message: Mapping[str, object]) -> dict[str, object]:
        """Send a message and return the answer.

        Raises:
            PointError: the process reported an error, ended, or timed out.
        """
        try:
            self._socket.sendall(encode(message))
            line = self._answers.readline()
        except TimeoutError:
            why = f"no answer in {self._socket.gettimeout():g} s: it hangs"
            raise PointError(why) from None
        except ConnectionError:
            line = b""
        if not line:
            self.kill()
            raise PointError(self._ending())
        answer: dict[str, object] = json.loads(line)
        if "error" in answer:
            raise PointError(str(answer["error"]), int(str(answer["code"])))
        return answer

    def read_outputs(self, sizes: Sequence[int]) -> list[bytes]:
        """Return its outputs, given their sizes, and remove them from the shared memory."""
        with open(self.outputs, "rb", closefd=False) as file:
            file.seek(0)
            outputs = [file.read(size) for size in sizes]
        os.ftruncate(self.outputs, 0)
        return outputs

    def kill(self) -> None:
        """Kill the process and its whole session; repeated calls do nothing.

        Raises:
            DeviceError: the process does not end.
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
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return f"its process ended with {how}" + (f": {self._last_line}" if self._last_line else "")


def _last_line(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    text = os.pread(descriptor, _MOST_BYTES, max(0, size - _MOST_BYTES)).decode("utf-8", "replace")
    return next((line.strip() for line in reversed(text.split("\n")) if line.strip()), "")


# ---- code that runs in the process


def main(parent: int, descriptor: int) -> None:
    """Answer requests until the run closes the socket."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    run, point = socket.socket(fileno=descriptor), _Point()
    for line in run.makefile("rb"):
        request = json.loads(line)
        try:
            answer = getattr(point, request.pop("op"))(**request)
        except PallascError as error:
            code = error.code if isinstance(error, DriverError) else 0
            answer = {"error": error.message, "code": code}
        run.sendall(encode(answer))
    # Exit without cleanup: freeing memory after a GPU error may take long.
    os._exit(0)


class _Point:
    """A variant and its arrays on a GPU; each method answers a request."""

    device: Device
    route: Route
    operands: Operands

    def open(self, device: int) -> dict[str, object]:
        from pallasc.runtime.device.devices import get_device

        self.device = get_device(device)
        return {}

    def launch(self, inputs: list[int], outputs: int, **variant: Any) -> dict[str, object]:
        """Load the variant, fill its inputs, launch it once, and write the outputs."""
        from pallasc.runtime.adapters.device_arrays import Operands

        self.route = _load(**variant)
        self.route.program(self.device.ordinal)  # reject an unsuitable GPU before allocating
        signature = self.route.signature
        data = [
            mmap.mmap(number, own.size_bytes, prot=mmap.PROT_READ) if own.size_bytes else b""
            for number, own in zip(inputs, signature.inputs, strict=True)
        ]
        self.operands = Operands(signature, data, self.device)
        self.route.enqueue(0, self.device.ordinal, self.operands.pointers)
        with os.fdopen(outputs, "wb", closefd=False) as file:
            return {"sizes": [file.write(output) for output in self.operands.outputs()]}

    def time(self, repeats: int, *, cold: bool) -> dict[str, object]:
        """Return the mean time of several launches without the fastest and slowest quarter.

        A median would be as coarse as the timestamps of events.
        """
        from pallasc.runtime.timing import time_launches

        times_us = time_launches(
            self.route, self.device, self.operands.pointers, repeats=repeats, warmup=1, cold=cold
        )
        quarter = repeats // 4
        return {"us": statistics.fmean(sorted(times_us)[quarter : repeats - quarter])}


def _load(bundle: str, job: str, name: str, params: Mapping[str, Any], target: str) -> Route:
    """Load a variant of a job.

    Raises:
        PallascError: the bundle was replaced.
    """
    from pallasc.runtime.calls.launch import Route
    from pallasc.runtime.matching.candidates import Candidate
    from pallasc.specs.bundle.bundle import open_bundle
    from pallasc.specs.bundle.manifest import entry_key

    opened = open_bundle(bundle)
    if opened.digest != job:
        raise PallascError(f"{bundle} was replaced since the run began.")
    key = entry_key(name, target, params)
    entry = next(entry for entry in opened.entries(name) if entry.key == key)
    return Route([Candidate(entry.name, dict(entry.params), opened.artifact(entry))])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
