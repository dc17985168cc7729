"""The way of a launch: a route has programs on devices, and plans bound to addresses.

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
from pallasc.runtime.device.devices import (
    Device,
    active,
    context_of,
    current_context,
    current_device,
    get_device,
)
from pallasc.runtime.device.driver import ODD_ANSWERS, open_driver
from pallasc.runtime.device.loading import launch_config, load_variant
from pallasc.runtime.device.memory import lay_out, temporary
from pallasc.runtime.device.streams import (
    DEFAULT_STREAMS,
    PRIMARY_CONTEXT,
    beside_contexts,
    check_stream,
    in_context,
    is_capturing,
)
from pallasc.runtime.matching.candidates import Candidate
from pallasc.runtime.matching.selection import select
from pallasc.specs.artifacts.plan import Copy, Fill, Launch, Step

BoundPlan = Callable[..., tuple[Any, ...]]
"""A plan for one set of addresses and one stream; with several steps it takes the first to run."""

_MOST_STREAMS = 64

MOST_PLANS = 1024
"""Bound plans that a route keeps; before the next, all are dropped."""

_WRONG_CONTEXT = frozenset({201, 400})
"""No context is current, or another than that of the stream or the function."""

PlanKey = tuple[int, ...]
"""Stream, device, then the addresses of inputs, results and, if there is one, the workspace.

