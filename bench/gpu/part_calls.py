"""Ways to call: bundles, packages, operators, graphs, streams, threads, two bundles at once.

All with the smallest kernel that has two inputs of one shape, whose sums are compared.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from desk import Desk, MissingError, need, need_cupy, need_torch
from units import Unit

TITLE = "bundles, operators, graphs, streams, threads"
SHARE = 0.06
AT_ONCE = 1

Row = dict[str, Any]
_THREADS, _CALLS = 8, 50


def units(folder: Path, machine: Mapping[str, Any], options: Mapping[str, Any]) -> list[Unit]:
    """Return a unit for each way."""
    two = {"PALLASC_BUNDLE_PATH": str(folder / "package" / "built" / "gpu_check_ops.pallasc")}
    return [
        Unit("calls", name, 60, 8, environment=two if name == "two bundles" else {})
        for name in WAYS
    ]


def run(desk: Desk) -> None:
    """Call in one way."""
    desk.ask("numbers", lambda: WAYS[desk.name](desk))


def _bundle(desk: Desk) -> Path:
    return desk.folder / "package" / "gpu_check_ops" / "kernels.pallasc"


def _open(desk: Desk) -> Any:
    """Return the kernel that adds, from the bundle of the package."""
    import pallasc

    return pallasc.open_bundle(_bundle(desk))["add"].variant(m=1024, dtype="f32")


def _pair(seed: int = 0) -> tuple[Any, Any]:
    import numpy as np

    generator = np.random.default_rng(seed)
    x, y = (generator.standard_normal((1024, 4096), dtype=np.float32) for _ in range(2))
    return x, y


def _sums(got: Any, x: Any, y: Any) -> Row:
    """Return whether these are the sums; adding rounds once, so that they are exact."""
    import numpy as np

    wrong = int(np.sum(got != x + y))
    return {"right": wrong == 0, "wrong": wrong, "compared": int(got.size)}


def _all(rows: list[Row]) -> Row:
    return {
        "right": all(row["right"] for row in rows),
        "wrong": sum(row["wrong"] for row in rows),
        "compared": sum(row["compared"] for row in rows),
        "results": len(rows),
    }


def _tensors(seed: int = 0) -> tuple[Any, ...]:
    torch = need_torch()
    x, y = _pair(seed)
    return x, y, torch.from_numpy(x).cuda(), torch.from_numpy(y).cuda()


def open_bundle(desk: Desk) -> Row:
    """Open a bundle by its path."""
    x, y = _pair()
    return _sums(_open(desk)(x, y), x, y)


def load(desk: Desk) -> Row:
    """Load the kernels of a package by its name, without importing it."""
    import pallasc

    sys.path.append(str(desk.folder / "package"))
    x, y = _pair()
    kernels = pallasc.load("gpu_check_ops")
    kernels.preload()
    return _sums(kernels["add"](x, y, m=1024, dtype="f32"), x, y)


def two_bundles(desk: Desk) -> Row:
    """Load a package of which another bundle has a newer build of one kernel."""
    import pallasc

    sys.path.append(str(desk.folder / "package"))
    x, y = _pair()
    kernels = pallasc.load("gpu_check_ops")
    rows = [_sums(kernels["add"](x, y, m=1024, dtype="f32"), x, y)]
    with pallasc.open_bundle(_bundle(desk)) as beside:
        rows.append(_sums(beside["add"](x, y, m=1024, dtype="f32"), x, y))
    return {**_all(rows), "bundles": len(kernels.origins)}


def torch_operator(desk: Desk) -> Row:
    """Call the kernel as an operator of torch."""
    x, y, a, b = _tensors()
    operator = _open(desk).torch_operator("pallasc_gpu::add")
    return _sums(operator(a, b).cpu().numpy(), x, y)


def torch_compile(desk: Desk) -> Row:
    """Call the operator in a function that torch has compiled."""
    torch = need_torch()
    x, y, a, b = _tensors()
    operator = _open(desk).torch_operator("pallasc_gpu::add")
    function = torch.compile(lambda p, q: operator(p, q), backend="aot_eager", fullgraph=True)
    return _sums(function(a, b).cpu().numpy(), x, y)


def torch_graph(desk: Desk) -> Row:
    """Capture launches with torch, and replay them on other numbers."""
    torch = need_torch()
    kernel = _open(desk)
    kernel.preload()
    rows = []
    _, _, a, b = _tensors()
    out = torch.empty_like(a)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel.into(a, b, out=out)
    for seed in range(1, 6):
        x, y = _pair(seed)
        a.copy_(torch.from_numpy(x))
        b.copy_(torch.from_numpy(y))
        out.zero_()
        graph.replay()
        rows.append(_sums(out.cpu().numpy(), x, y))
    return _all(rows)


def driver_graph(desk: Desk) -> Row:
    """Capture a launch with the driver alone, and replay it on other numbers."""
    import numpy as np
    from arrays import device_arrays, from_device, results

    from pallasc.runtime.device.devices import active, get_device

    kernel = _open(desk)
    kernel.preload()
    x, y = _pair()
    held, out, rows = device_arrays({"x": x, "y": y}), results(kernel), []
    with active(get_device(0)) as driver:
        stream = driver.call("cuStreamCreate", 1, what="a stream")
        mode = driver.bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
        driver.call("cuStreamBeginCapture", stream, mode, what="a capture")
        kernel.into(**held, out=out, stream=int(stream))
        captured = driver.call("cuStreamEndCapture", stream, what="a capture")
        ready = driver.call("cuGraphInstantiate", captured, 0, what="a graph")
        for seed in range(1, 6):
            x, y = _pair(seed)
            held["x"].copy_from(x)
            held["y"].copy_from(y)
            out.copy_from(np.zeros_like(x))
            driver.call("cuGraphLaunch", ready, stream, what="a graph")
            driver.call("cuStreamSynchronize", stream, what="a graph")
            rows.append(_sums(from_device(out), x, y))
    return _all(rows)


def torch_streams(desk: Desk) -> Row:
    """Launch in eight streams of torch, each after copies of its own."""
    torch = need_torch()
    kernel = _open(desk)
    pairs = [_pair(seed) for seed in range(8)]
    pinned = [[torch.from_numpy(array).pin_memory() for array in pair] for pair in pairs]
    outs = []
    for pair in pinned:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            a, b = (array.to("cuda", non_blocking=True) for array in pair)
            outs.append((stream, kernel(a, b), a, b))
    for stream, *_ in outs:
        stream.synchronize()
    return _all([_sums(o[1].cpu().numpy(), *pair) for o, pair in zip(outs, pairs, strict=True)])


def threads(desk: Desk) -> Row:
    """Call from eight threads at once, each with arrays of its own."""
    from arrays import device_arrays, from_device, results

    kernel, rows, failures = _open(desk), [], []
    calls = min(_CALLS, desk.options["launches"])

    def work(seed: int) -> None:
        try:
            x, y = _pair(seed)
            held, out = device_arrays({"x": x, "y": y}), results(kernel)
            for _ in range(calls):
                kernel.into(**held, out=out)
            rows.append(_sums(from_device(out), x, y))
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    running = [threading.Thread(target=work, args=(seed,)) for seed in range(_THREADS)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if failures:
        raise failures[0]
    return {**_all(rows), "calls": _THREADS * calls}


def two_frameworks(desk: Desk) -> Row:
    """Pass an array of torch and one of cupy to one call."""
    cupy = need_cupy()
    x, y, a, _ = _tensors()
    return _sums(_open(desk)(a, cupy.asarray(y)).cpu().numpy(), x, y)


def jax_in_a_loop(desk: Desk) -> Row:
    """Call in a loop inside jit, among other operations, as command buffers have it."""
    import numpy as np

    jax = need("jax")
    kernel = _open(desk)
    x, y = _pair()

    @jax.jit
    def function(a: Any, b: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda _, c: kernel(c, b), a)

    platform = jax.default_backend()
    got = np.asarray(function(jax.numpy.asarray(x), jax.numpy.asarray(y)))
    return {**_sums(got, x + y + y, y), "platform": platform}


def child_of_spawn(desk: Desk) -> Row:
    """Call in a process that was spawned by one that has called."""
    import multiprocessing

    open_bundle(desk)
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return dict(pool.apply(_in_child, (str(_bundle(desk)), os.getpid())))


def _in_child(bundle: str, parent: int) -> Row:
    import pallasc

    if os.getpid() == parent:
        raise MissingError("no process of its own")
    x, y = _pair()
    kernel = pallasc.open_bundle(bundle)["add"].variant(m=1024, dtype="f32")
    return _sums(kernel(x, y), x, y)


WAYS: Mapping[str, Callable[[Desk], Row]] = {
    "open_bundle": open_bundle,
    "load": load,
    "two bundles": two_bundles,
    "torch operator": torch_operator,
    "torch.compile": torch_compile,
    "graph of torch": torch_graph,
    "graph of the driver": driver_graph,
    "streams of torch": torch_streams,
    "threads": threads,
    "torch and cupy together": two_frameworks,
    "JAX in a loop": jax_in_a_loop,
    "spawned process": child_of_spawn,
}
