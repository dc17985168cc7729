"""Launches. A program is a variant on one device; a route has the programs for one signature.

The C library executes a program's flat plan: its launch plan as one block of bytes. Without it,
with thread-local default streams, or if a launch plan has no flat form, `calls/plain.py` launches
through cuda-python.

A cubin is loaded once for all devices. A kernel is prepared on each device separately: attributes
allow it more than 48 kB of dynamic shared memory or clusters of more than 8 blocks, and its code is
copied to the device at once, because the driver's lazy loading fails during stream capture (before
driver 12.3) and can deadlock with running kernels. Nothing is ever unloaded: a captured graph may
launch a kernel after all of its Python objects are gone.

The launch uses the stream that the caller passes. If there is none, it uses the stream of the first
array (input or result) that names a stream or whose framework has a current stream. Otherwise it
uses the default stream. If other arrays belong to another stream, the launch waits for
the work in that stream, and later work there waits for the launch (`streams.in_order`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from msgspec import Struct

from pallasc.errors import ArgumentError, DeviceError, PallascError, ToolError, UnsupportedError
from pallasc.runtime.calls.plain import PlainSteps
from pallasc.runtime.device.devices import (
    Device,
    Forgetful,
    active,
    current_context,
    current_device,
    get_device,
    is_capturing,
    outside_captures,
    state,
)
from pallasc.runtime.device.streams import (
    DEFAULT_STREAMS,
    PRIMARY_CONTEXT,
    align,
    check_stream,
    in_order,
    lay_out,
    own_stream,
    stream_handle,
    temporary,
)
from pallasc.runtime.matching.arrays import Passed, check_copied, find_adapter
from pallasc.runtime.matching.candidates import Candidate
from pallasc.runtime.matching.padding import Prepared
from pallasc.runtime.matching.tuned import Selector
from pallasc.runtime.native.library import Library, NativePlan, has_thread_streams, open_library
from pallasc.specs.artifacts.flat_plan import flat_plan
from pallasc.specs.artifacts.plan import LaunchPlan
from pallasc.specs.artifacts.signature import MISSING, unflatten

# ---- programs


def load_program(candidate: Candidate, device: Device, stream: int | None = None) -> Program:
    """Return the program of a variant on a device; the first call loads it.

    Raises:
        CorruptError: as for `Program`.
        DeviceError: as for `Program`, or the variant is not loaded and `stream` is being captured.
    """
    with state.lock:
        programs: dict[int, Program] = state.programs.setdefault(candidate.artifact, {})
        if device.ordinal not in programs:
            if stream is not None and is_capturing(device, stream):
                what = f"{candidate.name} cannot be loaded on {device}"
                hint = f"Call preload({device.ordinal}) before the capture."
                raise DeviceError(f"{what} while its stream is being captured.", hint=hint)
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
        if stream > DEFAULT_STREAMS:
            check_stream(stream, self.device)
        try:
            self._launch(pointers, stream=stream, workspace=workspace)
        except DeviceError as error:
            error.names_variant = True
            raise


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
    try:
        return None if has_thread_streams() else open_library()
    except ToolError:
        return None


# ---- routes


class Route:
    """Variants of one kernel that differ only in their target.

    Args:
        candidates: the variants.
        is_only: True if the kernel has no other route for the same arrays on any GPU of this
            machine, so that the arrays alone determine the route.
        selector: chooses among the variants; None if no tuning table decides.

    Attributes:
        is_only: as given.
        signature: their signature.
        workspace_bytes: memory for temporaries that each launch needs.
        fronts: the C functions for calls (`native_path.py`), which hold handles of the programs.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        *,
        is_only: bool = True,
        selector: Selector | None = None,
    ) -> None:
        self.candidates = tuple(candidates)
        self._selector = selector or Selector(candidates)
        self.is_only = is_only
        self.name = candidates[0].name
        self.signature = candidates[0].signature
        self.workspace_bytes = max(lay_out(variant.artifact.plan)[1] for variant in candidates)
        self._programs: dict[int, Program] = {}
        self.fronts: list[Forgetful] = []
        state.routes.add(self)

    def program(self, ordinal: int, stream: int | None = None) -> Program:
        """Return the program for a device; the first call loads it there.

        Raises:
            SelectionError: no variant can run on the device.
            DeviceError: the program cannot be loaded, or the stream is being captured.
        """
        program = self._programs.get(ordinal)
        if program is None:
            device = get_device(ordinal)
            program = load_program(self._selector.select(device), device, stream)
            self._programs[ordinal] = program
        return program

    def loaded(self, ordinal: int) -> Program | None:
        """Return the program for a device, None if nothing has been launched there."""
        return self._programs.get(ordinal)

    def enqueue(
        self, stream: int, ordinal: int, pointers: Sequence[int], workspace: int | None = None
    ) -> None:
        """Launch for arrays at these addresses, allocating temporaries if no workspace is given.

        The launch runs in the device's primary context, whichever context is current.

        Raises:
            ArgumentError: an address is misaligned, arrays overlap, the stream belongs to another
                context, or the current context is not the device's primary one.
            DeviceError: the launch fails.
        """
        program = self.program(ordinal, stream)
        device, size_bytes = program.device, self.workspace_bytes
        # The default stream of another context is another stream.
        if current_context() not in (0, int(device.context)) and current_device() == ordinal:
            raise ArgumentError(
                f"{self.name}: the current context is not the primary context of {device}.",
                hint=PRIMARY_CONTEXT,
            )
        if not size_bytes or workspace is not None:
            program.launch(stream, pointers, workspace or 0)
            return
        what = f"{self.name} needs {size_bytes} bytes for temporaries"
        with temporary(device, size_bytes, stream, what) as place:
            program.launch(stream, pointers, place)

    def forget(self) -> None:
        """Drop everything that was created before a fork."""
        self._programs.clear()
        for front in self.fronts:
            front.forget()