A device below zero is the complement of its number: its context is made current for the launch.
"""


class Route:
    """Variants of one kernel that differ in their target only.

    Args:
        candidates: the variants.

    Attributes:
        signature: what they take and give.
        plans: bound plans by key. Reading it needs no lock.
        workspace_bytes: memory for temporaries that each launch needs.
    """

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self.candidates = tuple(candidates)
        self.name = candidates[0].name
        self.signature = candidates[0].signature
        self.plans: dict[PlanKey, BoundPlan] = {}
        self.workspace_bytes = max(lay_out(variant.artifact.plan)[1] for variant in candidates)
        self._programs: dict[int, Program] = {}
        process_state.now.routes.add(self)

    def program(self, ordinal: int, stream: int | None = None) -> Program:
        """Return the program for a device; the first time it is loaded there.

        Raises:
            SelectionError: no variant can run there.
            DeviceError: it cannot be loaded, or the stream is being captured.
        """
        program = self._programs.get(ordinal)
        if program is None:
            device = get_device(ordinal)
            variant = select(self.candidates, device)
            if stream is not None and not is_loaded(variant, device):
                self._check_capture(device, stream)
            program = self._programs[ordinal] = load_program(variant, device)
        return program

    def bind(self, key: PlanKey) -> BoundPlan:
        """Return a new plan for a key, and keep it.

        Raises:
            ArgumentError, DeviceError: as `Program` and `Program.bind` do.
        """
        stream, place, *pointers = key
        program = self.program(_ordinal(place), stream)
        workspace = pointers.pop() if self.workspace_bytes else 0
        device, context = program.device, current_context()
        if place < 0:
            with active(device):
                plan = in_context(device, program.bind(stream, pointers, workspace))
        elif not context or _is_own(context, device):
            if context:
                self._check_contexts(pointers, context)
            with active(device):
                plan = program.bind(stream, pointers, workspace)
            plan = beside_contexts(device, stream, plan)
        else:
            plan = program.bind(stream, pointers, workspace)
        # Without a lock: two threads may bind one key, and either plan is right.
        if len(self.plans) >= MOST_PLANS:
            self.plans.clear()
        self.plans[key] = plan
        return plan

    def try_bind(self, key: PlanKey) -> BoundPlan | None:
        """Return a new plan for a key, None where an argument is wrong: the slow path reports it.

        Raises:
            DeviceError: as `bind` does.
        """
        try:
            return self.bind(key)
        except ArgumentError:
            return None

    def retry(self, key: PlanKey, plan: BoundPlan, result: tuple[Any, ...], out: Any) -> Any:
        """Go on where only the current context was wrong; return `out`.

        A step that ran is not repeated: the launch goes on with the step that was refused. From
        then on the device's context is made current for each launch with this key.

        Raises:
            DriverError: what the driver answered.
        """
        stream, place = key[:2]
        program = self.program(_ordinal(place))
        first = result[1] if len(result) > 1 else 0
        if int(result[0]) in _WRONG_CONTEXT and place >= 0:
            context = current_context()
            # Nothing can be ordered after steps in a default stream of a context that is gone.
            is_lost = first and not context and stream <= DEFAULT_STREAMS
            if context != int(program.device.context) and not is_lost:
                plan = beside_contexts(program.device, stream, plan)
                result = program.answer(plan, first)
        if int(result[0]):
            self.plans.pop(key, None)
            raise program.error(result)
        self.plans[key] = plan
        return out

    def explain(self, key: PlanKey, plan: BoundPlan, error: Exception) -> DeviceError:
        """Return the error for what a plan raised instead of returning an answer."""
        return self.program(_ordinal(key[1])).explain(plan, error)

    def launch(self, key: PlanKey) -> None:
        """Launch, whichever context is current.

        Raises:
            ArgumentError, DeviceError: as `bind` and `retry` do.
        """
        stream, ordinal, *addresses = key
        if stream <= DEFAULT_STREAMS and current_device() != ordinal:
            key = (stream, ~ordinal, *addresses)
        self.launch_plan(key, self.plans.get(key) or self.bind(key))

    def launch_plan(self, key: PlanKey, plan: BoundPlan) -> None:
        """Run a plan that is bound for a key.

        Raises:
            DriverError: as `retry` does.
        """
        result = self.program(_ordinal(key[1])).answer(plan)
        if int(result[0]):
            self.retry(key, plan, result, None)

    def enqueue(
        self, stream: int, ordinal: int, pointers: Sequence[int], workspace: int | None = None
    ) -> None:
        """Launch for arrays at these addresses, with temporaries of our own where none are given.

        Raises:
            ArgumentError, DeviceError: as `bind` and `retry` do.
        """
        key = (stream, ordinal, *pointers)
        size_bytes = self.workspace_bytes
        if size_bytes == 0:
            self.launch(key)
        elif workspace is not None:
            self.launch((*key, workspace))
        else:
            what = f"{self.name} needs {size_bytes} bytes for temporaries"
            with temporary(get_device(ordinal), size_bytes, stream, what) as address:
                self.launch((*key, address))

    def forget(self) -> None:
        """Drop everything that was made in the process that this process was forked from."""
        self.plans.clear()
        self._programs.clear()

    def _check_contexts(self, pointers: Sequence[int], context: int) -> None:
        """Check that no array lies in a context that the program has made: kernels cannot reach it.

        Raises:
            ArgumentError: one does.
        """
        for binding, pointer in zip(self.signature.passed, pointers, strict=True):
            if pointer and context_of(pointer) == context:
                raise ArgumentError(
                    f"{self.name}: {binding.path} lies in a context of the program's own.",
                    hint=PRIMARY_CONTEXT,
                )

    def _check_capture(self, device: Device, stream: int) -> None:
        if is_capturing(device, stream):
            raise DeviceError(
                f"{self.name} is not loaded on {device}, and its stream is being captured.",
                hint=f"Call preload({device.ordinal}) before the capture.",
            )


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
        self.name = candidate.id
        self.device = device
        self._plan = candidate.artifact.plan
        self._signature = candidate.signature
        self._steps = [step for step in self._plan.steps if isinstance(step, Launch) or step.size]
        self._loaded = load_variant(self.name, candidate.artifact, device)
        self._driver = open_driver()
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
        loaded = self._loaded
        owner, base = loaded.blocks.make(addresses)
        calls = []
        launched = iter(zip(loaded.functions, configs, loaded.blocks.starts, strict=True))
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

    def answer(self, plan: BoundPlan, first: int = 0) -> tuple[Any, ...]:
        """Run a bound plan, and return what the driver answers.

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
        for buffer, address in self._loaded.constants:
            addresses[buffer] = address
        for buffer, offset in self._temporaries:
            addresses[buffer] = workspace + offset
        return addresses

    def _prepare_stream(self, stream: int) -> list[Any]:
        check_stream(stream, self.device)
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


def _ordinal(place: int) -> int:
    """Return the device of a plan's key."""
    return place if place >= 0 else ~place


def _is_own(context: int, device: Device) -> bool:
    """Tell whether the current context is one that the program has made on the device itself."""
    return context != int(device.context) and current_device() == device.ordinal
