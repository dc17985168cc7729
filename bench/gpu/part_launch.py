"""What a launch costs the caller, against Triton, cuda.core, cupy and JAX.

The kernels do nothing, and the GPU gets a rest after every few launches: a launch into a full queue
waits for the GPU. Arrays are CUDA tensors of torch where it finds a GPU, else objects of Python
that are asked in the same way. Everything is timed in turn, against the raw call at that time.
"""

from __future__ import annotations

import functools
import gc
import statistics
import tempfile
import timeit
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from carried import read_artifact, read_variants, why_not
from desk import Desk, MissingError, need, need_cupy, need_torch
from launching import wait
from units import Unit

TITLE = "what a launch costs, against Triton, cuda.core, cupy and JAX"
SHARE = 0.06
AT_ONCE = 1


def units(folder: Path, machine: Mapping[str, Any], options: Mapping[str, Any]) -> list[Unit]:
    """Return a unit for each package that launches."""
    return [Unit("launch", name, 90, 6) for name in WAYS]


def run(desk: Desk) -> None:
    """Time the launches of one package, beside ours and the raw call."""
    if {"raw"} <= desk.found:
        return
    timer = Timer(desk.options["launches"], desk.options["repeats_launch"])
    try:
        kind = WAYS[desk.name](timer, desk)
    except MissingError as error:
        desk.tell(desk.name, missing=str(error))
        return
    for name, row in timer.run().items():
        desk.tell(name, arrays=kind, **row)


class Timer:
    """Times things in turn, each against the raw call at that time.

    Args:
        launches: how many are timed at once.
        repeats: how often.
    """

    def __init__(self, launches: int, repeats: int) -> None:
        self._launches, self._repeats = launches, repeats
        self._work: dict[str, Callable[[], object]] = {}

    def add(self, name: str, work: Callable[[], object]) -> None:
        """Time something."""
        work()
        self._work[name] = work

    def run(self) -> dict[str, dict[str, float]]:
        """Return for each the median nanoseconds, and the median ratio to the raw call."""
        times: dict[str, list[float]] = {name: [] for name in self._work}
        ratios: dict[str, list[float]] = {name: [] for name in self._work}
        gc.disable()
        for _ in range(self._repeats):
            for name in self._work:
                raw = self._time("raw")
                times[name].append(self._time(name))
                ratios[name].append(times[name][-1] / raw)
        gc.enable()
        return {
            name: {
                "ns": statistics.median(times[name]),
                "least_ns": min(times[name]),
                "to_raw": statistics.median(ratios[name]),
            }
            for name in self._work
        }

    def _time(self, name: str) -> float:
        wait()
        return timeit.timeit(self._work[name], number=self._launches) / self._launches * 1e9


def _artifact(desk: Desk, name: str) -> Any:
    folder = desk.folder / "launch"
    digests = dict(line.split() for line in (folder / "names").read_text().splitlines())
    return read_artifact(folder, digests[name])


def _ours(timer: Timer, desk: Desk, make: Callable[[], list[Any]]) -> tuple[Any, list[Any]]:
    """Time the raw call and ours over four arrays; return the kernel and the arrays."""
    from pallasc.runtime.opening import open_artifact

    kernel = open_artifact(_artifact(desk, "four"))
    a, b, c, out = arrays = make()
    kernel.into(a, b, c, out=out)
    timer.add("raw", _raw(kernel))
    timer.add("checked", lambda: kernel.into(a, b, c, out=out))
    unchecked = kernel.unchecked
    unchecked.into(a, b, c, out=out)
    timer.add("unchecked", lambda: unchecked.into(a, b, c, out=out))
    return kernel, arrays


def _raw(kernel: Any) -> Callable[[], object]:
    """Return the call of cuda.bindings alone, with everything ready."""
    (route,) = kernel._routes.values()
    call = next(iter(route.plans.values()))
    if not isinstance(call, functools.partial):
        raise MissingError("the plan is more than the raw call: no context is current")
    return call


def _make_current() -> None:
    """Make the GPU's context current, as every program has it that has used the GPU before."""
    from pallasc.runtime.device.devices import get_device, open_driver

    open_driver().call("cuCtxSetCurrent", get_device(0).context, what="the context")


def _tensors(dtype: str = "float32", shape: tuple[int, int] = (4, 64)) -> list[Any]:
    torch = need_torch()
    return [torch.empty(shape, dtype=getattr(torch, dtype), device="cuda") for _ in range(4)]


def _objects(dtype: str = "f32", shape: tuple[int, int] = (4, 64)) -> list[Any]:
    from plain_arrays import install

    return [install().empty(shape, dtype=dtype) for _ in range(4)]


def _either(dtypes: tuple[str, str], shape: tuple[int, int]) -> tuple[str, list[Any]]:
    try:
        return "torch", _tensors(dtypes[0], shape)
    except MissingError:
        return "objects of Python", _objects(dtypes[1], shape)


def _pointers(timer: Timer, desk: Desk) -> str:
    """Launch a kernel over four arrays, in all of our ways."""
    _make_current()
    kind, arrays = _either(("float32", "f32"), (4, 64))
    kernel, (a, b, c, _) = _ours(timer, desk, lambda: arrays)
    timer.add("allocating", lambda: kernel(a, b, c))
    if kind == "torch":
        operator = kernel.torch_operator("pallasc_gpu::four")
        timer.add("through a torch operator, allocating", lambda: operator(a, b, c))
    return kind