# ---- one launch


# Not frozen, because a frozen object takes three times as long to create.
class Match(Struct):
    """A launch: a route, and arrays that it takes.

    Attributes:
        route: the variants for these arrays.
        inputs: the arrays, in order.
        results: arrays for the results; None if they have to be allocated.
        ordinal: the GPU that all arrays are on; None for the host.
        out: the caller's `out`, MISSING if not given.
        stream: as the caller gave it.
        padding: how shorter arrays are padded, None if they have the variant's shapes.
    """

    route: Route
    inputs: Sequence[Passed]
    results: Sequence[Passed] | None
    ordinal: int | None
    out: Any
    stream: Any
    padding: Prepared | None = None

    @property
    def signature(self) -> LaunchPlan:
        """The signature that the caller sees."""
        return self.route.signature if self.padding is None else self.padding.signature

    def allocate(self, ordinal: int, stream: int | None) -> list[Passed]:
        """Return new memory for each result, from the first array's framework.

        Raises:
            ArgumentError: there are no arrays.
        """
        results = self.signature.results
        if not self.inputs and results:
            raise ArgumentError(
                f"{self.route.name} takes no arrays, so nothing says which framework its results "
                "are for.",
                hint="Call into(out=...) with arrays of that framework.",
            )
        own = None if self.stream is None else stream
        arrays = [
            self.inputs[0].adapter.empty(result.shape, result.dtype, ordinal, own)
            for result in results
        ]
        adapters = [find_adapter(array, "a result") for array in arrays]
        return [
            Passed(array, adapter, adapter.view(array))
            for array, adapter in zip(arrays, adapters, strict=True)
        ]

    def returned(self, results: Sequence[Passed]) -> Any:
        """Return the call's result: `out`, or arrays in the structure of the compiled function."""
        if self.out is not MISSING:
            return self.out
        signature = self.route.signature
        leaves = [
            (self.inputs if source == "input" else results)[number].array
            for source, number in signature.sources
        ]
        tree = signature.output_tree
        return leaves[tree] if type(tree) is int else unflatten(tree, leaves)


def launch(match: Match, ordinal: int) -> Any:
    """Launch on GPU arrays; return the results in the structure of the compiled function.

    Raises:
        ArgumentError, DeviceError: as for a call of the kernel.
    """
    route, inputs, results = match.route, match.inputs, match.results
    stream = _stream(match, [*inputs, *(results or [])], ordinal)
    route.program(ordinal, stream)  # fail before anything is allocated
    if results is None:
        results = match.allocate(ordinal, stream)
    passed = [*inputs, *results]
    written = {*route.signature.updated, *range(len(inputs), len(passed))}
    workspace = _workspace(inputs, route.workspace_bytes, ordinal, stream)
    address = None if workspace is None else workspace.view.pointer
    pointers = [array.view.pointer for array in passed]
    try:
        with _order(match, passed, written, ordinal, stream):
            if match.padding is None:
                route.enqueue(stream, ordinal, pointers, address)
            else:
                match.padding.enqueue(
                    get_device(ordinal),
                    stream,
                    pointers,
                    lambda places: route.enqueue(stream, ordinal, places, address),
                )
    except ArgumentError:  # nothing was enqueued
        raise
    except PallascError:
        _mark_written(passed, written)
        raise
    _mark_written(passed, written)
    return match.returned(results)


