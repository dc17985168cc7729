"""The process of one point: it launches one variant, and measures it on request.

Started as `python -P -m pallasc.tuning.point_process PARENT SOCKET`. It ends with the run, even if
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
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pallasc.errors import DriverError, PallascError

if TYPE_CHECKING:
    from pallasc.runtime.adapters.device_arrays import DeviceArray
    from pallasc.runtime.calls.launch import Route
    from pallasc.runtime.device.devices import Device


NO_ROOM = frozenset({2, 46})
"""The driver's codes for lack of memory for another process, and for exclusive use of the GPU."""

_PR_SET_PDEATHSIG = 1


def encode(message: Mapping[str, object]) -> bytes:
    """Return a message as one line; the order of its keys is kept."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def main(parent: int, descriptor: int) -> None:
    """Answer requests until there are no more."""
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
    inputs: list[DeviceArray]
    results: list[DeviceArray]

    @property
    def _pointers(self) -> list[int]:
        return [array.pointer for array in (*self.inputs, *self.results)]

    def open(self, device: int) -> dict[str, object]:
        from pallasc.runtime.device.devices import get_device

        self.device = get_device(device)
        return {}

    def launch(self, inputs: list[int], outputs: int, **variant: Any) -> dict[str, object]:
        """Load the variant, fill its inputs, launch it once, and write the outputs."""
        self.route = _load(**variant)
        self.route.program(self.device.ordinal)  # reject an unsuitable GPU before allocating
        self._allocate(inputs)
        self.route.enqueue(0, self.device.ordinal, self._pointers)
        arrays, sizes = {"input": self.inputs, "result": self.results}, []
        with os.fdopen(outputs, "wb", closefd=False) as file:
            for source, number in self.route.signature.sources:
                sizes.append(file.write(arrays[source][number].to_bytes()))
        return {"sizes": sizes}

    def _allocate(self, descriptors: list[int]) -> None:
        from pallasc.runtime.adapters.device_arrays import DeviceArray

        signature, ordinal = self.route.signature, self.device.ordinal
        self.inputs = [DeviceArray(own.shape, own.dtype, ordinal) for own in signature.inputs]
        for array, descriptor in zip(self.inputs, descriptors, strict=True):
            if array.nbytes:
                with mmap.mmap(descriptor, array.nbytes, prot=mmap.PROT_READ) as data:
                    array.copy_from(data)
        self.results = [DeviceArray(own.shape, own.dtype, ordinal) for own in signature.results]

    def time(self, repeats: int, *, cold: bool) -> dict[str, object]:
        """Measure a launch: the mean of several without the fastest and slowest quarter.

        Event timestamps have discrete steps, which a median of few launches would keep.
        """
        from pallasc.runtime.timing import time_launches

        times_us = time_launches(
            self.route, self.device, self._pointers, repeats=repeats, warmup=1, cold=cold
        )
        quarter = repeats // 4
        return {"us": statistics.fmean(sorted(times_us)[quarter : repeats - quarter])}


def _load(bundle: str, job: str, name: str, params: Mapping[str, Any], target: str) -> Route:
    """Load a variant of a job.

    Raises:
        PallascError: it does not exist, or the bundle is another one.
    """
    from pallasc.runtime.calls.launch import Route
    from pallasc.runtime.matching.candidates import Candidate
    from pallasc.specs.bundle.bundle import open_bundle

    opened = open_bundle(bundle)
    if opened.digest != job:
        raise PallascError(f"{bundle} was replaced since the run began.")
    entry = opened.select(name, params, target)
    return Route([Candidate(entry.name, dict(entry.params), opened.artifact(entry))])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
