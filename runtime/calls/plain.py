"""Launch a variant without the C library: every step of its plan is a call of cuda-python.

This module is used if pallasc was installed without a C compiler, or with PALLASC_NATIVE=0. It does
the same as `runtime/native/prepare.c` and `launch.c`, in the same order and with the same messages,
but it is simpler and slower: each launch prepares its parameters and tensor maps again. A launch
takes 33 to 42 µs (`bench/launch.py`, "plain"); through C, it takes 0.7 to 8 µs.

A `CUtensorMap` must be aligned to 64 bytes (128 in the headers of CUDA 13), and objects of
cuda.bindings often are not. So parameters passed by value are in memory aligned to 128 bytes, and
the driver's encoding functions are called by their addresses, with such memory.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

from pallasc.errors import CorruptError, DeviceError, DriverError
from pallasc.runtime.device.devices import (
    Device,
    Driver,
    active,
    open_driver,
    outside_captures,
    state,
    version_text,
)
from pallasc.runtime.device.streams import lay_out, upload
from pallasc.runtime.matching.candidates import Candidate
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.cubin import Cubin, Kernel, parse_cubin
from pallasc.specs.artifacts.plan import (
    DTYPES,
    INTERLEAVES,
    MAP_BYTES,
    PROMOTIONS,
    SWIZZLES,
    Bytes,
    Launch,
    Pointer,
    Step,
    TensorMap,
)
from pallasc.specs.artifacts.signature import check_addresses

_PARAMETER_QUERIES = 12040
_FORCED_LOADING = 12040
_DEFAULT_SMEM_BYTES = 48 * 1024
_PORTABLE_CLUSTER = 8
_INVALID_VALUE = 1
_INVALID_CLUSTER_SIZE = 912


class PlainSteps:
    """The steps of a variant on a device: kernels loaded, constants uploaded.

    Args:
        candidate: the variant.
        device: the GPU to load it on.

    Raises:
        CorruptError: the artifact is damaged.
        DeviceError: the device cannot run it.
    """

    def __init__(self, candidate: Candidate, device: Device) -> None:
        self._name = candidate.id
        self._device = device
        self._plan = candidate.artifact.plan
        try:
            self._load(candidate, device)
        except CorruptError as error:
            raise CorruptError(f"{candidate.id}: {error.message}", hint=error.hint) from error

    def _load(self, candidate: Candidate, device: Device) -> None:
        artifact = candidate.artifact
        plan = artifact.plan
        # Like a flat plan, without the steps that do nothing.
        self._steps = [step for step in plan.steps if isinstance(step, Launch) or step.size]
        driver = open_driver()
        self._ready = [
            (ready_function(driver, artifact, step, device), Parameters(driver, step))
            if isinstance(step, Launch)
            else None
            for step in self._steps
        ]
        self._fixed = [0] * len(plan.buffers)
        for number, buffer in enumerate(plan.buffers):
            if buffer.digest is not None:
                self._fixed[number] = _upload(self._name, artifact, number, device)
        self._temporaries, _ = lay_out(plan)

    def launch(self, pointers: Sequence[int], *, stream: int = 0, workspace: int = 0) -> None:
        """Enqueue all steps in a stream.

        Args:
            pointers: addresses of the inputs, then of the outputs that are not inputs.
            stream: the stream's handle.
            workspace: address of the memory for temporaries.

        Raises:
            ArgumentError: an address is misaligned, or an output overlaps another array.
            DriverError: the driver refuses a step or a tensor map.
        """
        check_addresses(self._plan, self._name, pointers)
        addresses = self._addresses(pointers, workspace)
        with active(self._device) as driver:
            for number, step in enumerate(self._steps):
                self._enqueue(driver, number, step, addresses, stream)

    def _addresses(self, pointers: Sequence[int], workspace: int) -> list[int]:
        """Return the address of each buffer of the plan."""
        addresses = self._fixed.copy()
        for array, pointer in zip(self._plan.passed, pointers, strict=True):
            addresses[array.buffer] = pointer
        for buffer, offset in self._temporaries:
            addresses[buffer] = workspace + offset
        return addresses

    def _enqueue(
        self, driver: Driver, number: int, step: Step, addresses: Sequence[int], stream: int
    ) -> None:
        what = f"{self._name} cannot be launched"
        if len(self._steps) > 1:
            before = ", but the steps before it were launched" if number else ""
            what = f"step {number} of {self._name} cannot be launched{before}"
        ready = self._ready[number]
        if isinstance(step, Launch) and ready is not None:
            function, parameters = ready
            memory, place = parameters.for_buffers(addresses)
            config = launch_config(driver, step, stream)
            driver.call("cuLaunchKernelEx", config, function, place, 0, what=what)
            del memory  # the driver has copied the parameters
        elif not isinstance(step, Launch):
            name, arguments = step.driver_call(addresses)
            driver.call(name, *arguments, stream, what=what)


# ---- loading


def ready_function(driver: Driver, artifact: Artifact, launch: Launch, device: Device) -> Any:
    """Load a launch's function on a device and set its shared-memory limit.

    Raises:
        CorruptError: the cubin does not match the launch plan.
        DeviceError: the driver or GPU cannot run it.
    """
    what = f"kernel {launch.kernel} cannot be loaded on {device}"
    with state.lock:
        cubin, library = _library(driver, artifact, launch.cubin, what)
        own = cubin.kernel(launch.kernel)
        launch.check_parameters(own.parameter_bytes, "its cubin")
        name = launch.kernel.encode()
        kernel = driver.call("cuLibraryGetKernel", library, name, what=what)
        _check_driver_parameters(driver, kernel, launch, what)
        with active(device), outside_captures(driver):
            _allow(driver, kernel, launch, device, own, what)
            function = driver.call("cuKernelGetFunction", kernel, what=what)
            if driver.version >= _FORCED_LOADING:
                driver.call("cuFuncLoad", function, what=what)
            else:
                version = driver.bindings.CUfunction_attribute.CU_FUNC_ATTRIBUTE_BINARY_VERSION
                driver.call("cuFuncGetAttribute", version, function, what=what)
            _check_cluster(driver, function, launch, device, what)
        return function


def _library(driver: Driver, artifact: Artifact, digest: str, what: str) -> tuple[Cubin, Any]:
    """Return a cubin's parsed metadata, and the driver's handle of it."""
    libraries: dict[str, tuple[Cubin, Any]] = state.libraries
    if digest not in libraries:
        data = artifact.blob(digest)
        with outside_captures(driver):
            handle = driver.call("cuLibraryLoadData", data, None, None, 0, None, None, 0, what=what)
        libraries[digest] = parse_cubin(data), handle
    libraries[digest][0].check_arch(artifact.target.arch)
    return libraries[digest]


def _check_driver_parameters(driver: Driver, kernel: Any, launch: Launch, what: str) -> None:
    """Compare the plan with the parameters that the driver reports, if it can report them."""
    if driver.version < _PARAMETER_QUERIES:
        return
    sizes: list[int] = []
    try:
        while len(sizes) <= len(launch.parameters):
            _, size = driver.call("cuKernelGetParamInfo", kernel, len(sizes), what=what)
            sizes.append(int(size))
    except DriverError as error:
        if error.code != _INVALID_VALUE:
            raise
    launch.check_parameters(sizes, "the driver")


def _allow(
    driver: Driver, kernel: Any, launch: Launch, device: Device, own: Kernel, what: str
) -> None:
    """Raise the limits of a kernel on a device to the needs of this launch."""
    total = launch.dynamic_smem_bytes + own.static_smem_bytes
    if total > device.smem_optin_bytes:
        raise DeviceError(
            f"a block of {launch.kernel} takes {total} bytes of shared memory, and {device} has "
            f"{device.smem_optin_bytes}.",
            hint="Compile for this model, or with smaller tiles.",
        )
    limits = driver.bindings.CUfunction_attribute
    if total > _DEFAULT_SMEM_BYTES:
        attribute = limits.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _raise_attribute(driver, kernel, device, attribute, launch.dynamic_smem_bytes, what)
    if launch.cluster is not None and math.prod(launch.cluster) > _PORTABLE_CLUSTER:
        attribute = limits.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        _raise_attribute(driver, kernel, device, attribute, 1, what)


def _raise_attribute(
    driver: Driver, kernel: Any, device: Device, attribute: Any, value: int, what: str
) -> None:
    number = driver.bindings.CUdevice(device.ordinal)
    if int(driver.call("cuKernelGetAttribute", attribute, kernel, number, what=what)) < value:
        driver.call("cuKernelSetAttribute", attribute, value, kernel, number, what=what)


def _check_cluster(
    driver: Driver, function: Any, launch: Launch, device: Device, what: str
) -> None:
    if launch.cluster is None:
        return
    shape = "×".join(map(str, launch.cluster))
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


def _upload(name: str, artifact: Artifact, number: int, device: Device) -> int:
    """Return the address of a constant on the device."""
    digest = str(artifact.plan.buffers[number].digest)
    data = artifact.blob(digest)
    return upload(device, digest, data, f"the constants of {name} do not fit into {device}")


# ---- parameters

_ALIGNMENT = 128

_Encode = Callable[[int, int], int]
"""Encode a tensor map: (destination, address of the array) -> the driver's result code."""