def _stream(match: Match, passed: Sequence[Passed], ordinal: int) -> int:
    if match.stream is not None:
        return stream_handle(match.stream)
    for array in passed:
        if (array.view.stream or 0) >= DEFAULT_STREAMS:
            return array.view.stream or 0
        if array.adapter.has_pool:
            return array.adapter.stream(ordinal)
    return 0


def _order(
    match: Match, passed: Sequence[Passed], written: set[int], ordinal: int, stream: int
) -> AbstractContextManager[None]:
    """Order the launch with other streams, see `in_order`.

    Other streams are the frameworks' current streams (unless the caller passes a stream and thus
    handles the order with them), streams that arrays with `__cuda_array_interface__` name, and
    streams that have used a device array of pallasc.
    """
    is_given = match.stream is not None
    adapters = {} if is_given else {array.adapter: None for array in passed}
    streams = [adapter.stream(ordinal) for adapter in adapters if adapter.has_pool]
    streams += [array.view.stream for array in passed if array.view.stream is not None]
    # Handles 0 and 1 both mean the default stream.
    others = [other for other in dict.fromkeys(streams) if (other or 1) != (stream or 1)]
    uses = [
        (array.view.uses, number in written)
        for number, array in enumerate(passed)
        if array.view.uses is not None
    ]
    name = match.route.name
    return in_order(name, get_device(ordinal), stream, others, uses, is_given=is_given)


def _workspace(
    inputs: Sequence[Passed], size_bytes: int, ordinal: int, stream: int
) -> Passed | None:
    """Return memory for temporaries from the inputs' framework, None if it has no pool."""
    if size_bytes and inputs and inputs[0].adapter.has_pool:
        adapter = inputs[0].adapter
        array = adapter.empty((size_bytes,), "u8", ordinal, stream)
        return Passed(array, adapter, adapter.view(array))
    return None


def _mark_written(passed: Sequence[Passed], written: set[int]) -> None:
    """Mark the arrays that a launch wrote, in frameworks that count writes."""
    for number in sorted(written):
        passed[number].adapter.mark_written((passed[number].array,))


# ---- host arrays: copied to the GPU and back, outside of any stream capture


def launch_copied(match: Match) -> Any:
    """Launch on the current device, wait, and return the results.

    Raises:
        ArgumentError, DeviceError: as for a call of the kernel.
    """
    route, results, padding = match.route, match.results, match.padding
    if results is None:
        results = match.allocate(current_device(), None)
    check_copied(route.name, match.signature.results, results)
    device = get_device(current_device())
    program = route.program(device.ordinal)
    stream = own_stream(device) if match.stream is None else stream_handle(match.stream)
    if match.stream is not None and is_capturing(device, stream):  # no copies in the graph
        raise ArgumentError(
            f"{route.name}: stream {stream:#x} is being captured, and copies of numpy arrays must "
            "not become part of the graph.",
            hint="Pass arrays in GPU memory.",
        )
    count = len(match.inputs)
    arrays = [passed.array for passed in (*match.inputs, *results)]
    sizes = [align(array.nbytes) for array in arrays]
    total = sum(sizes) + route.workspace_bytes
    what = f"{route.name} needs {total} bytes on {device}"
    with (
        active(device) as driver,
        outside_captures(driver),
        temporary(device, total, stream, what) as base,
    ):
        places = [base + sum(sizes[:number]) for number in range(len(sizes))]
        try:
            what = f"an input of {route.name} cannot be copied to the GPU"
            for place, array in zip(places[:count], arrays[:count], strict=True):
                if array.nbytes:
                    copied = place, array.ctypes.data, array.nbytes, stream
                    driver.call("cuMemcpyHtoDAsync", *copied, what=what)
            launch = partial(program.launch, stream, workspace=base + sum(sizes))
            if padding is None:
                launch(places)
            else:
                padding.enqueue(device, stream, places, launch)
            what = f"a result of {route.name} cannot be copied from the GPU"
            for number in (*route.signature.updated, *range(count, len(arrays))):
                if arrays[number].nbytes:
                    array = arrays[number]
                    copied = array.ctypes.data, places[number], array.nbytes, stream
                    driver.call("cuMemcpyDtoHAsync", *copied, what=what)
        except BaseException:
            driver.bindings.cuStreamSynchronize(stream)  # copies may still use the arrays
            raise
        what = f"the results of {route.name} cannot be copied from the GPU"
        driver.call("cuStreamSynchronize", stream, what=what)
    return match.returned(results)
