"""How long kernels run: launched by pallasc, and by JAX, in one process on the same arrays.

JAX gives no access to its launches, so both are measured alike: many launches one behind the other,
and the time until the last one is done. It is that of the kernel where the GPU is the slower part,
so kernels that take less than some 50 microseconds are left to the figures of events, which only
pallasc has. Both give the same bytes where the cubins are the same; that is said too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from carried import Carried
from jax_way import jitted, why_not
from references import make_inputs

_SHORTEST_US = 50.0


def measure_kernels(
    variants: Sequence[Carried], *, rounds: int, launches: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Return the times of each variant, by events, and one behind the other in both ways."""
    reason = why_not()
    rows = []
    for variant in variants:
        try:
            row = _measure(variant, rounds, launches, with_jax=reason is None)
        except Exception as error:
            row = {"error": f"{type(error).__name__}: {error}"}
        rows.append({"variant": variant.id, **row})
        ratio = row.get("pallasc_to_jax")
        text = row.get("error", "") if ratio is None else f"{ratio:.4f} times JAX's"
        say(f"{row.get('event_us', float('nan')):9.1f} us  {variant.id}  {text}")
    return {"jax": reason or "used", "kernels": rows}


def _measure(
    variant: Carried, rounds: int, launches: int, *, with_jax: bool
) -> dict[str, Any]:
    from pallasc.runtime.adapters.device_arrays import DeviceArray

    inputs = make_inputs(variant)
    kernel = variant.kernel()
    held = {}
    for name, (dtype, shape) in variant.arrays().items():
        held[name] = DeviceArray(shape, dtype)
        held[name].copy_from(inputs[name].view("u1"))
    outs = [DeviceArray(one.shape, one.dtype) for one in kernel.signature.results]
    out = outs[0] if len(outs) == 1 else outs
    events = _by_events(kernel, [*held.values(), *outs], rounds)
    row = {"event_us": statistics.median(events), "least_event_us": min(events)}
    if not with_jax:
        return row
    return {**row, **_against_jax(variant, inputs, kernel, held, out, row, rounds, launches)}


def _by_events(kernel: Any, arrays: Sequence[Any], rounds: int) -> list[float]:
    """Return the microseconds of launches, by the GPU's own clock."""
    from pallasc.runtime.devices import get_device
    from pallasc.runtime.timing import time_launches

    (route,) = [kernel.route(0, kernel.variants[0].arrays)]
    pointers = [array.pointer for array in arrays]
    return time_launches(route, get_device(0), pointers, repeats=max(20, rounds), warmup=5)


def _against_jax(
    variant: Carried,
    inputs: dict[str, Any],
    kernel: Any,
    held: dict[str, Any],
    out: Any,
    row: dict[str, float],
    rounds: int,
    launches: int,
) -> dict[str, Any]:
    """Return what both ways give and take."""
    import jax
    import numpy as np

    function = jitted(variant)
    arrays = {name: jax.device_put(array) for name, array in inputs.items()}
    theirs = np.asarray(function(**arrays))
    kernel.into(**held, out=out)
    found: dict[str, Any] = {"same_bytes": out.to_bytes() == theirs.tobytes()}
    found |= _compare_cubins(variant, arrays)
    if row["event_us"] < _SHORTEST_US:
        return found

    def ours() -> None:
        for _ in range(launches):
            kernel.into(**held, out=out)
        _wait()

    def by_jax() -> None:
        for _ in range(launches):
            last = function(**arrays)
        last.block_until_ready()

    pairs = [(_seconds(ours), _seconds(by_jax)) for _ in range(rounds + 1)][1:]
    found["pallasc_us"] = statistics.median(a for a, _ in pairs) / launches * 1e6
    found["jax_us"] = statistics.median(b for _, b in pairs) / launches * 1e6
    found["pallasc_to_jax"] = statistics.median(a / b for a, b in pairs)
    return found


def _compare_cubins(variant: Carried, arrays: dict[str, Any]) -> dict[str, Any]:
    """Return whether JAX has compiled the same cubins, where its executable can be read."""
    try:
        from pallasc.compiler.executable import parse_executable
        from pallasc.compiler.translate import translate

        compiled = jitted(variant).lower(**arrays).compile()
        found = translate(parse_executable(compiled.runtime_executable().serialize()))
    except Exception as error:
        return {"same_cubins": None, "same_cubins_error": f"{type(error).__name__}: {error}"}
    theirs = {step.cubin for step in found.steps if hasattr(step, "cubin")}
    return {"same_cubins": theirs == {step.cubin for step in variant.opened().plan.launches}}


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _wait() -> None:
    from pallasc.runtime.devices import active, get_device

    with active(get_device(0)) as driver:
        driver.call("cuCtxSynchronize", what="the GPU does not come to rest")
