"""Time launches with arrays of each framework in this process, which has the stand-in driver.

Usage: launch_frameworks_here.py ROUNDS. Standard output gets one JSON list of name, value and unit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import foreign
import made
import pytest
from launch_here import Timer, raw

from pallasc.runtime.adapters import jax_handlers
from pallasc.runtime.adapters.device_arrays import DeviceArray
from pallasc.runtime.device.devices import get_device, open_driver

TEXT = "f32[4, 64]"
WAYS = ("handler", "callback")
LAUNCHES = 33
"""In the longer of two programs, whose difference is what launches cost and JAX's call does not."""


class ReadyDlpack:
    """An array whose capsule is made once: it is not consumed."""

    def __init__(self, tensor: made.Tensor) -> None:
        self._array = foreign.DlpackArray(tensor, version=(1, 0))
        self._capsule = self._array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None) -> Any:
        return self._capsule


def kernel() -> Any:
    """Return a kernel over four arrays."""
    inputs = dict.fromkeys("abc", TEXT)
    return made.kernel(made.artifact(made.launch("four", 0, 1, 2, 3), inputs=inputs))


def sources(patch: pytest.MonkeyPatch) -> dict[str, Callable[[], Any]]:
    """Return what makes an array of each kind."""
    framework = made.install()
    cupy = foreign.install_cupy(framework, patch)
    return {
        "cupy": lambda: cupy.array(TEXT),
        "__cuda_array_interface__": lambda: foreign.CudaArray(framework.tensor(TEXT)),
        "dlpack": lambda: ReadyDlpack(framework.tensor(TEXT)),
        "device array": lambda: DeviceArray((4, 64), "f32"),
    }


def given(timer: Timer, name: str, arrays: list[Any]) -> Any:
    """Time a launch into given memory."""
    launcher = kernel()
    a, b, c, out = arrays
    launcher.into(a, b, c, out=out)
    timer.add(name, lambda: launcher.into(a, b, c, out=out), every=4)
    return launcher


def frameworks(timer: Timer, make: dict[str, Callable[[], Any]]) -> None:
    """Time arrays of one kind, then arrays of all kinds in one call."""
    for name, new in make.items():
        arrays = [new() for _ in range(4)]
        launcher = given(timer, name, arrays)
        a, b, c, _ = arrays
        timer.add(f"{name}, allocating", lambda k=launcher, a=a, b=b, c=c: k(a, b, c), every=8)
    launcher = given(timer, "one of each kind", [new() for new in make.values()])
    timer.add("raw", raw(launcher))


def copied(timer: Timer) -> None:
    """Time arrays of numpy."""
    import numpy as np

    launcher = kernel()
    a, b, c, out = (np.ones((4, 64), np.float32) for _ in range(4))
    timer.add("numpy, copied", lambda: launcher.into(a, b, c, out=out), every=20)


def programs(timer: Timer) -> None:
    """Time programs of JAX with one launch and with many, by the handler and by the callback."""
    try:
        import jax
        import jax.numpy as jnp
    except ImportError as error:
        print(f"JAX: {error}", file=sys.stderr)
        return
    array = jnp.ones((4, 64), jnp.float32)
    for way in WAYS:
        with pytest.MonkeyPatch.context() as patch:
            if way == "callback":
                patch.setattr(jax_handlers, "handler", lambda *_: None)
            for launches in (1, LAUNCHES):
                function = jax.jit(partial(chain, kernel(), launches))
                function(array)  # traced while the way is chosen
                name, every = f"JAX, {way}, {launches}", 20 if launches == 1 else 40
                timer.add(name, lambda f=function: f(array).block_until_ready(), every=every)


def chain(launcher: Any, launches: int, x: Any) -> Any:
    """Launch so many times, each time with the result of the time before."""
    for _ in range(launches):
        x = launcher(x, x, x)
    return x


def a_launch(found: dict[str, float]) -> list[tuple[str, float, str]]:
    """Return what one launch more costs a program, by either way."""
    ends = [
        [found.pop(f"JAX, {way}, {launches}", None) for launches in (1, LAUNCHES)] for way in WAYS
    ]
    if None in ends[0]:
        return []
    handler, callback = ((many - one) / (LAUNCHES - 1) for one, many in ends)
    return [
        ("JAX inside jit, copied: a program of one launch", ends[0][0], "ns"),
        ("JAX inside jit, copied: a launch more, handler", handler, "ns"),
        ("JAX inside jit, copied: a launch more, callback", callback, "ns"),
        ("JAX inside jit, handler / callback", handler / callback, ""),
    ]


def main() -> None:
    """Time everything and print it."""
    timer = Timer(int(sys.argv[1]))
    patch = pytest.MonkeyPatch()
    make = sources(patch)
    # A framework of the process has made the context current.
    open_driver().bindings.cuCtxSetCurrent(get_device(0).context)
    frameworks(timer, make)
    copied(timer)
    programs(timer)
    found = timer.run()
    inside_jit = a_launch(found)
    rows: list[tuple[str, float, str]] = [(name, value, "ns") for name, value in found.items()]
    rows += [(f"{name} / raw", found[name] / found["raw"], "") for name in found if name != "raw"]
    rows += inside_jit
    patch.undo()
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
