"""How long kernels run: launched by pallasc, and by JAX, in one process, on the same numbers.

Times are those of events around pallasc's launches; where JAX's own profiler (CUPTI) works, those
that it gives for both; and, for kernels long enough that the GPU is the slower part, the time of
many launches one behind the other, in both ways, which needs no tool. Whether both gave the same
bytes, and whether JAX has compiled the same code, is said too: only then the times must be equal.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from carried import Carried
from jax_way import jitted, why_not
from references import make_inputs

_SHORTEST_US = 50.0
_AT_A_TIME = 10

Row = dict[str, Any]


def measure_kernels(
    variants: Sequence[Carried], *, rounds: int, launches: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Return the times of each variant in all ways that there are here."""
    reason = why_not()
    rows = []
    for variant in variants:
        try:
            row = Pair(variant).measure(rounds, launches, with_jax=reason is None)
        except Exception as error:  # noqa: BLE001 - it belongs into the report
            row = {"error": f"{type(error).__name__}: {error}"}
        rows.append({"variant": variant.id, **row})
        say(_line(variant, row))
    return {"jax": reason or "used", "kernels": rows}


def _line(variant: Carried, row: Row) -> str:
    ratios = [f"{row[name]:.3f} {name}" for name in sorted(row) if name.startswith("pallasc_to")]
    text = row.get("error", ", ".join(ratios))
    return f"{row.get('event_us', float('nan')):9.1f} us  {variant.id}  {text}"


@dataclass
class Pair:
    """A kernel with arrays, ready to be launched in both ways."""

    variant: Carried

    def __post_init__(self) -> None:
        from pallasc.runtime.adapters.device_arrays import DeviceArray

        self.inputs = make_inputs(self.variant)
        self.kernel = self.variant.kernel()
        self.held = {}
        for name, (dtype, shape) in self.variant.arrays().items():
            self.held[name] = DeviceArray(shape, dtype)
            self.held[name].copy_from(self.inputs[name].view("u1"))
        (self.out,) = (DeviceArray(one.shape, one.dtype) for one in self.kernel.signature.results)

    def measure(self, rounds: int, launches: int, *, with_jax: bool) -> Row:
        """Return all figures."""
        events = self._by_events(rounds)
        row: Row = {"event_us": statistics.median(events), "least_event_us": min(events)}
        if not with_jax:
            return row
        self._prepare_jax()
        row |= self._compare_results() | _compare_code(self.variant, self.arrays)
        try:
            row |= self._by_profiler(rounds)
        except Exception as error:  # noqa: BLE001 - it belongs into the report
            row["profiler_error"] = f"{type(error).__name__}: {error}"
        if row["event_us"] >= _SHORTEST_US:
            row |= self._one_behind_the_other(rounds, launches)
        return row

    def _by_events(self, rounds: int) -> list[float]:
        """Return the microseconds of launches, by the GPU's own clock."""
        from pallasc.runtime.devices import get_device
        from pallasc.runtime.timing import time_launches

        route = self.kernel.route(0, self.kernel.variants[0].arrays)
        pointers = [array.pointer for array in (*self.held.values(), self.out)]
        return time_launches(route, get_device(0), pointers, repeats=max(20, rounds), warmup=5)

    def _prepare_jax(self) -> None:
        import jax

        self.function = jitted(self.variant)
        self.arrays = {name: jax.device_put(array) for name, array in self.inputs.items()}

    def _compare_results(self) -> Row:
        import numpy as np

        theirs = np.asarray(self.function(**self.arrays))
        self.kernel.into(**self.held, out=self.out)
        return {"same_bytes": self.out.to_bytes() == theirs.tobytes()}

    def _ours(self, launches: int) -> None:
        for _ in range(launches):
            self.kernel.into(**self.held, out=self.out)
        _wait()

    def _theirs(self, launches: int) -> None:
        for _ in range(launches):
            last = self.function(**self.arrays)
        last.block_until_ready()

    def _by_profiler(self, rounds: int) -> Row:
        """Return the times of the kernels alone, as JAX's profiler sees them."""
        found: dict[str, list[float]] = {"pallasc": [], "jax": []}
        for _ in range(rounds):
            found["pallasc"].append(_profiled(lambda: self._ours(_AT_A_TIME)))
            found["jax"].append(_profiled(lambda: self._theirs(_AT_A_TIME)))
        pairs = zip(found["pallasc"], found["jax"], strict=True)
        return {
            "profiler_pallasc_us": statistics.median(found["pallasc"]),
            "profiler_jax_us": statistics.median(found["jax"]),
            "pallasc_to_jax_by_profiler": statistics.median(a / b for a, b in pairs),
        }

    def _one_behind_the_other(self, rounds: int, launches: int) -> Row:
        times = [
            (_seconds(lambda: self._ours(launches)), _seconds(lambda: self._theirs(launches)))
            for _ in range(rounds + 1)
        ][1:]
        return {
            "row_pallasc_us": statistics.median(a for a, _ in times) / launches * 1e6,
            "row_jax_us": statistics.median(b for _, b in times) / launches * 1e6,
            "pallasc_to_jax_in_a_row": statistics.median(a / b for a, b in times),
        }


def _profiled(work: Callable[[], None]) -> float:
    """Return the median microseconds of the kernels that run meanwhile."""
    from jax._src.lib import mosaic_gpu

    extension = mosaic_gpu._mosaic_gpu_ext
    extension._cupti_init()
    try:
        work()
    finally:
        timings = extension._cupti_get_timings(True)
    return statistics.median(1000 * milliseconds for _, milliseconds in timings)


def _compare_code(variant: Carried, arrays: dict[str, Any]) -> Row:
    """Return whether JAX has compiled the same instructions, where its executable can be read."""
    try:
        compiled = jitted(variant).lower(**arrays).compile()
        theirs = _cubins(compiled.runtime_executable().serialize())
    except Exception as error:  # noqa: BLE001 - it belongs into the report
        return {"same_code": None, "same_code_error": f"{type(error).__name__}: {error}"}
    artifact = variant.opened()
    ours = [artifact.blob(launch.cubin) for launch in artifact.plan.launches]
    return {"same_cubins": ours == theirs, "same_code": _code(ours) == _code(theirs)}


def _cubins(executable: bytes) -> list[bytes]:
    """Return the cubins of the Mosaic kernels in a serialised executable of JAX 0.11 or later."""
    from pallasc.compiler.executable import parse_executable
    from pallasc.compiler.xla_schema import message_type

    kind = message_type("MosaicGpuKernelProto")
    calls = [one.custom_call_thunk for one in parse_executable(executable).thunks]
    return [kind.FromString(call.execution_state.state).gpu_binary for call in calls]


def _code(cubins: Sequence[bytes]) -> list[list[bytes]]:
    """Return the instructions in cubins, without names, tables of lines and the like."""
    from pallasc.specs.elf import parse_elf

    return [
        [one.content for one in parse_elf(data).sections if one.name.startswith(".text.")]
        for data in cubins
    ]


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _wait() -> None:
    from pallasc.runtime.devices import active, get_device

    with active(get_device(0)) as driver:
        driver.call("cuCtxSynchronize", what="the GPU does not come to rest")
