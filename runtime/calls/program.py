"""A variant on a device: kernels loaded, constants uploaded, plan bound to addresses.

A library is loaded once for all devices. A kernel is made ready on each device separately: the
attributes that allow more than 48 kB of dynamic shared memory or clusters of more than 8 blocks are
set, and its code is copied there at once, since the driver's lazy loading fails during stream
capture (before driver 12.3) and can deadlock with running kernels. Nothing is ever unloaded: a
captured graph may launch a kernel after everything else of it is gone.

A bound plan is immutable. Calling it enqueues all steps in its stream and returns the driver's
result as a tuple that starts with the code, `CUDA_SUCCESS` if all went well. If a plan has several
steps, the number of the step that failed is second. Called with that number, the plan continues
there: steps that ran are never repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from pallasc.errors import CorruptError, DeviceError, DriverError
from pallasc.runtime.calls.addresses import AddressCheck
from pallasc.runtime.device import process_state
from pallasc.runtime.device.answers import ODD_ANSWERS, version_text
from pallasc.runtime.device.devices import (
    Device,
    Driver,
    active,
    is_capturing,
    open_driver,
    outside_captures,
)
from pallasc.runtime.device.memory import align, upload
from pallasc.runtime.device.parameters import ParameterBlocks, launch_config
from pallasc.runtime.device.streams import DEFAULT_STREAMS, check_stream
from pallasc.runtime.matching.candidates import Candidate
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.cubin import Cubin, Kernel, parse_cubin
from pallasc.specs.artifacts.plan import Copy, Fill, Launch, LaunchPlan, Step

BoundPlan = Callable[..., tuple[Any, ...]]
"""A plan for one set of addresses and one stream; with several steps it takes the first to run."""

_MOST_STREAMS = 64
_PARAMETER_QUERIES = 12040
_FORCED_LOADING = 12040
_DEFAULT_SMEM_BYTES = 48 * 1024
_PORTABLE_CLUSTER = 8
_INVALID_VALUE = 1
_INVALID_CLUSTER_SIZE = 912


class Library(NamedTuple):
    """A cubin loaded into the driver: its parsed metadata, and the driver's handle."""

    cubin: Cubin
    handle: Any


class Parts(NamedTuple):
    """The parts of a program, for launches that do not use its bound plans.

    Attributes:
        steps: the steps, without those that do nothing.
        functions: the driver's functions, one per launch.
        values: the bytes that launches pass by value, concatenated.
        fixed: the address of each buffer, 0 if it is not a constant.
        temporaries: buffers, and their offsets in the workspace.
    """

    steps: Sequence[Step]
    functions: Sequence[Any]
    values: bytes
    fixed: Sequence[int]
    temporaries: Sequence[tuple[int, int]]


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
            try:
                programs[device.ordinal] = Program(candidate, device)
            except CorruptError as error:
                raise CorruptError(f"{candidate.id}: {error.message}", hint=error.hint) from error
        return programs[device.ordinal]


def lay_out(plan: LaunchPlan) -> tuple[list[tuple[int, int]], int]:
    """Return the workspace offset of each temporary, and the total size."""
    offsets, at = [], 0
    for number, buffer in enumerate(plan.buffers):
        if buffer.role == "temporary":
            offsets.append((number, at))
            at += align(buffer.size)
    return offsets, at