class Parameters:
    """The parameters of one launch of a plan.

    Args:
        driver: the opened driver.
        launch: the launch.

    Raises:
        DeviceError: the driver cannot encode tensor maps.
    """

    def __init__(self, driver: Driver, launch: Launch) -> None:
        self._driver = driver
        self._kernel = launch.kernel
        self._parameters = launch.parameters
        self._encoders = {
            id(tensor_map): _make_encoder(driver, tensor_map)
            for parameter in launch.parameters
            if isinstance(parameter, Bytes)
            for _, tensor_map in parameter.tensor_maps
        }

    def for_buffers(self, addresses: Sequence[int]) -> tuple[Any, int]:
        """Return the parameters for buffers at these addresses.

        Returns:
            The memory that holds them, to keep until the launch call returns, and the address of
            the array of pointers to them: `kernelParams` of cuLaunchKernelEx.

        Raises:
            DriverError: the driver refuses a tensor map.
        """
        memory: list[Any] = []
        for parameter in self._parameters:
            if isinstance(parameter, Pointer):
                memory.append(ctypes.c_uint64(addresses[parameter.buffer] + parameter.offset))
            elif isinstance(parameter, Bytes):
                memory.append(self._value(parameter, addresses))
        places = [ctypes.addressof(own) for own in memory]
        array = (ctypes.c_void_p * max(1, len(places)))(*places)
        return (memory, array), ctypes.addressof(array)

    def _value(self, parameter: Bytes, addresses: Sequence[int]) -> Any:
        """Return a parameter passed by value, with its tensor maps encoded."""
        value = _aligned(parameter.size)
        data = bytes.fromhex(parameter.data)
        ctypes.memmove(value, data, len(data))
        for offset, tensor_map in parameter.tensor_maps:
            # The driver encodes a map only at a multiple of 64 or 128; `offset` may not be one.
            encoded = _aligned(MAP_BYTES)
            address = addresses[tensor_map.buffer] + tensor_map.offset
            code = self._encoders[id(tensor_map)](ctypes.addressof(encoded), address)
            if code:
                what = f"a tensor map of {self._kernel} cannot be encoded"
                raise self._driver.error(code, _encoder_name(tensor_map), what)
            ctypes.memmove(ctypes.addressof(value) + offset, encoded, MAP_BYTES)
        return value


