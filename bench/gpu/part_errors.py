"""What users are told when something goes wrong on a GPU: each error with all of its causes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from desk import Desk, describe, need, need_torch
from units import Unit

TITLE = "errors, with all of their causes"
SHARE = 0.04
AT_ONCE = 1

_NOWHERE = 1 << 46
"""An address at which nothing is."""


def units(folder: Path, machine: Mapping[str, Any], options: Mapping[str, Any]) -> list[Unit]:
    """Return a unit for each mistake."""
    none = {"CUDA_VISIBLE_DEVICES": ""}
    return [
        Unit("errors", name, 60, 4, environment=none if name == "no GPU is visible" else {})
        for name in MISTAKES
    ]


def run(desk: Desk) -> None:
    """Make one mistake; tell what each of its steps raises, or that it raises nothing."""
    for step, work in MISTAKES[desk.name](desk).items():
        desk.ask(step, lambda work=work: {"raised": _raised(work)})


def _raised(work: Callable[[], object]) -> dict[str, Any] | None:
    from desk import MissingError

    try:
        work()
    except MissingError:
        raise
    except BaseException as error:  # noqa: BLE001 - it is what is asked for
        return describe(error)
    return None


Steps = Mapping[str, Callable[[], object]]


def _kernel(desk: Desk) -> Any:
    from part_calls import _open

    return _open(desk)


def _ones(rows: int = 1024, dtype: str = "float32") -> Any:
    import numpy as np

    return np.ones((rows, 4096), dtype)


def wrong_arrays(desk: Desk) -> Steps:
    """Pass arrays that do not fit."""
    kernel, x = _kernel(desk), _ones()
    return {
        "another shape": lambda: kernel(x, _ones(512)),
        "another dtype": lambda: kernel(x, _ones(dtype="float64")),
        "one array less": lambda: kernel(x),
        "no array at all": lambda: kernel(x, "text"),
        "a list": lambda: kernel(x, [1.0]),
    }


def wrong_memory(desk: Desk) -> Steps:
    """Pass memory that does not fit."""
    from pallasc.runtime.adapters.device_arrays import DeviceArray

    kernel, a = _kernel(desk), DeviceArray((1024, 4096), "f32")
    route = kernel.route(0, kernel.variants[0].arrays)
    return {
        "results over an input": lambda: kernel.into(a, a, out=a),
        "misaligned by 16 bytes: the kernel requires multiples of 256": lambda: route.enqueue(
            0, 0, [a.pointer, a.pointer + 16, a.pointer]
        ),
        "a stream that is none": lambda: kernel.into(a, a, out=a, stream="text"),
        "another device": lambda: DeviceArray((16,), "f32", 99),
        "more memory than there is": lambda: DeviceArray((1 << 44,), "u8"),
    }


def wrong_tensors(desk: Desk) -> Steps:
    """Pass tensors of torch that do not fit."""
    kernel = _kernel(desk)

    def tensor(*shape: int, device: str = "cuda") -> Any:
        return need_torch().ones(shape, device=device)

    return {
        "on the CPU": lambda: kernel(tensor(1024, 4096), tensor(1024, 4096, device="cpu")),
        "with gaps": lambda: kernel(tensor(1024, 4096), tensor(4096, 1024).t()),
        "a view that is misaligned": lambda: kernel(
            tensor(1024, 4096), tensor(1024 * 4096 + 4)[4:].view(1024, 4096)
        ),
        "with a gradient, under torch.compile": lambda: need_torch().compile(
            lambda x: kernel(x, x), backend="aot_eager", fullgraph=True
        )(tensor(1024, 4096)),
    }


def inside_jax(desk: Desk) -> Steps:
    """Make mistakes in functions that JAX traces and runs."""
    kernel = _kernel(desk)

    def ones(rows: int = 1024) -> Any:
        return need("jax").numpy.ones((rows, 4096), "float32")

    return {
        "another shape": lambda: need("jax").jit(kernel)(ones(), ones(512)),
        "vmap": lambda: need("jax").vmap(kernel)(ones()[None], ones()[None]),
        "a derivative": lambda: need("jax").grad(lambda x: kernel(x, x).sum())(ones()),
        "out": lambda: kernel.into(ones(), ones(), out=ones()),
    }


def unloaded_capture(desk: Desk) -> Steps:
    """Capture a kernel that is not loaded."""
    from arrays import device_arrays, results

    from pallasc.runtime.device.devices import active, get_device

    kernel = _kernel(desk)
    held, out = device_arrays({"x": _ones(), "y": _ones()}), results(kernel)

    def capture() -> None:
        with active(get_device(0)) as driver:
            stream = driver.call("cuStreamCreate", 1, what="a stream")
            mode = driver.bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
            driver.call("cuStreamBeginCapture", stream, mode, what="a capture")
            kernel.into(**held, out=out, stream=int(stream))

    return {"a launch": capture}


def illegal_address(desk: Desk) -> Steps:
    """Let a kernel write where nothing is; ask again and again afterwards."""
    from launching import wait

    from pallasc.runtime.adapters.device_arrays import DeviceArray

    kernel, a = _kernel(desk), DeviceArray((1024, 4096), "f32")
    route = kernel.route(0, kernel.variants[0].arrays)
    x = _ones()
    return {
        "the launch": lambda: route.enqueue(0, 0, [a.pointer, a.pointer, _NOWHERE]),
        "waiting for it": wait,
        "the next call": lambda: kernel(x, x),
        "reading an array": a.to_bytes,
        "another kernel's loading": lambda: _kernel(desk).preload(),
    }


def after_a_fork(desk: Desk) -> Steps:
    """Call in the child of a fork."""
    kernel, x = _kernel(desk), _ones()
    kernel(x, x)

    def child() -> None:
        reader, writer = os.pipe()
        if (pid := os.fork()) == 0:
            try:
                kernel(x, x)
                text = "nothing"
            except BaseException as error:  # noqa: BLE001 - the parent tells it
                text = f"{type(error).__name__}: {error}"
            os.write(writer, text.encode())
            os._exit(0)
        os.close(writer)
        os.waitpid(pid, 0)
        with os.fdopen(reader) as said:
            raise RuntimeError(said.read())

    return {"a call": child}


def no_gpu(desk: Desk) -> Steps:
    """Call where no GPU is visible."""
    kernel, x = _kernel(desk), _ones()
    return {"preload": kernel.preload, "a call": lambda: kernel(x, x)}


MISTAKES: Mapping[str, Callable[[Desk], Steps]] = {
    "arrays that do not fit": wrong_arrays,
    "memory that does not fit": wrong_memory,
    "tensors that do not fit": wrong_tensors,
    "inside JAX": inside_jax,
    "a capture of what is not loaded": unloaded_capture,
    "an illegal address": illegal_address,
    "after a fork": after_a_fork,
    "no GPU is visible": no_gpu,
}