class Program:
    """A variant on a device: kernels loaded, constants uploaded, tensor maps prepared.

    Args:
        candidate: the variant.
        device: the GPU to load it on.

    Attributes:
        device: as given.
        workspace_bytes: total size of its temporaries.

    Raises:
        CorruptError: the artifact is damaged.
        DeviceError: the device cannot run it.
    """

    def __init__(self, candidate: Candidate, device: Device) -> None:
        self.name = candidate.id
        self.device = device
        self._plan = candidate.artifact.plan
        self._buffers = candidate.signature.buffers
        self._check_addresses = AddressCheck(self.name, candidate.signature)
        self._steps = [step for step in self._plan.steps if isinstance(step, Launch) or step.size]
        driver, artifact = open_driver(), candidate.artifact
        launches = self._plan.launches
        self._driver = driver
        self._functions = [ready_function(driver, artifact, launch, device) for launch in launches]
        self._blocks = ParameterBlocks(driver, launches)
        self._fixed = [0] * len(self._plan.buffers)
        for buffer, address in _upload_constants(self.name, artifact, device):
            self._fixed[buffer] = address
        self._temporaries, self.workspace_bytes = lay_out(self._plan)
        # If True, the addresses of the arrays are the addresses of all buffers.
        self._are_in_order = self._buffers == tuple(range(len(self._fixed)))
        self._configs: dict[int, list[Any]] = {}

    def bind(self, stream: int, pointers: Sequence[int], workspace: int = 0) -> BoundPlan:
        """Return the calls for arrays at these addresses.

        Args:
            stream: the stream's handle. A context must be current: the driver encodes tensor maps
                only in one.
            pointers: addresses of the inputs, then of the outputs that are not inputs.
            workspace: address of `workspace_bytes` for temporaries.

        Raises:
            ArgumentError: an address is misaligned, an output overlaps another array, or the
                stream belongs to another device.
            DriverError: the driver refuses a tensor map.
        """
        self._check_addresses(pointers)
        addresses = pointers if self._are_in_order else self._addresses(pointers, workspace)
        configs = self._configs.get(stream) or self._prepare_stream(stream)
        owner, base = self._blocks.make(addresses)
        launch = self._driver.bindings.cuLaunchKernelEx
        calls = []
        launched = 0
        for step in self._steps:
            if isinstance(step, Launch):
                place = base + self._blocks.starts[launched]
                calls.append(
                    partial(launch, configs[launched], self._functions[launched], place, 0)
                )
                launched += 1
            else:
                calls.append(self._memory_call(step, addresses, stream))
        if len(calls) != 1:
            return _in_order(calls, self._driver.success, owner)
        # The arguments contain only the block's address, so something has to keep it alive.
        calls[0].owner = owner  # type: ignore[attr-defined]
        return calls[0]

    def parts(self) -> Parts | None:
        """Return the parts of the program, None until a plan with tensor maps has been bound."""
        values = self._blocks.values
        if values is None:
            return None
        return Parts(self._steps, self._functions, values, self._fixed, self._temporaries)

    def refusal(self, code: int, step: int) -> DeviceError:
        """Return the error for the driver's code of a step."""
        return self.error((code,) if len(self._steps) == 1 else (code, step))

    def answer(self, plan: BoundPlan, first: int = 0) -> tuple[Any, ...]:
        """Run a bound plan, and return the driver's result.

        Args:
            plan: the plan to run.
            first: the step to continue from.

        Raises:
            DeviceError: the driver has no such function, or returns an unknown code.
        """
        try:
            return plan(first) if first else plan()
        except ODD_ANSWERS as error:
            raise self.explain(plan, error) from error

    def explain(self, plan: BoundPlan, error: Exception) -> DeviceError:
        """Return the error for an exception from a bound plan."""
        function = plan.func.__name__ if isinstance(plan, partial) else "the driver"
        return _named(self._driver.explain(error, function, f"{self.name} cannot be launched"))

    def error(self, result: tuple[Any, ...]) -> DeviceError:
        """Return the error for a bound plan's result."""
        if len(result) == 1:
            what = f"{self.name} cannot be launched"
            return _named(self._driver.error(int(result[0]), _function(self._steps[0]), what))
        before = ", after the steps before it have been" if result[1] else ""
        what = f"step {result[1]} of {self.name} cannot be launched{before}"
        return _named(self._driver.error(int(result[0]), _function(self._steps[result[1]]), what))

    def _addresses(self, pointers: Sequence[int], workspace: int) -> list[int]:
        addresses = self._fixed.copy()
        for buffer, pointer in zip(self._buffers, pointers, strict=True):
            addresses[buffer] = pointer
        for buffer, offset in self._temporaries:
            addresses[buffer] = workspace + offset
        return addresses

    def _prepare_stream(self, stream: int) -> list[Any]:
        if stream > DEFAULT_STREAMS:
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


def _named(error: DeviceError) -> DeviceError:
    error.names_variant = True
    return error


def _function(step: Step) -> str:
    """Return the name of the driver function that a step calls."""
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


def ready_function(driver: Driver, artifact: Artifact, launch: Launch, device: Device) -> Any:
    """Load a launch's function on a device and set its shared-memory limit.

    Raises:
        CorruptError: the cubin does not match the launch plan.
        DeviceError: the driver or GPU cannot run it.
    """
    with process_state.now.lock:
        library = _library(driver, artifact, launch.cubin)
        own = library.cubin.kernel(launch.kernel)
        launch.check_parameters([parameter.size for parameter in own.parameters], "its cubin")
        what = f"kernel {launch.kernel} cannot be loaded on {device}"
        name = launch.kernel.encode()
        kernel = driver.call("cuLibraryGetKernel", library.handle, name, what=what)
        _check_driver_parameters(driver, kernel, launch)
        with active(device), outside_captures(driver):
            _allow(driver, kernel, launch, device, own)
            function = driver.call("cuKernelGetFunction", kernel, what=what)
            if driver.version >= _FORCED_LOADING:
                driver.call("cuFuncLoad", function, what=what)
            else:
                version = driver.bindings.CUfunction_attribute.CU_FUNC_ATTRIBUTE_BINARY_VERSION
                driver.call("cuFuncGetAttribute", version, function, what=what)
            _check_cluster(driver, function, launch, device)
        return function