def _aligned(size: int) -> Any:
    """Return `size` zeros in memory at a multiple of 128."""
    memory = ctypes.create_string_buffer(size + _ALIGNMENT)
    return (ctypes.c_char * size).from_buffer(memory, -ctypes.addressof(memory) % _ALIGNMENT)


def launch_config(driver: Driver, launch: Launch, stream: int) -> Any:
    """Return the `CUlaunchConfig` of a launch in a stream."""
    bindings = driver.bindings
    config = bindings.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
    config.sharedMemBytes = launch.dynamic_smem_bytes
    config.hStream = bindings.CUstream(stream)
    attributes = []
    if launch.cluster is not None:
        cluster = bindings.CUlaunchAttribute()
        cluster.id = bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        dim = cluster.value.clusterDim
        dim.x, dim.y, dim.z = launch.cluster
        attributes.append(cluster)
    if launch.pdl:
        pdl = bindings.CUlaunchAttribute()
        pdl.id = bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        pdl.value.programmaticStreamSerializationAllowed = 1
        attributes.append(pdl)
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config


def _encoder_name(tensor_map: TensorMap) -> str:
    return "cuTensorMapEncodeTiled" if tensor_map.im2col is None else "cuTensorMapEncodeIm2col"


def _make_encoder(driver: Driver, m: TensorMap) -> _Encode:
    """Return a function that encodes a tensor map, for any destination and address of the array.

    Raises:
        DeviceError: the driver lacks the encoding function.
    """
    window = m.im2col
    dims, strides, steps = _longs(m.dims), _longs(m.strides), _ints(m.element_strides)
    middle: tuple[Any, ...] = (_ints(m.box), steps)
    if window is not None:
        middle = (
            _ints(tuple(window["lower"])),
            _ints(tuple(window["upper"])),
            _int(window["channels_per_pixel"]),
            _int(window["pixels_per_column"]),
            steps,
        )
    modes = INTERLEAVES[m.interleave], SWIZZLES[m.swizzle], PROMOTIONS[m.l2_promotion]
    rest = (dims, strides, *middle, *map(_int, (*modes, int(m.nan_fill))))
    head = _int(DTYPES[m.dtype]), _int(len(m.dims))
    # The driver only fills in 128 bytes, so the GIL is not released.

    encode = ctypes.PYFUNCTYPE(ctypes.c_int)(function_address(driver, _encoder_name(m)))

    def write(where: int, address: int) -> int:
        return int(encode(_pointer(where), *head, _pointer(address), *rest))

    return write


def function_address(
    driver: Driver, name: str, what: str = "a tensor map cannot be encoded"
) -> int:
    """Return the address of a driver function.

    Raises:
        DeviceError: the driver has no such function.
    """
    address, status = driver.call("cuGetProcAddress", name.encode(), 12000, 0, what=what)
    if not address or int(status):
        raise DeviceError(
            f"{what}: the driver for CUDA {version_text(driver.version)} has no {name}.",
            hint="Install a newer NVIDIA driver.",
        )
    return int(address)


_pointer, _int = ctypes.c_void_p, ctypes.c_uint32


def _longs(values: tuple[int, ...]) -> Any:
    return (ctypes.c_uint64 * max(1, len(values)))(*values)


def _ints(values: tuple[int, ...]) -> Any:
    return (ctypes.c_int32 * len(values))(*(ctypes.c_int32(value).value for value in values))
