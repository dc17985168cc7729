"""How long kernels run, warm and with a cold L2 cache: by pallasc, JAX's jit, and torch.

Times are those of events around launches; JAX's, which launches into a stream of its own, those of
its profiler (CUPTI), which is asked for ours too. Kernels long enough that the GPU is the slower
part are timed many in a row as well, in both ways, which needs no tool. Whether both gave the same
bytes, and whether JAX has compiled the same instructions, is told too: only then must times agree.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from carried import Carried, is_asked, read_variants, why_not
from desk import Desk, MissingError, need_torch
from machine import clocks
from units import Unit

TITLE = "kernel times, warm and cold, against JAX's jit and torch"
SHARE = 0.28
AT_ONCE = 1

PEAKS = "peaks"
_COPIED_BYTES = 1 << 29
_WARMUP = 25
_SHORTEST_US = 50.0
_P90 = 0.9

Row = dict[str, Any]


def units(folder: Path, machine: Mapping[str, Any], options: Mapping[str, Any]) -> list[Unit]:
    """Return one for what the GPU can do at the most, and one for each kernel that runs here."""
    chosen = [
        variant
        for variant in read_variants(folder)
        if is_asked(variant, options) and why_not(variant, *machine["capability"]) is None
    ]
    return [Unit("times", PEAKS), *(Unit("times", variant.id, 120, 10) for variant in chosen)]


def run(desk: Desk) -> None:
    """Time the machine itself, or one kernel."""
    if desk.name == PEAKS:
        desk.ask("copy", lambda: copy_peak(desk))
        for dtype in ("float16", "bfloat16"):
            desk.ask(f"matmul {dtype}", lambda dtype=dtype: matmul_peak(desk, dtype))
        return
    timed = Timed(desk.variant(desk.name), desk.options)
    desk.ask("clocks", timed.ramp)
    desk.ask("pallasc", timed.ours)
    desk.ask("JAX, same code", timed.same_code)
    desk.ask("JAX, same bytes", timed.same_bytes)
    desk.ask("JAX, by its profiler", timed.profiled)
    desk.ask("JAX, many in a row", timed.in_a_row)
    desk.ask("torch", timed.torch)
    desk.ask("clocks after", lambda: {"clocks": clocks(timed.busy)})


def spread(times_us: Sequence[float]) -> Row:
    """Return what is kept of the times of single launches."""
    ordered = sorted(times_us)
    return {
        "median_us": statistics.median(ordered),
        "min_us": ordered[0],
        "p90_us": ordered[math.ceil(_P90 * len(ordered)) - 1],
        "repeats": len(ordered),
    }


def copy_peak(desk: Desk) -> Row:
    """Return the bytes that a large copy reads and writes, by the second."""
    from pallasc.runtime.adapters.device_arrays import DeviceArray
    from pallasc.runtime.device.devices import get_device, open_driver
    from pallasc.runtime.timing import Work, time_calls

    size_bytes = desk.options["copied_bytes"] or _COPIED_BYTES
    driver, repeats = open_driver(), min(20, desk.options["repeats"])
    source, target = (DeviceArray((size_bytes,), "u8") for _ in range(2))

    def copy() -> None:
        driver.call("cuMemcpyDtoDAsync", target.pointer, source.pointer, size_bytes, 0, what="copy")

    work = Work(copy, "a copy")
    found = spread(time_calls(work, get_device(0), repeats=repeats, warmup=5))
    return {**found, "gb_per_s": 2 * size_bytes / found["median_us"] / 1e3, "bytes": size_bytes}


def matmul_peak(desk: Desk, dtype: str) -> Row:
    """Return the rate of a large product of torch, of random numbers."""
    torch = need_torch()
    n = desk.options["peak_n"]
    a, b = (torch.randn(n, n, device="cuda").to(getattr(torch, dtype)) for _ in range(2))
    found = spread(
        torch_times(lambda: torch.matmul(a, b), repeats=min(20, desk.options["repeats"]))
    )
    return {**found, "tflop_per_s": 2 * n**3 / found["median_us"] / 1e6, "n": n}


def torch_times(call: Callable[[], Any], *, repeats: int, cold: bool = False) -> list[float]:
    """Return the times of calls of torch, which is on the default stream."""
    from pallasc.runtime.device.devices import get_device
    from pallasc.runtime.timing import Work, time_calls

    work, warmup = Work(call, "torch"), min(_WARMUP, repeats)
    return time_calls(work, get_device(0), repeats=repeats, warmup=warmup, cold=cold)


class Timed:
    """A kernel with arrays, ready to be launched in all ways."""

    def __init__(self, variant: Carried, options: Mapping[str, Any]) -> None:
        from arrays import device_arrays, results
        from references import make_inputs

        self._variant, self._options = variant, options
        self._inputs = make_inputs(variant)
        self._kernel = variant.kernel()
        self._held = device_arrays(self._inputs)
        self._out = results(self._kernel)

    def busy(self) -> None:
        """Launch some times, and wait."""
        self._ours(10)

    def ramp(self) -> Row:
        """Launch until the clocks have had the time to rise; return them."""
        until = time.monotonic() + self._options["ramp_s"]
        while time.monotonic() < until:
            self.busy()
        return {"clocks": clocks(self.busy)}

    def ours(self) -> Row:
        """Return our times by events, with what a launch moves and computes."""
        from arrays import moved_bytes
        from work import flop

        return {
            "warm": spread(self._events(cold=False)),
            "cold": spread(self._events(cold=True)),
            "moved_bytes": moved_bytes(self._variant),
            "flop": flop(self._variant),
        }

    def _events(self, *, cold: bool) -> list[float]:
        from pallasc.runtime.device.devices import get_device
        from pallasc.runtime.timing import time_launches

        route = self._kernel.route(0, self._kernel.variants[0].arrays)
        pointers = [array.pointer for array in (*self._held.values(), self._out)]
        repeats = self._options["repeats"]
        device = get_device(0)
        return time_launches(
            route, device, pointers, repeats=repeats, warmup=min(_WARMUP, repeats), cold=cold
        )

    def torch(self) -> Row:
        """Return the times of what torch has for the same."""
        from arrays import to_torch
        from work import torch_rival

        need_torch()
        name, call = torch_rival(self._variant, to_torch(self._inputs))
        repeats = self._options["repeats"]
        return {
            "operation": name,
            "warm": spread(torch_times(call, repeats=repeats)),
            "cold": spread(torch_times(call, repeats=repeats, cold=True)),
        }

    # ---- JAX

    @cached_property
    def _jax(self) -> tuple[Any, dict[str, Any]]:
        """Return the function as JAX compiles it, and arrays for it."""
        from jax_way import jitted, why_not

        if reason := why_not():
            raise MissingError(reason)
        import jax

        arrays = {name: jax.device_put(array) for name, array in self._inputs.items()}
        return jitted(self._variant), arrays

    def _theirs(self, launches: int, before: Callable[[], object] = lambda: None) -> None:
        function, arrays = self._jax
        for _ in range(launches):
            before()
            last = function(**arrays)
        last.block_until_ready()

    def _ours(self, launches: int, before: Callable[[], object] = lambda: None) -> None:
        from launching import wait

        for _ in range(launches):
            before()
            self._kernel.into(**self._held, out=self._out)
        wait()

    def same_code(self) -> Row:
        """Return whether JAX has compiled the same instructions."""
        from jax_way import compare_code

        function, arrays = self._jax
        return compare_code(self._variant, function, arrays)

    def same_bytes(self) -> Row:
        """Return whether JAX's result is the same."""
        import numpy as np

        function, arrays = self._jax
        theirs = np.asarray(function(**arrays))
        self._ours(1)
        return {"same": self._out.to_bytes() == theirs.tobytes()}

    def profiled(self) -> Row:
        """Return times of the kernels alone, as JAX's profiler sees ours and JAX's own."""
        from jax_way import Profiler, flusher

        warmup = min(_WARMUP, self._options["repeats"])
        self._theirs(warmup)
        self._ours(warmup)
        profiler = Profiler(self._options["repeats"])
        found: Row = {}
        # Each in the stream of its launches: between streams nothing is in order.
        ways = (("pallasc", self._ours, _flusher()), ("jax", self._theirs, flusher()))
        for way, work, flush in ways:
            names, times = profiler.measure(work)
            found[way] = {"warm": spread(times), "kernels": sorted(names)}
            found[way]["cold"] = spread(profiler.measure(work, flush, names)[1])
        warm = [found[way]["warm"]["median_us"] for way in ("pallasc", "jax")]
        return {**found, "pallasc_to_jax": warm[0] / warm[1]}

    def in_a_row(self) -> Row:
        """Return times of launches in a row, where the GPU is the slower part."""
        self._theirs(1)
        if (least_us := min(self._events(cold=False))) < _SHORTEST_US:
            raise MissingError(f"one launch takes {least_us:.1f} us: this process is slower")
        rounds, launches = self._options["rounds"], self._options["launches"]
        pairs = [
            (_seconds(lambda: self._ours(launches)), _seconds(lambda: self._theirs(launches)))
            for _ in range(rounds + 1)
        ][1:]
        return {
            "pallasc_us": statistics.median(a for a, _ in pairs) / launches * 1e6,
            "jax_us": statistics.median(b for _, b in pairs) / launches * 1e6,
            "pallasc_to_jax": statistics.median(a / b for a, b in pairs),
        }


def _flusher() -> Callable[[], object]:
    """Return what writes more than the L2 cache holds, in the default stream."""
    from jax_way import FLUSH_BYTES

    from pallasc.runtime.adapters.device_arrays import DeviceArray
    from pallasc.runtime.device.devices import open_driver

    driver, memory = open_driver(), DeviceArray((FLUSH_BYTES,), "u8")

    def flush() -> None:
        place = (memory.pointer, 0, memory.nbytes, 0)
        driver.call("cuMemsetD8Async", *place, what="the L2 cache cannot be emptied")

    return flush


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