def _library(driver: Driver, artifact: Artifact, digest: str) -> Library:
    libraries: dict[str, Library] = process_state.now.libraries
    library = libraries.get(digest)
    if library is not None:
        check_cubin(library.cubin, artifact, driver.version)
        return library
    data = artifact.blob(digest)
    cubin = parse_cubin(data)
    check_cubin(cubin, artifact, driver.version)
    what = f"the cubin {digest[:12]} cannot be loaded"
    with outside_captures(driver):
        handle = driver.call("cuLibraryLoadData", data, None, None, 0, None, None, 0, what=what)
    return libraries.setdefault(digest, Library(cubin, handle))


def check_cubin(cubin: Cubin, artifact: Artifact, driver_version: int) -> None:
    """Check that a cubin is for its artifact's architecture, and not newer than the driver.

    Raises:
        CorruptError: it is for another architecture.
        DeviceError: the driver is too old.
    """
    cubin.check_arch(str(artifact.target.get("arch")))
    major = cubin.toolkit.partition(".")[0]
    if major.isdecimal() and int(major) > driver_version // 1000:
        raise DeviceError(
            f"the cubin was made by CUDA toolkit {cubin.toolkit}, and the driver is for CUDA "
            f"{version_text(driver_version)}.",
            hint=f"Install NVIDIA driver {cubin.driver_package} or newer.",
        )


def _check_driver_parameters(driver: Driver, kernel: Any, launch: Launch) -> None:
    """Compare the plan with the parameters that the driver reports, if it can report them."""
    if driver.version < _PARAMETER_QUERIES:
        return
    sizes: list[int] = []
    what = f"the parameters of {launch.kernel} cannot be read"
    try:
        while len(sizes) <= len(launch.parameters):
            _, size = driver.call("cuKernelGetParamInfo", kernel, len(sizes), what=what)
            sizes.append(int(size))
    except DriverError as error:
        if error.code != _INVALID_VALUE:
            raise
    launch.check_parameters(sizes, "the driver")


def _allow(driver: Driver, kernel: Any, launch: Launch, device: Device, own: Kernel) -> None:
    """Raise the limits of a kernel on a device to the needs of this launch."""
    total = launch.dynamic_smem_bytes + own.static_smem_bytes
    if total > device.smem_optin_bytes:
        raise DeviceError(
            f"a block of {launch.kernel} takes {total} bytes of shared memory, and {device} has "
            f"{device.smem_optin_bytes}.",
            hint="Compile for this model, or with smaller tiles.",
        )
    if total > _DEFAULT_SMEM_BYTES:
        _raise_attribute(
            driver, kernel, device, "MAX_DYNAMIC_SHARED_SIZE_BYTES", launch.dynamic_smem_bytes
        )
    if launch.cluster is not None and math.prod(launch.cluster) > _PORTABLE_CLUSTER:
        _raise_attribute(driver, kernel, device, "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)


def _raise_attribute(driver: Driver, kernel: Any, device: Device, name: str, value: int) -> None:
    attribute = getattr(driver.bindings.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
    what = f"{name} of a kernel cannot be set to {value} on {device}"
    number = driver.bindings.CUdevice(device.ordinal)
    if int(driver.call("cuKernelGetAttribute", attribute, kernel, number, what=what)) < value:
        driver.call("cuKernelSetAttribute", attribute, value, kernel, number, what=what)


def _check_cluster(driver: Driver, function: Any, launch: Launch, device: Device) -> None:
    if launch.cluster is None:
        return
    shape = "×".join(map(str, launch.cluster))
    if any(n % part for n, part in zip(launch.grid, launch.cluster, strict=True)):
        raise CorruptError(
            f"the grid {launch.grid} of {launch.kernel} does not divide into clusters of {shape}"
        )
    what = f"clusters of {launch.kernel} cannot be counted"
    config = launch_config(driver, launch, 0)
    try:
        count = int(driver.call("cuOccupancyMaxActiveClusters", function, config, what=what))
    except DriverError as error:
        if error.code != _INVALID_CLUSTER_SIZE:
            raise
        count = 0
    if count < 1:
        raise DeviceError(
            f"a cluster of {shape} blocks of {launch.kernel} is too large for {device}: none fits.",
            hint="Compile with a smaller cluster.",
        )


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
