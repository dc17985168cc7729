"""Ways to call: bundles, packages, operators, graphs, streams, threads, exports, `tune run`.

All except the last call a kernel that adds two arrays of f32[1024, 4096]; the sums must be exact.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from arrays import device_arrays, from_device, result_of
from desk import Desk, MissingError, need, need_torch
from schedule import Unit

TITLE = "bundles, operators, graphs, streams, threads, exports"
SHARE = 0.15
AT_ONCE = 2

PACKAGE = "gpu_check_ops"
PARAMS: Mapping[str, Any] = {"m": 1024, "dtype": "f32"}
Row = dict[str, Any]
_THREADS, _CALLS = 8, 50


def units(folder: Path, machine: Mapping[str, Any], options: Mapping[str, Any]) -> list[Unit]:
    """Return a unit for each way to call."""
    return [Unit("calls", name, 120, 8) for name in WAYS]


def run(desk: Desk) -> None:
    """Call in the way that the unit names."""
    desk.ask("numbers", lambda: WAYS[desk.name](desk))


def bundle_of(desk: Desk) -> Path:
    """Return the bundle of the packed package."""
    return desk.folder / "package" / PACKAGE / "kernels.pallasc"


def open_add(desk: Desk) -> Any:
    """Open the kernel."""
    import pallasc

    return pallasc.open_bundle(bundle_of(desk))["add"].variant(**PARAMS)


def make_pair(seed: int = 0) -> tuple[Any, Any]:
    """Return two arrays."""
    generator = np.random.default_rng(seed)
    x, y = (generator.standard_normal((1024, 4096), dtype=np.float32) for _ in range(2))
    return x, y


def _sums(*results: tuple[Any, tuple[Any, Any]]) -> Row:
    """Compare results with the sums of their arrays."""
    wrong = sum(int(np.sum(got != x + y)) for got, (x, y) in results)
    return {"right": not wrong, "wrong": wrong, "compared": sum(got.size for got, _ in results)}


def _tensors(pair: tuple[Any, Any]) -> list[Any]:
    torch = need_torch()
    return [torch.from_numpy(array).cuda() for array in pair]


def load(desk: Desk) -> Row:
    """Load the kernels of a package by its name, without importing it."""
    import pallasc

    sys.path.append(str(desk.folder / "package"))
    kernels = pallasc.load(PACKAGE)
    kernels.preload()
    return _sums((kernels["add"](*make_pair(), **PARAMS), make_pair()))


def torch_operator(desk: Desk) -> Row:
    """Call the kernel as an operator of torch, and in a function that torch compiles."""
    torch, pair = need_torch(), make_pair()
    operator, tensors = open_add(desk).torch_operator("pallasc_gpu::add"), _tensors(pair)
    function = torch.compile(lambda p, q: operator(p, q), backend="aot_eager", fullgraph=True)
    results = [operator(*tensors), function(*tensors)]
    return _sums(*((result.cpu().numpy(), pair) for result in results))


def torch_graph(desk: Desk) -> Row:
    """Capture a launch with torch, and replay it with other inputs."""
    torch = need_torch()
    kernel = open_add(desk)
    kernel.preload()
    a, b = _tensors(make_pair())
    out = torch.empty_like(a)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel.into(a, b, out=out)
    results = []
    for pair in map(make_pair, range(1, 4)):
        for tensor, array in zip((a, b), pair, strict=True):
            tensor.copy_(torch.from_numpy(array))
        graph.replay()
        results.append((out.cpu().numpy(), pair))
    return _sums(*results)


def driver_graph(desk: Desk) -> Row:
    """Capture a launch with the driver alone, and replay it with other inputs."""
    from pallasc.runtime.device.devices import active, get_device

    kernel = open_add(desk)
    kernel.preload()
    held, out = device_arrays(dict(zip("xy", make_pair(), strict=True))), result_of(kernel)
    results = []
    with active(get_device(0)) as driver:
        stream, graph = capture(driver, lambda stream: kernel.into(**held, out=out, stream=stream))
        for pair in map(make_pair, range(1, 4)):
            for name, array in zip("xy", pair, strict=True):
                held[name].copy_from(array)
            driver.call("cuGraphLaunch", graph, stream, what="a graph")
            driver.call("cuStreamSynchronize", stream, what="a graph")
            results.append((from_device(out), pair))
    return _sums(*results)


def capture(driver: Any, launch: Callable[[int], object]) -> tuple[Any, Any]:
    """Capture a launch in a new stream; return the stream and the graph."""
    stream = driver.call("cuStreamCreate", 1, what="a stream")
    mode = driver.bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    driver.call("cuStreamBeginCapture", stream, mode, what="a capture")
    launch(int(stream))
    captured = driver.call("cuStreamEndCapture", stream, what="a capture")
    return stream, driver.call("cuGraphInstantiate", captured, 0, what="a graph")


def torch_streams(desk: Desk) -> Row:
    """Launch in eight streams of torch, each after copies in the same stream."""
    torch = need_torch()
    kernel, results = open_add(desk), []
    for pair in map(make_pair, range(8)):
        pinned = [torch.from_numpy(array).pin_memory() for array in pair]
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            held = [array.to("cuda", non_blocking=True) for array in pinned]
            results.append((stream, kernel(*held), held, pair))
    torch.cuda.synchronize()
    return _sums(*((out.cpu().numpy(), pair) for _, out, _, pair in results))


def threads(desk: Desk) -> Row:
    """Call from eight threads at once, each with its own arrays."""
    kernel, calls = open_add(desk), min(_CALLS, desk.options["launches"])

    def work(seed: int) -> tuple[Any, Any]:
        pair = make_pair(seed)
        held, out = device_arrays(dict(zip("xy", pair, strict=True))), result_of(kernel)
        for _ in range(calls):
            kernel.into(**held, out=out)
        return from_device(out), pair

    with ThreadPoolExecutor(_THREADS) as pool:
        return _sums(*pool.map(work, range(_THREADS)))


def jax_in_a_loop(desk: Desk) -> Row:
    """Call in a loop inside jit, among other operations, for which XLA uses command buffers."""
    jax = need("jax")
    kernel, (x, y) = open_add(desk), make_pair()
    function = jax.jit(lambda a, b: jax.lax.fori_loop(0, 3, lambda _, c: kernel(c, b), a))
    got = np.asarray(function(jax.numpy.asarray(x), jax.numpy.asarray(y)))
    return {**_sums((got, (x + y + y, y))), "platform": jax.default_backend()}


def jax_export(desk: Desk) -> Row:
    """Call a function that was exported with `jax.export` where the folder was packed."""
    file = desk.folder / "add.jax"
    if not file.exists():
        raise MissingError("the packed folder has no export of JAX")
    need("flatbuffers")
    need("jax")
    import jax.export

    import pallasc

    pallasc.register_jax_handlers()
    exported = jax.export.deserialize(bytearray(file.read_bytes()))
    return _sums((np.asarray(exported.call(*make_pair())), make_pair()))


def tune_run(desk: Desk) -> Row:
    """Run `pallasc tune run` over tunings of a kernel, if possible a kernel without a reference."""
    jobs = list((desk.folder / "tune").glob("*.pallasc"))
    if not jobs:
        raise MissingError("no tunings were packed")
    job = max(jobs, key=lambda job: (job.stem == "attention_backward", job.stem))
    output = desk.results.path.with_name(f"tune_{job.stem}.jsonl")
    command = [sys.executable, "-P", "-m", "pallasc", "tune", "run", str(job), "-o", str(output)]
    command += ["--json", "--seconds", "5"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"exit status {done.returncode}: {done.stderr[-2000:]}")
    keys = json.loads(done.stdout)["keys"]
    failed = [point["id"] for key in keys for point in key["points"] if point["failed"]]
    kept = ("winner", "why", "us", "rounds")
    rows = [{name: key[name] for name in kept} for key in keys]
    return {"right": not failed, "failed": failed, "keys": rows}


WAYS: Mapping[str, Callable[[Desk], Row]] = {
    "load": load,
    "torch operator": torch_operator,
    "graph of torch": torch_graph,
    "graph of the driver": driver_graph,
    "streams of torch": torch_streams,
    "threads": threads,
    "JAX in a loop": jax_in_a_loop,
    "jax.export": jax_export,
    "tune run": tune_run,
}
