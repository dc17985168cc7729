"""Kernel times, warm and with a cold L2 cache, against JAX and torch.

Times come from events around launches. JAX launches into its own stream, so times in JAX come from
its profiler (CUPTI): for the function as JAX compiles it, and for pallasc's kernel inside `jit`.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from arrays import device_arrays, result_of, to_torch
from carried import Carried, chosen, why_not
from desk import Desk, MissingError, need, need_jax, need_torch, wait
from part_machine import gpu_state
from schedule import Unit

TITLE = "kernel times, warm and cold, against JAX and torch"
SHARE = 0.3
AT_ONCE = 1

_WARMUP = 25
_MOST_RESULTS = 50
"""Maximum number of launches under JAX's profiler, which keeps all results in memory."""
_P90 = 0.9

Row = dict[str, Any]


def units(folder: Path, machine: Mapping[str, Any], options: Mapping[str, Any]) -> list[Unit]:
    """Return a unit for each variant of the library."""
    return [
        Unit("times", one.id, 120, 10)
        for one in chosen(folder, options)
        if not one.is_tuning and why_not(one, machine["capability"]) is None
    ]


def run(desk: Desk) -> None:
    """Time one variant."""
    timed = Timed(desk.variant(), desk.options)
    desk.ask("clocks", timed.ramp)
    desk.ask("pallasc", timed.ours)
    desk.ask("JAX", timed.jax)
    desk.ask("torch", timed.torch)


def spread(times_us: Sequence[float]) -> Row:
    """Summarize the times of single launches."""
    ordered = sorted(times_us)
    return {
        "median_us": statistics.median(ordered),
        "min_us": ordered[0],
        "p90_us": ordered[math.ceil(_P90 * len(ordered)) - 1],
        "repeats": len(ordered),
    }


def _both(measure: Callable[..., Sequence[float]], options: Mapping[str, Any]) -> Row:
    """Measure with a warm and with a cold L2 cache."""
    repeats = options["repeats"]
    counts = {"repeats": repeats, "warmup": min(_WARMUP, repeats)}
    return {way: spread(measure(cold=way == "cold", **counts)) for way in ("warm", "cold")}


def jitted(variant: Carried) -> Callable[..., Any]:
    """Return the function that a variant was compiled from, for JAX to compile when called."""
    import jax

    from pallasc.compiler.lowering.entry import import_function, static_value

    function = import_function(variant.entry, "")
    static = {name: static_value(value, "") for name, value in variant.static.items()}
    static |= {name: None for name, text in variant.args.items() if text is None}

    def call(**arrays: Any) -> Any:
        return function(**arrays, **static)

    return jax.jit(call)


class Timed:
    """A kernel of the library, with arrays."""

    def __init__(self, variant: Carried, options: Mapping[str, Any]) -> None:
        from references import make_inputs

        self._variant, self._options = variant, options
        self._inputs = make_inputs(variant)
        self._kernel = variant.kernel()
        self._held = device_arrays(self._inputs)
        self._out = result_of(self._kernel)

    def _busy(self) -> None:
        for _ in range(10):
            self._kernel.into(**self._held, out=self._out)
        wait()

    def ramp(self) -> Row:
        """Launch until the clocks have had time to rise."""
        until = time.monotonic() + self._options["ramp_s"]
        while time.monotonic() < until:
            self._busy()
        return {"clocks": gpu_state()}

    def ours(self) -> Row:
        """Time pallasc's launches."""
        from pallasc.runtime.device.devices import get_device
        from pallasc.runtime.timing import time_launches

        route = self._kernel.route(0, self._kernel.variants[0].arrays)
        pointers = [array.pointer for array in (*self._held.values(), self._out)]
        launches = partial(time_launches, route, get_device(0), pointers)
        return _both(launches, self._options)

    def jax(self) -> Row:
        """Time the function as JAX compiles it, and pallasc's kernel inside `jit`."""
        import numpy as np

        jax = need_jax()
        profiler = need("jax.experimental.mosaic.gpu.profiler")
        arrays = {name: jax.device_put(array) for name, array in self._inputs.items()}
        kernel, found = self._kernel, {}
        repeats = min(_MOST_RESULTS, self._options["repeats"])
        ways = {"jax": jitted(self._variant), "pallasc": jax.jit(lambda **own: kernel(**own))}
        results = []
        for way, function in ways.items():
            function(**arrays)
            result, times_ms = profiler.measure(function, iterations=repeats)(**arrays)
            if not times_ms:
                raise MissingError("JAX's profiler saw no kernels")
            results.append(np.asarray(result).tobytes())
            found[way] = spread([1e3 * ms for ms in np.atleast_1d(times_ms)])
        ratio = found["pallasc"]["median_us"] / found["jax"]["median_us"]
        return {**found, "pallasc_to_jax": ratio, "same_bytes": results[0] == results[1]}

    def torch(self) -> Row:
        """Time torch's operation for the same result."""
        from pallasc.runtime.device.devices import get_device
        from pallasc.runtime.timing import Work, time_calls

        need_torch()
        name, call = torch_rival(self._variant, to_torch(self._inputs))
        calls = partial(time_calls, Work(call, name), get_device(0))
        return {"operation": name, **_both(calls, self._options)}


def torch_rival(variant: Carried, tensors: Mapping[str, Any]) -> tuple[str, Callable[[], Any]]:
    """Return torch's operation for the same result: its name, and the call.

    Raises:
        MissingError: this kernel is not compared with torch.
    """
    import torch
    from torch.nn import functional

    name, static = variant.name, variant.static
    a, *rest = tensors.values()
    if name == "add":
        return "torch.add", lambda: torch.add(a, rest[0])
    if name == "softmax":
        return "torch.softmax", lambda: torch.softmax(a, -1)
    if "attention" in name:
        q, k, v = (array.transpose(1, 2) for array in (a, *rest))
        more = {"is_causal": bool(static["config"].get("causal")), "scale": 1.0}
        call = functional.scaled_dot_product_attention
        return call.__name__, lambda: call(q, k, v, enable_gqa=True, **more)
    if "matmul" in name:
        left, right = (array.to(torch.bfloat16) for array in (a, rest[0]))
        left, right = (a, rest[0]) if a.dtype == rest[0].dtype else (left, right)
        return "torch.matmul", lambda: torch.matmul(left, right)
    raise MissingError(f"{name} is not compared with torch")
