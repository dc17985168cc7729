"""A variant on a device, loaded once and launched by the C library.

The library executes flat plans. Without it, with thread-local default streams, or for what a flat
plan cannot express, `calls/plain.py` launches through cuda-python.

A cubin is loaded once for all devices. A kernel is made ready on each device separately: the
attributes that allow more than 48 kB of dynamic shared memory or clusters of more than 8 blocks are
set, and its code is copied there at once, since the driver's lazy loading fails during stream
capture (before driver 12.3) and can deadlock with running kernels. Nothing is ever unloaded: a
captured graph may launch a kernel after everything else of it is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from pallasc.errors import DeviceError, ToolError, UnsupportedError
from pallasc.runtime.calls.plain import PlainSteps
from pallasc.runtime.device import process_state
from pallasc.runtime.device.devices import Device, is_capturing
from pallasc.runtime.device.memory import lay_out
from pallasc.runtime.device.streams import DEFAULT_STREAMS, check_stream
from pallasc.runtime.matching.candidates import Candidate
from pallasc.runtime.native.extension import has_thread_streams
from pallasc.runtime.native.library import Library, NativePlan, open_library
from pallasc.specs.artifacts.flat_plan import flat_plan

_MOST_STREAMS = 64


def load_program(candidate: Candidate, device: Device, stream: int | None = None) -> Program:
    """Return the program of a variant on a device, loaded there once, for a launch in a stream.

    Raises:
        CorruptError, DeviceError: as for `Program`, or the stream is being captured.
    """
    with process_state.now.lock:
        programs: dict[int, Program] = process_state.now.programs.setdefault(candidate.artifact, {})
        if device.ordinal not in programs:
            if stream is not None and is_capturing(device, stream):
                what = f"{candidate.name} is not loaded on {device}"
                hint = f"Call preload({device.ordinal}) before the capture."
                raise DeviceError(f"{what}, and its stream is being captured.", hint=hint)
            programs[device.ordinal] = Program(candidate, device)
        return programs[device.ordinal]


class Program:
    """A variant on a device: kernels loaded, constants uploaded.

    Args:
        candidate: the variant.
        device: the GPU to load it on.

    Attributes:
        name: the variant's name in messages.
        device: as given.
        workspace_bytes: total size of its temporaries.
        native: the plan in the C library; None if launches go through cuda-python.

    Raises:
        CorruptError: the artifact is damaged.
        DeviceError: the device cannot run it.
    """

    def __init__(self, candidate: Candidate, device: Device) -> None:
        self.name = candidate.id
        self.device = device
        _, self.workspace_bytes = lay_out(candidate.artifact.plan)
        self.native = _open(candidate)
        self._launch: Callable[..., None]
        if self.native is None:
            self._launch = PlainSteps(candidate, device).launch
        else:
            self.native.prepare(device.ordinal)
            self._launch = partial(self.native.launch, device=device.ordinal)
        self._streams: set[int] = set()

    def launch(self, stream: int, pointers: Sequence[int], workspace: int = 0) -> None:
        """Enqueue all steps in a stream.

        Args:
            stream: the stream's handle.
            pointers: addresses of the inputs, then of the outputs that are not inputs.
            workspace: address of `workspace_bytes` for temporaries.

        Raises:
            ArgumentError: an address is misaligned, an output overlaps another array, or the
                stream belongs to another device.
            DriverError: the driver refuses a step or a tensor map.
        """
        if stream > DEFAULT_STREAMS and stream not in self._streams:
            self._admit(stream)
        try:
            self._launch(pointers, stream=stream, workspace=workspace)
        except DeviceError as error:
            error.names_variant = True
            raise

    def _admit(self, stream: int) -> None:
        check_stream(stream, self.device)
        if len(self._streams) >= _MOST_STREAMS:
            self._streams.clear()
        self._streams.add(stream)


def _open(candidate: Candidate) -> NativePlan | None:
    """Return a variant as an open flat plan, None if cuda-python has to launch it."""
    library = _library()
    if library is None:
        return None
    try:
        return library.open(flat_plan(candidate.artifact, name=candidate.id))
    except UnsupportedError:
        return None


def _library() -> Library | None:
    """Return the C library, None if it cannot launch for this process."""
    state = process_state.now
    if state.library is None:
        try:
            state.library = False if has_thread_streams() else open_library()
        except ToolError:
            state.library = False
    return state.library or None