def _tensor_maps(timer: Timer, desk: Desk) -> str:
    """Launch a kernel whose parameters are a pointer and four tensor maps."""
    from pallasc.runtime.opening import open_artifact

    _make_current()
    kind, (a, b, c, out) = _either(("float16", "f16"), (32, 64))
    kernel = open_artifact(_artifact(desk, "mapped"))
    kernel.into(a, b, c, out=out)
    timer.add("raw", _raw(kernel))
    (route,) = kernel._routes.values()
    timer.add("checked, four tensor maps", lambda: kernel.into(a, b, c, out=out))

    def miss() -> None:
        route.plans.clear()
        kernel.into(a, b, c, out=out)

    timer.add("plan bound with four tensor maps", miss)
    return kind


def _graph(timer: Timer, desk: Desk) -> str:
    """Launch a captured graph that holds one launch of ours."""
    from pallasc.runtime.device.devices import open_driver

    _make_current()
    kind, arrays = _either(("float32", "f32"), (4, 64))
    kernel, (a, b, c, out) = _ours(timer, desk, lambda: arrays)
    driver = open_driver()
    stream = driver.call("cuStreamCreate", 1, what="a stream")
    mode = driver.bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    kernel.into(a, b, c, out=out, stream=int(stream))
    driver.call("cuStreamBeginCapture", stream, mode, what="a capture")
    kernel.into(a, b, c, out=out, stream=int(stream))
    captured = driver.call("cuStreamEndCapture", stream, what="a capture")
    ready = driver.call("cuGraphInstantiate", captured, 0, what="a graph")
    timer.add("a captured graph", functools.partial(driver.bindings.cuGraphLaunch, ready, stream))
    return kind


def _cuda_core(timer: Timer, desk: Desk) -> str:
    """Launch the same cubin through cuda.core."""
    core = need("cuda.core")
    device = core.Device(0)
    device.set_current()
    _make_current()
    kind, arrays = _either(("float32", "f32"), (4, 64))
    _ours(timer, desk, lambda: arrays)
    stream = device.create_stream()
    kernel = core.ObjectCode.from_cubin(_cubin(desk)).get_kernel("four")
    config = core.LaunchConfig(grid=1, block=128)
    pointers = [array.data_ptr() if kind == "torch" else array.pointer for array in arrays]
    timer.add("cuda.core", lambda: core.launch(stream, config, kernel, *pointers))
    return kind


def _triton(timer: Timer, desk: Desk) -> str:
    """Launch a kernel of Triton that takes the same four tensors."""
    need("triton")
    tensors = _tensors()
    _ours(timer, desk, lambda: tensors)
    from launch_triton import nothing

    try:
        nothing[(1,)](*tensors)
    except Exception as error:
        raise MissingError(f"Triton: {type(error).__name__}: {error}") from error
    timer.add("Triton's kernel[grid]", lambda: nothing[(1,)](*tensors))
    return "torch"


def _cupy(timer: Timer, desk: Desk) -> str:
    """Launch the same cubin through cupy, over cupy's arrays."""
    cupy = need_cupy()
    arrays = [cupy.empty((4, 64), "float32") for _ in range(4)]
    kernel, (a, b, c, _) = _ours(timer, desk, lambda: arrays)
    timer.add("allocating", lambda: kernel(a, b, c))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "four.cubin"
        file.write_bytes(_cubin(desk))
        function = cupy.RawModule(path=str(file)).get_function("four")
        given = tuple(arrays)
        timer.add("cupy's RawModule", lambda: function((1,), (128,), given))
    return "cupy"


def _jax(timer: Timer, desk: Desk) -> str:
    """Call a kernel that adds: JAX's own jit of it, and ours with JAX's arrays."""
    from jax_way import jitted
    from jax_way import why_not as no_jax

    if reason := no_jax():
        raise MissingError(reason)
    jax = need("jax")
    _make_current()
    arrays = _objects()
    _ours(timer, desk, lambda: arrays)
    capability = _capability()
    variants = [candidate for candidate in read_variants(desk.folder) if candidate.name == "add"]
    variant = next(
        (candidate for candidate in variants if why_not(candidate, *capability) is None), None
    )
    if variant is None:
        raise MissingError("no kernel that adds was packed for this GPU")
    given = {
        name: jax.numpy.ones(shape, "float32" if dtype == "f32" else "bfloat16")
        for name, (dtype, shape) in variant.arrays().items()
    }
    theirs, ours = jitted(variant), variant.kernel()
    timer.add("JAX's jit", lambda: theirs(**given))
    timer.add("ours with JAX's arrays", lambda: ours(**given))
    return "JAX"


def _capability() -> tuple[int, int]:
    from pallasc.runtime.device.devices import get_device

    device = get_device(0)
    return device.major, device.minor


def _cubin(desk: Desk) -> bytes:
    artifact = _artifact(desk, "four")
    data: bytes = artifact.blob(artifact.plan.launches[0].cubin)
    return data


WAYS: Mapping[str, Callable[[Timer, Desk], str]] = {
    "pointers": _pointers,
    "tensor maps": _tensor_maps,
    "graph": _graph,
    "cuda.core": _cuda_core,
    "Triton": _triton,
    "cupy": _cupy,
    "JAX": _jax,
}
