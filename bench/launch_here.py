"""Time launches in this process, which was started with the stand-in driver.

Usage: launch_here.py FOLDER ROUNDS torch|python. Writes an artifact into FOLDER; standard output
gets one JSON list of name, value and unit.
"""

from __future__ import annotations

import functools
import gc
import itertools
import json
import math
import os
import sys
import timeit
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import made

from pallasc.runtime.device.devices import get_device, open_driver
from pallasc.runtime.native.extension import extension

REPEATS = 150

ADDRESS_SETS = (512, 1025, 2048)
"""Fewer than the runtime keeps bound plans for, one more, and twice as many."""


class Timer:
    """Times things in turn and often, in slices that a busy machine leaves alone now and then."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._work: dict[str, Callable[[], object]] = {}
        self._every: dict[str, int] = {}

    def add(self, name: str, work: Callable[[], object], *, every: int = 1) -> None:
        """Time something, in fewer rounds where it takes long."""
        work()
        self._work[name], self._every[name] = work, every

    def run(self) -> dict[str, float]:
        """Return the least time of each, in nanoseconds."""
        found = dict.fromkeys(self._work, math.inf)
        gc.disable()
        for _ in range(REPEATS):
            for name, work in self._work.items():
                rounds = max(1, self._rounds // self._every[name])
                time_ns = timeit.timeit(work, number=rounds) / rounds * 1e9
                found[name] = min(found[name], time_ns)
        gc.enable()
        return found


def arrays(kind: str, text: str, count: int) -> list[Any]:
    """Return arrays: tensors of torch, or objects of Python."""
    if kind == "python":
        framework = made.install()
        return [framework.tensor(text) for _ in range(count)]
    import torch

    from pallasc.specs.arrays import resolve_array

    dtypes = {"f16": torch.float16, "f32": torch.float32}
    array = resolve_array(text)
    return [
        torch.empty(array.shape, dtype=dtypes[array.dtype], device="cuda") for _ in range(count)
    ]


def pointers(timer: Timer, kind: str) -> None:
    """Launch a kernel over four arrays."""
    inputs = dict.fromkeys("abc", "f32[4, 64]")
    artifact = made.artifact(made.launch("four", 0, 1, 2, 3), inputs=inputs)
    kernel = made.kernel(artifact)
    a, b, c, out = arrays(kind, "f32[4, 64]", 4)
    kernel.into(a, b, c, out=out)
    timer.add("raw", raw(kernel))
    timer.add("checked", lambda: kernel.into(a, b, c, out=out))
    unchecked = kernel.unchecked
    unchecked.into(a, b, c, out=out)
    timer.add("unchecked", lambda: unchecked.into(a, b, c, out=out))
    graph(timer, functools.partial(unchecked.into, a, b, c, out=out))
    timer.add("allocating", lambda: kernel(a, b, c), every=2 if kind == "torch" else 8)
    if kind == "torch":
        import torch

        stream = torch.cuda.Stream()
        timer.add("allocating, stream given", lambda: kernel(a, b, c, stream=stream), every=2)
        operator = kernel.torch_operator("pallasc_bench::four")
        timer.add("through a torch operator, allocating", lambda: operator(a, b, c), every=2)
        if extension() is None:
            other_layout_check(timer, artifact, (a, b, c, out))
        rivals(timer, (a, b, c, out))
    for count in ADDRESS_SETS:
        address_sets(timer, kind, artifact, count)


def address_sets(timer: Timer, kind: str, artifact: Any, count: int) -> None:
    """Launch with as many results in turn, each at an address of its own."""
    kernel = made.kernel(artifact)
    a, b, c = arrays(kind, "f32[4, 64]", 3)
    results = itertools.cycle(arrays(kind, "f32[4, 64]", count))

    def work() -> None:
        kernel.into(a, b, c, out=next(results))

    for _ in range(3 * count):
        work()
    timer.add(f"{count:,} address sets", work, every=2)


def other_layout_check(timer: Timer, artifact: Any, tensors: tuple[Any, ...]) -> None:
    """Launch with the check of shape and strides that the runtime does not take on this torch."""
    import torch

    from pallasc.runtime.matching.arrays import find_adapter

    a, b, c, out = tensors
    adapter = find_adapter(a)
    dialect = adapter.dialect()
    if "_assert_layout" in dialect.layout:
        layout = "{x}.shape == {shape} and {x}.is_contiguous()"
    else:  # where that is slow, it ends the process for a tensor without strides
        call = "_other_check({x}, {shape}, {strides})"
        layout = f"{{x}}.layout is _strided and not {{x}}.is_nested and {call}"
    values = {"_other_check": torch._C._dynamo.guards.assert_size_stride, "_strided": torch.strided}
    changed = replace(dialect, layout=layout, values={**dialect.values, **values})
    kernel = made.kernel(artifact)
    adapter.dialect = lambda: changed
    for _ in range(3):
        kernel.into(a, b, c, out=out)
    del adapter.dialect
    timer.add("checked, the other layout check", lambda: kernel.into(a, b, c, out=out))


def raw(kernel: Any) -> Callable[[], object]:
    """Return the call of cuda.bindings alone, with everything ready."""
    (route,) = kernel._routes.values()
    call = next(iter(route.plans.values()))
    if not isinstance(call, functools.partial):
        raise SystemExit("launch_here: the plan is more than the raw call")
    return call


def graph(timer: Timer, launch: Callable[..., object]) -> None:
    """Launch a captured graph that holds one launch of ours, through cuda.bindings."""
    driver = open_driver()
    stream = driver.call("cuStreamCreate", 1, what="a stream")
    mode = driver.bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    launch(stream=int(stream))
    driver.call("cuStreamBeginCapture", stream, mode, what="a capture")
    launch(stream=int(stream))
    captured = driver.call("cuStreamEndCapture", stream, what="a capture")
    ready = driver.call("cuGraphInstantiate", captured, 0, what="a graph")
    timer.add("a captured graph", functools.partial(driver.bindings.cuGraphLaunch, ready, stream))
    timer.add("unchecked, stream given", functools.partial(launch, stream=int(stream)))


def tensor_maps(timer: Timer, kind: str) -> None:
    """Launch a kernel whose parameters are a pointer and four tensor maps."""
    inputs = dict.fromkeys("abc", "f16[32, 64]")
    parameter = made.maps(*[made.tensor_map(number) for number in range(4)])
    step = made.launch("mapped", 0, parameter)
    kernel = made.kernel(made.artifact(step, inputs=inputs, outputs=["f16[32, 64]"]))
    a, b, c, out = arrays(kind, "f16[32, 64]", 4)
    kernel.into(a, b, c, out=out)
    (route,) = kernel._routes.values()
    timer.add("checked, four tensor maps", lambda: kernel.into(a, b, c, out=out))
    if kind == "torch" and extension() is not None:
        return  # it keeps no plans

    def miss() -> None:
        route.forget_plans()
        kernel.into(a, b, c, out=out)

    timer.add("plan bound with four tensor maps", miss, every=10)


def rivals(timer: Timer, tensors: tuple[Any, ...]) -> None:
    """Launch kernels over the same four tensors through other packages."""
    for add in (_cuda_core, _triton):
        try:
            add(timer, tensors)
        except (ImportError, RuntimeError) as error:  # the stand-in lacks what others ask for
            print(f"{add.__name__[1:]}: {error}", file=sys.stderr)


def _cuda_core(timer: Timer, tensors: tuple[Any, ...]) -> None:
    from cuda.core import Device, LaunchConfig, ObjectCode, launch

    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    kernel = ObjectCode.from_cubin(made.cubin()).get_kernel("four")
    config = LaunchConfig(grid=1, block=128)
    a, b, c, out = tensors

    def work() -> None:
        launch(stream, config, kernel, a.data_ptr(), b.data_ptr(), c.data_ptr(), out.data_ptr())

    timer.add("cuda.core", work, every=4)


def _triton(timer: Timer, tensors: tuple[Any, ...]) -> None:
    from launch_triton import nothing

    grid = (1,)
    timer.add("Triton's kernel[grid]", lambda: nothing[grid](*tensors), every=10)


def save(folder: Path) -> None:
    """Write an artifact for a process that measures its start."""
    artifact = made.add()
    (folder / "record.json").write_text(json.dumps(artifact.record))
    for key, data in artifact.blobs().items():
        (folder / key).write_bytes(data)


def main() -> None:
    """Time everything and print it."""
    folder, rounds, kind = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    if kind == "torch":
        import standin_torch

        standin_torch.load()
    # As in every program that has used the GPU before, a context is current.
    driver = open_driver()
    driver.call("cuCtxSetCurrent", get_device(0).context, what="the context")
    timer = Timer(rounds)
    pointers(timer, kind)
    tensor_maps(timer, kind)
    found = timer.run()
    save(folder)
    rows = [(name, value, "ns") for name, value in found.items()]
    rows += [(f"{name} / raw", found[name] / found["raw"], "") for name in found if name != "raw"]
    pairs = [(f"{count:,} address sets", "512 address sets") for count in ADDRESS_SETS[1:]]
    pairs += [("allocating, stream given", "allocating")]
    pairs += [("checked", "checked, the other layout check")]
    rows += [
        (f"{name} / {other}", found[name] / found[other], "")
        for name, other in pairs
        if name in found and other in found
    ]
    for name in ("cuda.core", "Triton's kernel[grid]"):
        if name in found:
            rows.append((f"{name} / checked", found[name] / found["checked"], ""))
            rows.append((f"{name} / unchecked", found[name] / found["unchecked"], ""))
    print(json.dumps(rows), flush=True)
    os._exit(0)  # cuda.core 1 calls at exit what the stand-in does not have


if __name__ == "__main__":
    main()
