"""The cost of a launch for the caller, against Triton and JAX.

The kernels do nothing. After every few launches, the benchmark waits until the GPU is idle, because
a launch into a full queue waits for the GPU. Arrays are torch tensors if torch has a GPU, else
pallasc's own device arrays. Everything is timed in turn with the raw call: `cuLaunchKernelEx` of
`cuda.bindings`, with parameters, configuration, and function ready.
"""

import functools
import gc
import statistics
import timeit
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from carried import chosen
from desk import Desk, MissingError, need, need_jax, need_torch, wait
from part_calls import capture
from schedule import Unit

TITLE = "cost of a launch, against Triton and JAX"
SHARE = 0.1
AT_ONCE = 1

_SHAPE = (4, 64)


def units(folder: Path, machine: Mapping[str, Any], options: Mapping[str, Any]) -> list[Unit]:
    """Return a unit for each package that launches."""
    return [Unit("launch", name, 90, 6) for name in WAYS]


def run(desk: Desk) -> None:
    """Time the launches of one package."""
    try:
        timer = Timer(desk)
        WAYS[desk.name](timer, desk)
    except MissingError as error:
        desk.tell(desk.name, missing=str(error))
        return
    for name, row in timer.run().items():
        desk.tell(name, arrays=timer.arrays_of, **row)


class Timer:
    """Times launches in turn, each against the raw call at that time."""

    def __init__(self, desk: Desk) -> None:
        import pallasc
        from pallasc.runtime.device.devices import get_device, open_driver

        self._launches, self._repeats = desk.options["launches"], desk.options["rounds"] * 8
        open_driver().call("cuCtxSetCurrent", get_device(0).context, what="the context")
        self.kernel = pallasc.open_bundle(desk.folder / "launch.pallasc")["four"]
        self.arrays_of, self.arrays, self.pointers = _four_arrays()
        a, b, c, out = self.arrays
        self._work: dict[str, Callable[[], object]] = {}
        self.add("raw", self._raw())
        self.add("checked", lambda: self.kernel.into(a, b, c, out=out))

    def _raw(self) -> Callable[[], object]:
        """Return the bare call of cuda.bindings, with its arguments ready."""
        from pallasc.runtime.calls.plain import Parameters, launch_config, ready_function
        from pallasc.runtime.device.devices import get_device, open_driver

        artifact, driver = self.kernel.variants[0].artifact, open_driver()
        (launch,) = artifact.plan.launches
        function = ready_function(driver, artifact, launch, get_device(0))
        memory, place = Parameters(driver, launch).for_buffers(self.pointers)
        config = launch_config(driver, launch, 0)
        call = functools.partial(driver.bindings.cuLaunchKernelEx, config, function, place, 0)
        call.memory = memory  # type: ignore[attr-defined]
        return call

    def add(self, name: str, work: Callable[[], object]) -> None:
        """Add a work to time; call it first, because first calls take slower paths."""
        for _ in range(3):
            work()
        self._work[name] = work

    def run(self) -> dict[str, dict[str, float]]:
        """Return the median nanoseconds of each work, and the median ratio to the raw call."""
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
                "to_raw": statistics.median(ratios[name]),
            }
            for name in self._work
        }

    def _time(self, name: str) -> float:
        wait()
        return timeit.timeit(self._work[name], number=self._launches) / self._launches * 1e9


def _four_arrays() -> tuple[str, list[Any], list[int]]:
    try:
        torch = need_torch()
    except MissingError:
        from pallasc.runtime.adapters.device_arrays import DeviceArray

        arrays = [DeviceArray(_SHAPE, "f32") for _ in range(4)]
        return "pallasc", arrays, [array.pointer for array in arrays]
    tensors = [torch.empty(_SHAPE, device="cuda") for _ in range(4)]
    return "torch", tensors, [tensor.data_ptr() for tensor in tensors]


def _pallasc(timer: Timer, desk: Desk) -> None:
    """Launch in all ways that pallasc offers."""
    from pallasc.runtime.device.devices import open_driver

    a, b, c, out = timer.arrays
    kernel, unchecked, driver = timer.kernel, timer.kernel.unchecked, open_driver()
    timer.add("unchecked", lambda: unchecked.into(a, b, c, out=out))
    timer.add("allocating", lambda: kernel(a, b, c))
    if timer.arrays_of == "torch":
        operator = kernel.torch_operator("pallasc_gpu::four")
        timer.add("through a torch operator, allocating", lambda: operator(a, b, c))
    stream, graph = capture(driver, lambda stream: kernel.into(a, b, c, out=out, stream=stream))
    launch = functools.partial(driver.bindings.cuGraphLaunch, graph, stream)
    timer.add("a captured graph", launch)


def _triton(timer: Timer, desk: Desk) -> None:
    """Launch a kernel of Triton with the same four tensors."""
    triton = need("triton")
    need_torch()

    @triton.jit
    def nothing(a, b, c, out):  # type: ignore[no-untyped-def]
        pass

    try:
        nothing[(1,)](*timer.arrays)
    except Exception as error:
        raise MissingError(f"Triton: {type(error).__name__}: {error}") from error
    timer.add("Triton's kernel[grid]", lambda: nothing[(1,)](*timer.arrays))


def _jax(timer: Timer, desk: Desk) -> None:
    """Call the function `add` under JAX's jit, and pallasc's kernel with JAX's arrays."""
    from part_times import jitted
    from references import make_inputs

    jax = need_jax()
    variants = [one for one in chosen(desk.folder, {"only": ["add["]}) if not one.is_tuning]
    given = {name: jax.numpy.asarray(array) for name, array in make_inputs(variants[0]).items()}
    theirs, ours = jitted(variants[0]), variants[0].kernel()
    inside = jax.jit(lambda **arrays: ours(**arrays))
    timer.add("JAX's jit of the function", lambda: theirs(**given))
    timer.add("ours inside jit", lambda: inside(**given))
    timer.add("ours with JAX's arrays", lambda: ours(**given))


WAYS: Mapping[str, Callable[[Timer, Desk], None]] = {
    "pallasc": _pallasc,
    "Triton": _triton,
    "JAX": _jax,
}
