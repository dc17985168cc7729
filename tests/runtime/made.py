"""Artifacts made by hand around cubins from ptxas, and the smallest framework there can be."""

import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import rig
from exchange import exchange
from msgspec.structs import asdict, replace

from pallasc.errors import ArgumentError, CorruptError, ToolError
from pallasc.runtime.adapters.numpy_arrays import numpy_dtype
from pallasc.runtime.device.devices import state
from pallasc.runtime.kernel import Kernel
from pallasc.runtime.matching import arrays
from pallasc.runtime.matching.arrays import Access, Adapter, ArrayView
from pallasc.runtime.native.library import open_library
from pallasc.runtime.opening import Kernels
from pallasc.specs.arrays import resolve_array
from pallasc.specs.artifacts.artifact import Artifact, KernelResources
from pallasc.specs.artifacts.cubin import parse_cubin
from pallasc.specs.artifacts.plan import (
    Binding,
    Buffer,
    Bytes,
    Launch,
    LaunchPlan,
    Parameter,
    Pointer,
    Step,
    TensorMap,
    plan_to_json,
)
from pallasc.specs.canonical import digest
from pallasc.specs.gpus import resolve_target

_ENTRIES = """
.visible .entry one(.param .u64 p0) { ret; }
.visible .entry two(.param .u64 p0, .param .u64 p1) { ret; }
.visible .entry three(.param .u64 p0, .param .u64 p1, .param .u64 p2) { ret; }
.visible .entry four(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3) { ret; }
.visible .entry mapped(.param .u64 p0, .param .align 64 .b8 p1[512]) { ret; }
.visible .entry shifted(.param .align 64 .b8 p0[192], .param .u64 p1) { ret; }
.visible .entry valued(.param .u32 p0, .param .u64 p1) { ret; }
.visible .entry none() { ret; }
"""


@functools.cache
def cubin(arch: str = "sm_90a") -> bytes:
    """Return a cubin with the entries above."""
    return rig.assemble(_ENTRIES, arch)


def launch(kernel: str, *parameters: Parameter | int, **changes: Any) -> Launch:
    """Return a launch; a number stands for the pointer to a buffer."""
    made = Launch(
        kernel=kernel,
        cubin="",
        grid=(1, 1, 1),
        cluster=None,
        block=(128, 1, 1),
        dynamic_smem_bytes=0,
        pdl=False,
        parameters=tuple(
            Pointer(parameter, 0) if type(parameter) is int else parameter
            for parameter in parameters
        ),
    )
    return replace(made, **changes)


def tensor_map(buffer: int, *, offset: int = 0, dims: tuple[int, ...] = (64, 32)) -> TensorMap:
    """Return a map of a row-major f16 matrix."""
    strides = tuple(2 * math.prod(dims[: n + 1]) for n in range(len(dims) - 1))
    return TensorMap(buffer, offset, "float16", dims, strides, (8,) * len(dims), (1,) * len(dims))


def maps(*described: TensorMap, size: int | None = None, step: int = 128, first: int = 0) -> Bytes:
    """Return a parameter of tensor maps, one behind the other."""
    placed = tuple((first + step * n, encoded) for n, encoded in enumerate(described))
    return Bytes(size or 128 * len(described), "", placed)


