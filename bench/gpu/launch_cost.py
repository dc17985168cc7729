"""What a launch costs the caller: the loops of `bench/launch.py`, on the driver that is here.

The kernels do nothing, and the GPU gets a rest after every few launches: a launch into a full queue
waits for the GPU. Arrays are CUDA tensors of torch where it is installed and finds a GPU, else
objects of Python that are asked in the same way.
"""

from __future__ import annotations

import gc
import statistics
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

from carried import read_artifact

REPEATS = 25
LAUNCHES = 200


class Timer:
    """Times things in turn, each against the raw call at that time.

    Args:
        launches: how many are timed at once.
        repeats: how often.
    """

    def __init__(self, launches: int = LAUNCHES, repeats: int = REPEATS) -> None:
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
        _wait()
        return timeit.timeit(self._work[name], number=self._launches) / self._launches * 1e9


def measure_launches(folder: Path, *, launches: int, repeats: int) -> dict[str, Any]:
    """Return what launches cost, by name, and whose arrays they had."""
    kind = "torch" if _torch_has_gpu() else "python"
    timer = Timer(launches, repeats)
    digests = dict(line.split() for line in (folder / "launch" / "names").read_text().splitlines())
    _pointers(timer, kind, read_artifact(folder / "launch", digests["four"]))
    if "mapped" in digests:
        _tensor_maps(timer, kind, read_artifact(folder / "launch", digests["mapped"]))
    found = timer.run()
    _wait()
    return {"arrays": kind, "launches": found}


def _pointers(timer: Timer, kind: str, artifact: Any) -> None:
    """Launch a kernel over four arrays."""
    from pallasc.runtime.opening import open_artifact

    kernel = open_artifact(artifact)
    a, b, c, out = _arrays(kind, "f32", (4, 64))
    kernel.into(a, b, c, out=out)
    timer.add("raw", _raw(kernel))
    timer.add("checked", lambda: kernel.into(a, b, c, out=out))
    unchecked = kernel.unchecked
    unchecked.into(a, b, c, out=out)
    timer.add("unchecked", lambda: unchecked.into(a, b, c, out=out))
    timer.add("allocating", lambda: kernel(a, b, c))
    if kind == "torch":
        operator = kernel.torch_operator("pallasc_gpu::four")
        timer.add("through a torch operator, allocating", lambda: operator(a, b, c))


def _raw(kernel: Any) -> Callable[[], object]:
    """Return the call of cuda.bindings alone, with everything ready."""
    (route,) = kernel._routes.values()
    call: Callable[[], object] = next(iter(route.plans.values()))
    return call


def _tensor_maps(timer: Timer, kind: str, artifact: Any) -> None:
    """Launch a kernel whose parameters are a pointer and four tensor maps."""
    from pallasc.runtime.opening import open_artifact

    kernel = open_artifact(artifact)
    a, b, c, out = _arrays(kind, "f16", (32, 64))
    kernel.into(a, b, c, out=out)
    (route,) = kernel._routes.values()
    timer.add("checked, four tensor maps", lambda: kernel.into(a, b, c, out=out))

    def miss() -> None:
        route.plans.clear()
        kernel.into(a, b, c, out=out)

    timer.add("plan bound with four tensor maps", miss)


def _torch_has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def _arrays(kind: str, dtype: str, shape: tuple[int, ...]) -> list[Any]:
    """Return four arrays."""
    if kind == "python":
        from plain_arrays import install

        return [install().empty(shape, dtype=dtype) for _ in range(4)]
    import torch

    kinds = {"f16": torch.float16, "f32": torch.float32}
    return [torch.empty(shape, dtype=kinds[dtype], device="cuda") for _ in range(4)]


def _wait() -> None:
    """Wait until the GPU has nothing to do."""
    from pallasc.runtime.devices import active, current_device, get_device

    with active(get_device(current_device())) as driver:
        driver.call("cuCtxSynchronize", what="the GPU does not come to rest")
