"""Make a variant ready on a device: kernels loaded, constants uploaded, tensor maps prepared.

A library is loaded once for all devices. A kernel becomes ready device by device: the attributes
that let it use more than 48 kB of dynamic shared memory or clusters of more than 8 blocks are set,
and its code is copied there at once, since the driver's lazy loading fails while a graph is
captured (before driver 12.3) and can deadlock against kernels that are running. Nothing is ever
unloaded: a captured graph may launch a kernel when nothing else of it is left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pallasc.errors import CompileError, CorruptError, DeviceError, DriverError
from pallasc.runtime.device import process_state
from pallasc.runtime.device.devices import Device, active, outside_captures
from pallasc.runtime.device.driver import Driver, open_driver, version_text
from pallasc.runtime.device.memory import upload
from pallasc.runtime.device.parameters import ParameterBlocks
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.cubin import Cubin, Kernel, parse_cubin
from pallasc.specs.artifacts.drivers import minimum_driver
from pallasc.specs.artifacts.plan import Bytes, Launch

_PARAMETER_QUERIES = 12040
_FORCED_LOADING = 12040
_DEFAULT_SMEM_BYTES = 48 * 1024
_PORTABLE_CLUSTER = 8
_INVALID_VALUE = 1
_INVALID_CLUSTER_SIZE = 912


@dataclass(frozen=True, slots=True)
class Loaded:
    """A variant that is ready on a device.

    Attributes:
        functions: the driver's function of each launch.
        blocks: makes the parameters of all launches.
        constants: buffers, and their addresses on the device.
    """

    functions: Sequence[Any]
    blocks: ParameterBlocks
    constants: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Library:
    """A cubin in the driver: what it says of itself, and the driver's handle."""

    cubin: Cubin
    handle: Any


def load_variant(name: str, artifact: Artifact, device: Device) -> Loaded:
    """Return a variant with all that its launches need on a device.

    Raises:
        CorruptError: the artifact is damaged.
        DeviceError: driver or GPU cannot run it.
    """
    driver, launches = open_driver(), artifact.plan.launches
    functions = [ready_function(driver, artifact, launch, device) for launch in launches]
    blocks = ParameterBlocks(driver, launches)
    return Loaded(functions, blocks, _upload_constants(name, artifact, device))


def ready_function(driver: Driver, artifact: Artifact, launch: Launch, device: Device) -> Any:
    """Load a launch's function on a device and set its shared-memory limit.

    Raises:
        CorruptError: the cubin is not what the launch plan says.
        DeviceError: driver or GPU cannot run it.
    """
    with process_state.now.lock:
        library = _library(driver, artifact, launch.cubin)
        own = library.cubin.kernels.get(launch.kernel)
        if own is None:
            listed = ", ".join(library.cubin.kernels) or "none"
            raise CorruptError(f"the cubin has no kernel {launch.kernel}, only {listed}")
        _check_own_parameters(own, launch)
        what = f"kernel {launch.kernel} cannot be loaded on {device}"
        name = launch.kernel.encode()
        kernel = driver.call("cuLibraryGetKernel", library.handle, name, what=what)
        _check_driver_parameters(driver, kernel, launch)
        with active(device), outside_captures(driver):
            _allow(driver, kernel, launch, device, own)
            function = driver.call("cuKernelGetFunction", kernel, what=what)
            _force_load(driver, function, what)
            _check_cluster(driver, function, launch, device)
        return function


def _library(driver: Driver, artifact: Artifact, digest: str) -> Library:
    libraries: dict[str, Library] = process_state.now.libraries
    library = libraries.get(digest)
    if library is not None:
        check_cubin(library.cubin, artifact, driver.version)
    else:
        data = artifact.blob(digest)
        cubin = parse_cubin(data)
        check_cubin(cubin, artifact, driver.version)
        what = f"the cubin {digest[:12]} cannot be loaded"
        with outside_captures(driver):
            handle = driver.call("cuLibraryLoadData", data, None, None, 0, None, None, 0, what=what)
        library = libraries.setdefault(digest, Library(cubin, handle))
    return library