def artifact(
    *steps: Step,
    inputs: Mapping[str, str] | None = None,
    outputs: Sequence[str] = ("f32[4, 64]",),
    temporaries: Sequence[int] = (),
    constants: Sequence[bytes] = (),
    target: str = "h100-sxm",
    arch: str | None = None,
    code: bytes | None = None,
    input_tree: Any = None,
    output_tree: Any = None,
    parameters: Sequence[str] = (),
    **record: Any,
) -> Artifact:
    """Return an artifact whose buffers are inputs, new outputs, temporaries, then constants.

    An output that is the name of an input is that input, updated in place.
    """
    inputs = {"a": "f32[4, 64]", "b": "f32[4, 64]"} if inputs is None else inputs
    model = resolve_target(target)
    image = code if code is not None else cubin(model.arch)
    blobs = {digest(image): image, **{digest(data): data for data in constants}}
    buffers: list[Buffer] = []
    bound = [_bind(buffers, name, text, "input") for name, text in inputs.items()]
    names = list(inputs)
    results = []
    for number, text in enumerate(outputs):
        path = "out" if len(outputs) == 1 else f"out.{number}"
        if text in inputs:
            source = bound[names.index(text)]
            results.append(replace(source, path=path))
        else:
            results.append(_bind(buffers, path, text, "output"))
    buffers += [Buffer("temporary", size) for size in temporaries]
    buffers += [Buffer("constant", len(data), digest=digest(data)) for data in constants]
    done = [replace(s, cubin=digest(image)) if isinstance(s, Launch) else s for s in steps]
    plan = LaunchPlan(
        tuple(buffers),
        tuple(bound),
        tuple(results),
        tuple(done),
        dict(zip(names, range(len(names)), strict=True)) if input_tree is None else input_tree,
        (0 if len(outputs) == 1 else {"tuple": list(range(len(outputs)))})
        if output_tree is None
        else output_tree,
        parameters=tuple(parameters),
    )
    made = {
        "schema": 1,
        "target": {**model.figures(), "name": model.name, **({"arch": arch} if arch else {})},
        "toolchain": {},
        "minimum_driver": {"cuda": "13.0", "linux": "580.65.06"},
        "plan": plan_to_json(plan),
        "kernels": [asdict(kernel) for kernel in _resources(plan, image)],
        "blobs": {key: len(data) for key, data in blobs.items()},
        **record,
    }
    return Artifact(made, blobs.__getitem__)


def changed(made: Artifact, change: Callable[[dict[str, Any]], Any]) -> Artifact:
    """Return an artifact whose plan, as JSON, a function has changed."""
    plan = json.loads(json.dumps(made.record["plan"]))
    change(plan)
    return Artifact({**made.record, "plan": plan}, made.blob)


def _bind(buffers: list[Buffer], path: str, text: str, role: Any) -> Binding:
    array = resolve_array(text)
    buffers.append(Buffer(role, array.nbytes))
    return Binding(path, array.dtype, array.shape, len(buffers) - 1)


def _resources(plan: LaunchPlan, image: bytes) -> list[KernelResources]:
    try:
        own = parse_cubin(image).kernels
    except CorruptError:
        own = {}
    found = {}
    for step in plan.launches:
        static = own[step.kernel].static_smem_bytes if step.kernel in own else 0
        sizes = (32, 0, 0, 0, static, step.dynamic_smem_bytes, 0)
        found[step.kernel] = KernelResources(step.kernel, step.cubin, None, "mosaic", *sizes)
    return list(found.values())


def add(**changes: Any) -> Artifact:
    """Return the artifact of a kernel `three` over a, b and out."""
    return artifact(launch("three", 0, 1, 2), **changes)


def kernel(made: Artifact, *, checks: bool = True, **params: Any) -> Any:
    """Return the kernel `made` of one artifact."""
    return Kernels([("made", params, made)], checks=checks)["made"]


# ---- a framework


@dataclass(eq=False)
class Tensor:
    """An array of a framework: memory of the stand-in, or of the host."""

    pointer: int
    dtype: str
    shape: tuple[int, ...]
    device_number: int = 0
    contiguous: bool = True
    plain: bool = True
    strides: tuple[int, ...] | None = None

    @property
    def device(self) -> int:
        return self.device_number

    @property
    def nbytes(self) -> int:
        return resolve_array(f"{self.dtype}[{', '.join(map(str, self.shape))}]").nbytes

    def numpy(self) -> Any:
        """View the memory."""
        import ctypes

        import numpy

        memory = (ctypes.c_ubyte * self.nbytes).from_address(self.pointer)
        return numpy.frombuffer(memory, dtype=numpy_dtype(self.dtype)).reshape(self.shape)


Tensor.__dlpack_c_exchange_api__ = exchange(  # type: ignore[attr-defined]
    lambda device: arrays._by_type[Tensor].stream(device)
)


