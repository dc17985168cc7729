"""A launch plan made ready on one device, and bound to addresses and a stream: ready-made calls.

A bound plan is immutable. Calling it puts all steps into its stream and returns the driver's
answer as a tuple, `CUDA_SUCCESS` first; of a plan with several steps the number of the step that
failed comes second. Called with that number it goes on there: what ran before is never repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pallasc.errors import ArgumentError, CorruptError, DeviceError
from pallasc.runtime.device import process_state
from pallasc.runtime.device.devices import Device, active, current_context, current_device
from pallasc.runtime.device.driver import ODD_ANSWERS, open_driver
from pallasc.runtime.device.loading import launch_config, ready_function
from pallasc.runtime.device.memory import align, upload
from pallasc.runtime.device.parameters import ParameterBlocks
from pallasc.runtime.device.streams import DEFAULT_STREAMS, across_contexts
from pallasc.runtime.matching.candidates import Candidate, Signature
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.plan import Copy, Fill, Launch, LaunchPlan, Step

BoundPlan = Callable[..., tuple[Any, ...]]
"""A plan for one set of addresses and one stream; one of several steps takes the first to run."""

_MOST_STREAMS = 64


def load_program(candidate: Candidate, device: Device) -> Program:
    """Return the program of a variant on a device; it is loaded there once.

    Raises:
        CorruptError, DeviceError: as `Program` does.
    """
    with process_state.now.lock:
        programs: dict[int, Program] = process_state.now.programs.setdefault(candidate.artifact, {})
        if device.ordinal not in programs:
            try:
                programs[device.ordinal] = Program(candidate, device)
            except CorruptError as error:
                raise CorruptError(f"{candidate.id}: {error.message}", hint=error.hint) from error
        return programs[device.ordinal]


def is_loaded(candidate: Candidate, device: Device) -> bool:
    """Tell whether a variant is loaded on a device."""
    return device.ordinal in process_state.now.programs.get(candidate.artifact, {})


class Program:
    """A variant on a device: kernels loaded, constants uploaded, tensor maps prepared.

    Args:
        candidate: the variant.
        device: where it shall run.

    Attributes:
        device: where it runs.
        workspace_bytes: what its temporaries take together.

    Raises:
        CorruptError: the artifact is damaged.
        DeviceError: the device cannot run it.
    """

    def __init__(self, candidate: Candidate, device: Device) -> None:
        artifact = candidate.artifact
        self.name = candidate.id
        self.device = device
        self._driver = open_driver()
        self._plan = artifact.plan
        self._signature = candidate.signature
        self._steps = [step for step in self._plan.steps if isinstance(step, Launch) or step.size]
        launches = self._plan.launches
        self._functions = [
            ready_function(self._driver, artifact, launch, device) for launch in launches
        ]
        self._blocks = ParameterBlocks(self._driver, launches)
        self._constants = _upload_constants(self.name, artifact, device)
        self._temporaries, self.workspace_bytes = lay_out(self._plan)
        self._configs: dict[int, list[Any]] = {}

    def bind(self, stream: int, pointers: Sequence[int], workspace: int = 0) -> BoundPlan:
        """Return the calls for arrays at these addresses.

        Args:
            stream: the stream's handle. A context must be current: the driver encodes tensor maps
                in one only.
            pointers: addresses of the inputs, then of the outputs that are not inputs.
            workspace: address of `workspace_bytes` for temporaries.

        Raises:
            ArgumentError: an address is misaligned, an output overlaps another array, or the
                stream belongs to another device.
            DriverError: the driver refuses a tensor map.
        """
        self._signature.check_addresses(self.name, pointers)
        addresses = self._addresses(pointers, workspace)
        configs = self._configs.get(stream) or self._prepare_stream(stream)
        owner, base = self._blocks.make(addresses)
        calls = []
        launched = iter(zip(self._functions, configs, self._blocks.starts, strict=True))
        for step in self._steps:
            if isinstance(step, Launch):
                function, config, start = next(launched)
                launch = self._driver.bindings.cuLaunchKernelEx
                calls.append(partial(launch, config, function, base + start, 0))
            else:
                calls.append(self._memory_call(step, addresses, stream))
        if len(calls) != 1:
            return _in_order(calls, self._driver.success, owner)
        # The arguments name the block by its address only, so something has to own it.
        calls[0].owner = owner  # type: ignore[attr-defined]
        return calls[0]

    def in_context(self, plan: BoundPlan) -> BoundPlan:
        """Return a plan that runs in the device's context, and leaves the thread the one it had."""
        push = partial(self._driver.bindings.cuCtxPushCurrent, self.device.context)
        pop, success = self._driver.bindings.cuCtxPopCurrent, self._driver.success

        def run(*first: int) -> tuple[Any, ...]:
            pushed: tuple[Any, ...] = push()
            if pushed[0] is not success:
                return pushed
            try:
                return plan(*first)
            finally:
                pop()

        return run

    def beside_contexts(self, plan: BoundPlan, stream: int) -> BoundPlan:
        """Return a plan like `in_context`, for threads that may have a context of their own.

        Each context has a default stream of its own: where the program has made a context of this
        GPU current, its default stream and that of the device's context wait for each other.
        """
        inside = self.in_context(plan)
        if stream > DEFAULT_STREAMS:
            return inside
        own = int(self.device.context)

        def run(*first: int) -> tuple[Any, ...]:
            context = current_context()
            if context in (0, own):
                return plan(*first) if context else inside(*first)
            with across_contexts(self.device, stream):
                return inside(*first)

        return run

    def run(self, plan: BoundPlan, first: int = 0) -> tuple[Any, ...]:
        """Return what a bound plan answers.

        Args:
            plan: what is run.
            first: the step to go on from.

        Raises:
            DeviceError: the driver has no such function, or answers a code that is not known.
        """
        try:
            return plan(first) if first else plan()
        except ODD_ANSWERS as error:
            raise self.explain(plan, error) from error

    def explain(self, plan: BoundPlan, error: Exception) -> DeviceError:
        """Return the error for what a bound plan raised."""
        function = plan.func.__name__ if isinstance(plan, partial) else "the driver"
        return self._driver.explain(error, function, f"{self.name} cannot be launched")

    def error(self, result: tuple[Any, ...]) -> DeviceError:
        """Return the error for what a bound plan answered."""
        if len(result) == 1:
            what = f"{self.name} cannot be launched"
            return self._driver.error(int(result[0]), "cuLaunchKernelEx", what)
        before = ", after the steps before it have been" if result[1] else ""
        what = f"step {result[1]} of {self.name} cannot be launched{before}"
        return self._driver.error(int(result[0]), _function(self._steps[result[1]]), what)

    def _addresses(self, pointers: Sequence[int], workspace: int) -> list[int]:
        addresses = [0] * len(self._plan.buffers)
        for buffer, pointer in zip(self._signature.buffers, pointers, strict=True):
            addresses[buffer] = pointer
        for buffer, address in self._constants:
            addresses[buffer] = address
        for buffer, offset in self._temporaries:
            addresses[buffer] = workspace + offset
        return addresses

    def _prepare_stream(self, stream: int) -> list[Any]:
        _check_stream(stream, self.device)
        configs = [launch_config(self._driver, launch, stream) for launch in self._plan.launches]
        if len(self._configs) >= _MOST_STREAMS:
            self._configs.clear()
        self._configs[stream] = configs
        return configs

    def _memory_call(
        self, step: Fill | Copy, addresses: Sequence[int], stream: int
    ) -> partial[tuple[Any, ...]]:
        bindings = self._driver.bindings
        at, handle = bindings.CUdeviceptr, bindings.CUstream(stream)
        if isinstance(step, Copy):
            target = at(addresses[step.target] + step.target_offset)
            source = at(addresses[step.source] + step.source_offset)
            return partial(bindings.cuMemcpyDtoDAsync, target, source, step.size, handle)
        start = at(addresses[step.buffer] + step.offset)
        fill = getattr(bindings, _function(step))
        return partial(fill, start, step.value, step.size // step.width, handle)


def _function(step: Step) -> str:
    """Return the function of the driver that a step calls."""
    if isinstance(step, Launch):
        return "cuLaunchKernelEx"
    if isinstance(step, Copy):
        return "cuMemcpyDtoDAsync"
    return "cuMemsetD8Async" if step.width == 1 else "cuMemsetD32Async"


def _in_order(
    calls: Sequence[Callable[[], tuple[Any, ...]]], success: Any, owner: Any
) -> BoundPlan:
    def run(first: int = 0, owner: Any = owner) -> tuple[Any, ...]:
        for number, call in enumerate(calls[first:] if first else calls, first):
            result = call()
            if result[0] is not success:
                return result[0], number
        return (success,)

    return run


def _upload_constants(name: str, artifact: Artifact, device: Device) -> list[tuple[int, int]]:
    """Return the buffers of constants and their addresses on the device."""
    addresses = []
    for number, buffer in enumerate(artifact.plan.buffers):
        if buffer.digest is not None:
            data = artifact.blob(buffer.digest)
            if len(data) != buffer.size:
                raise CorruptError(
                    f"constant {number} of {name} has {len(data)} bytes, not {buffer.size}"
                )
            what = f"the constants of {name} do not fit into {device}"
            addresses.append((number, upload(device, buffer.digest, data, what)))
    return addresses


def lay_out(plan: LaunchPlan) -> tuple[list[tuple[int, int]], int]:
    """Return the offset of each temporary in a workspace, and its size."""
    offsets, at = [], 0
    for number, buffer in enumerate(plan.buffers):
        if buffer.role == "temporary":
            offsets.append((number, at))
            at += align(buffer.size)
    return offsets, at


def _check_stream(stream: int, device: Device) -> None:
    """Check that a stream belongs to the device; 0 to 2 stand for default streams."""
    if stream in (0, 1, 2):
        return
    with active(device) as driver:
        what = f"stream {stream:#x} cannot be used on {device}"
        context = driver.call("cuStreamGetCtx", driver.bindings.CUstream(stream), what=what)
    if isinstance(context, tuple):  # with the green context, from CUDA 12.5 on
        context = context[0]
    if int(context) != int(device.context):
        is_here = _device_of(context) == device.ordinal
        raise ArgumentError(
            f"stream {stream:#x} belongs to another {'context' if is_here else 'device'} than the "
            f"arrays, which lie on {device}.",
            hint=_PRIMARY if is_here else "Pass a stream of that device, or none.",
        )


_PRIMARY = "Kernels run in the primary context of a GPU, that of torch, cupy and JAX: use that."


def _device_of(context: Any) -> int:
    """Return the device of a context."""
    bindings = open_driver().bindings
    bindings.cuCtxPushCurrent(context)
    try:
        return current_device()
    finally:
        bindings.cuCtxPopCurrent()


def check_contexts(name: str, signature: Signature, pointers: Sequence[int], own: int) -> None:
    """Check that no array lies in the context that the program has made and that is current.

    Raises:
        ArgumentError: one does: kernels, which run in the primary context, cannot reach it.
    """
    bindings = open_driver().bindings
    attribute = bindings.CUpointer_attribute.CU_POINTER_ATTRIBUTE_CONTEXT
    for binding, pointer in zip(signature.passed, pointers, strict=True):
        code, context = bindings.cuPointerGetAttribute(attribute, pointer)
        if pointer and int(code) == 0 and int(context) == own:
            raise ArgumentError(
                f"{name}: {binding.path} lies in a context of the program's own.", hint=_PRIMARY
            )
