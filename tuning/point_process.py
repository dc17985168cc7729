"""The process of one point: it launches one variant, and measures it on request.

Started as `python -P -m pallasc.tuning.point_process PARENT ANSWERS`. It ends with the run, even if
the run is killed. The two exchange JSON objects, one per line, in turn:

    run:     {"op": "open", "device"}: begin to use a GPU
    process: {}
    run:     {"op": "launch", "bundle", "job", "name", "params", "target", "inputs", "outputs"}:
             load the variant, launch it once, write its outputs
    process: {"sizes": [bytes of each output]}
    run:     {"op": "time", "repeats", "cold"}: measure
    process: {"us": time of a launch}
    process: {"error", "code"}, instead of any answer: the reason, and the driver's code or 0

`inputs` and `outputs` are descriptors of shared memory: one for each input, and one for all
outputs, stored one after the other. The process has no other output, and ends when its input ends.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pallasc.errors import DriverError, PallascError

if TYPE_CHECKING:
    from pallasc.runtime.adapters.device_arrays import DeviceArray
    from pallasc.runtime.calls.launch import Route
    from pallasc.runtime.device.devices import Device
    from pallasc.specs.artifacts.signature import Signature


NO_ROOM = frozenset({2, 46})
"""The driver's codes for lack of memory for another process, and for exclusive use of the GPU."""


def encode(message: Mapping[str, object]) -> bytes:
    """Return a message as one line; the order of its keys is kept."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, object]:
    """Parse the message on a line.

    Raises:
        ValueError: it is not a JSON object.
    """
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError(f"a message is a JSON object, not a {type(message).__name__}")
    return message


_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> None:
    """Answer requests until there are no more."""
    parent, answers = map(int, arguments)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    state = _State()
    for line in sys.stdin.buffer:
        try:
            answer = state.answer(decode(line))
        except PallascError as error:
            code = error.code if isinstance(error, DriverError) else 0
            answer = {"error": error.message, "code": code}
        os.write(answers, encode(answer))
    # Exit without cleanup: freeing memory after a GPU error may take long.
    os._exit(0)


class _State:
    """The opened GPU and the loaded point."""

    device: Device
    point: Point

    def answer(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Execute a request.

        Raises:
            PallascError: it failed.
        """
        match request["op"]:
            case "open":
                from pallasc.runtime.device.devices import get_device

                self.device = get_device(int(request["device"]))
                return {}
            case "launch":
                self.point = _load(request, self.device)
                return self.point.first_launch(request)
            case _:
                return {"us": self.point.time_us(request)}


@dataclass(frozen=True, slots=True)
class Point:
    """A variant and its arrays on a GPU."""

    route: Route
    device: Device
    inputs: list[DeviceArray]
    results: list[DeviceArray]

    @property
    def _pointers(self) -> list[int]:
        return [array.pointer for array in (*self.inputs, *self.results)]

    def first_launch(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Launch once and write the outputs to the descriptor in the request."""
        self.route.enqueue(0, self.device.ordinal, self._pointers)
        arrays = {"input": self.inputs, "result": self.results}
        sizes = []
        for source, number in self.route.signature.sources:
            data = arrays[source][number].to_bytes()
            _write(int(request["outputs"]), data)
            sizes.append(len(data))
        return {"sizes": sizes}

    def time_us(self, request: Mapping[str, Any]) -> float:
        """Return the time of a launch: the mean of several without the fastest and slowest quarter.

        Event timestamps have discrete steps, which a median of few launches would keep.
        """
        from pallasc.runtime.timing import time_launches

        repeats = int(request["repeats"])
        times_us = sorted(
            time_launches(
                self.route,
                self.device,
                self._pointers,
                repeats=repeats,
                warmup=1,
                cold=bool(request["cold"]),
            )
        )
        return statistics.fmean(times_us[repeats // 4 : repeats - repeats // 4])


def _load(request: Mapping[str, Any], device: Device) -> Point:
    """Load the variant in a request and fill its inputs.

    Raises:
        PallascError: it cannot be launched on this GPU.
    """
    from pallasc.runtime.adapters.device_arrays import DeviceArray
    from pallasc.runtime.calls.launch import Route
    from pallasc.runtime.matching.candidates import Candidate
    from pallasc.specs.bundle.bundle import open_bundle

    bundle = open_bundle(request["bundle"])
    _check(bundle.digest, request)
    entry = bundle.select(request["name"], request["params"], request["target"])
    route = Route([Candidate(entry.name, dict(entry.params), bundle.artifact(entry))])
    route.program(device.ordinal)  # reject an unsuitable GPU before allocating
    signature: Signature = route.signature
    inputs = []
    for binding, descriptor in zip(signature.inputs, request["inputs"], strict=True):
        array = DeviceArray(binding.shape, binding.dtype, device.ordinal)
        if array.nbytes:
            with mmap.mmap(descriptor, array.nbytes, prot=mmap.PROT_READ) as data:
                array.copy_from(data)
        inputs.append(array)
    results = [DeviceArray(array.shape, array.dtype, device.ordinal) for array in signature.results]
    return Point(route, device, inputs, results)


def _check(digest: str, request: Mapping[str, Any]) -> None:
    if digest != request["job"]:
        raise PallascError(f"{request['bundle']} was replaced since the run began.")


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


if __name__ == "__main__":
    main(sys.argv[1:])