class Framework(Adapter):
    """Tensors, a current stream and a current device."""

    name = "a tensor"
    has_pool = True

    def __init__(self) -> None:
        self.current_stream = 0
        self.written: list[Tensor] = []
        self.kept: list[Tensor] = []
        self.empty_streams: list[int | None] = []

    def tensor(self, text: str, *, device: int = 0, values: Any = None) -> Tensor:
        """Return a tensor in memory of a device of the stand-in, filled with values."""
        array = resolve_array(text)
        made = self.empty(array.shape, dtype=array.dtype, device=device)
        if values is not None:
            made.numpy()[...] = values
        return made

    def empty(
        self, shape: Any, dtype: str = "f32", device: int = 0, stream: int | None = None
    ) -> Tensor:
        """Allocate through the driver, as frameworks do."""
        from pallasc.runtime.device.devices import active, get_device

        self.empty_streams.append(stream)
        made = Tensor(0, dtype, tuple(shape), device)
        with active(get_device(device)) as driver:
            made.pointer = int(driver.call("cuMemAlloc", max(1, made.nbytes), what="a tensor"))
        self.kept.append(made)
        return made

    def new_in(self, stream: int, device: int, new: Any) -> list[Tensor]:
        """Allocate in a stream that is not the current one."""
        return [self.empty(shape, dtype, device, stream) for shape, _, dtype in new]

    def view(self, array: Tensor) -> ArrayView:
        if not array.plain:
            raise ArgumentError("a conjugated tensor cannot be passed.")
        place = None if array.device_number < 0 else array.device_number
        return ArrayView(array.pointer, array.dtype, array.shape, array.contiguous, place)

    def stream(self, device: int) -> int:
        return self.current_stream

    def mark_written(self, arrays: tuple[Tensor, ...]) -> None:
        self.written += arrays

    def access(self, kind: type) -> Access:
        from pallasc.runtime.device.devices import current_device
        from pallasc.specs.arrays import DTYPES

        return Access(
            kinds=(Tensor,),
            describe=self.view,
            describe_in_order=self.view,
            dtypes={name: name for name in DTYPES},
            new_here=lambda shape, _, dtype: self.empty(shape, dtype, current_device()),
            new_in=self.new_in,
            capsule=Tensor.__dlpack_c_exchange_api__,  # type: ignore[attr-defined]
            mark_written=self.mark_written,
            is_plain=lambda tensor: tensor.plain,
            stream=self.stream,
        )


def adder(driver: Any) -> Kernel:
    """Return a kernel that adds two arrays on a stand-in driver."""

    @driver.kernel("three")  # type: ignore[untyped-decorator]
    def add_arrays(launch: Any) -> None:
        a, b, out = (launch.array(n, "float32", (4, 64)) for n in range(3))
        out[...] = a + b

    return kernel(add())


def stream(device: int = 0, flags: int = 1) -> int:
    """Return a new stream of a device; with the flag 0 the default stream waits for it."""
    from pallasc.runtime.device.devices import active, get_device

    with active(get_device(device)) as driver:
        return int(driver.call("cuStreamCreate", flags, what="a stream"))


@contextmanager
def capture(stream: int, mode: int = 0) -> Iterator[list[Any]]:
    """Capture a stream of GPU 0, globally by default; the graph is in the list in the end."""
    from pallasc.runtime.device.devices import active, get_device

    graph: list[Any] = []
    with active(get_device(0)) as driver:
        kind = driver.bindings.CUstreamCaptureMode(mode)
        driver.call("cuStreamBeginCapture", stream, kind, what="a capture")
        yield graph
        graph.append(driver.call("cuStreamEndCapture", stream, what="a capture"))


def launch_graph(graph: list[Any], stream: int) -> None:
    """Launch what was captured."""
    from pallasc.runtime.device.devices import active, get_device

    with active(get_device(0)) as driver:
        ready = driver.call("cuGraphInstantiate", *graph, 0, what="a graph")
        driver.call("cuGraphLaunch", ready, stream, what="a graph")


def install() -> Framework:
    """Make the framework known to the runtime."""
    made = Framework()
    arrays._by_type[Tensor] = made
    return made


def forget() -> None:
    """Make the runtime as it is in a new process."""
    state.reset(is_forked=False)
    if open_library.cache_info().currsize:
        with suppress(ToolError):  # older than its sources: nothing was loaded by it
            open_library().functions.pallasc_forget()