def check_cubin(cubin: Cubin, artifact: Artifact, driver_version: int) -> None:
    """Check that a cubin is for its artifact's architecture, and not newer than the driver.

    Raises:
        CorruptError: it is for another architecture.
        DeviceError: the driver is too old.
    """
    arch = str(artifact.target.get("arch"))
    if arch.rstrip("af") != f"sm_{cubin.sm}":
        raise CorruptError(f"the artifact is for {arch}, but its cubin is for sm_{cubin.sm}")
    major = cubin.toolkit.partition(".")[0]
    if major.isdecimal() and int(major) > driver_version // 1000:
        raise DeviceError(
            f"the cubin was made by CUDA toolkit {cubin.toolkit}, and the driver is for CUDA "
            f"{version_text(driver_version)}.",
            hint=f"Install NVIDIA driver {_package(cubin)} or newer.",
        )


def _package(cubin: Cubin) -> str:
    """Return the driver package that a cubin needs."""
    try:
        return minimum_driver(toolkit=cubin.toolkit, sm=cubin.sm)["linux"]
    except CompileError:
        return f"for CUDA {cubin.toolkit}"


def _check_own_parameters(kernel: Kernel, launch: Launch) -> None:
    _compare(launch, [parameter.size for parameter in kernel.parameters], "its cubin")


def _check_driver_parameters(driver: Driver, kernel: Any, launch: Launch) -> None:
    """Compare the plan with what the driver has read, on drivers that tell it."""
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
    _compare(launch, sizes, "the driver")


def _compare(launch: Launch, sizes: Sequence[int], source: str) -> None:
    passed = [
        parameter.size if isinstance(parameter, Bytes) else 8 for parameter in launch.parameters
    ]
    if passed != list(sizes):
        raise CorruptError(
            f"the plan passes parameters of {passed} bytes to {launch.kernel}, and {source} "
            f"says {list(sizes)}"
        )


def _allow(driver: Driver, kernel: Any, launch: Launch, device: Device, own: Kernel) -> None:
    """Raise the limits of a kernel on a device to what this launch takes."""
    total = launch.dynamic_smem_bytes + own.static_smem_bytes
    if total > device.smem_optin_bytes:
        raise DeviceError(
            f"a block of {launch.kernel} takes {total} bytes of shared memory, and {device} has "
            f"{device.smem_optin_bytes}.",
            hint="Compile for this model, or with smaller tiles.",
        )
    if launch.dynamic_smem_bytes + own.static_smem_bytes > _DEFAULT_SMEM_BYTES:
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


def _force_load(driver: Driver, function: Any, what: str) -> None:
    if driver.version >= _FORCED_LOADING:
        driver.call("cuFuncLoad", function, what=what)
    else:
        version = driver.bindings.CUfunction_attribute.CU_FUNC_ATTRIBUTE_BINARY_VERSION
        driver.call("cuFuncGetAttribute", version, function, what=what)


def _check_cluster(driver: Driver, function: Any, launch: Launch, device: Device) -> None:
    if launch.cluster is None:
        return
    shape = "×".join(map(str, launch.cluster))
    if any(n % part for n, part in zip(launch.grid, launch.cluster, strict=True)):
        raise CorruptError(
            f"the grid {launch.grid} of {launch.kernel} does not divide into clusters of {shape}"
        )
    if _count_clusters(driver, function, launch) < 1:
        raise DeviceError(
            f"a cluster of {shape} blocks of {launch.kernel} is too large for {device}: none fits.",
            hint="Compile with a smaller cluster.",
        )


def _count_clusters(driver: Driver, function: Any, launch: Launch) -> int:
    """Return how many clusters of a launch run at a time."""
    what = f"clusters of {launch.kernel} cannot be counted"
    config = launch_config(driver, launch, 0)
    try:
        return int(driver.call("cuOccupancyMaxActiveClusters", function, config, what=what))
    except DriverError as error:
        if error.code == _INVALID_CLUSTER_SIZE:
            return 0
        raise


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
