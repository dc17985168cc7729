"""Call kernels with tensors of torch in every way; print what came of it as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import made
import standin_torch
import torch

from pallasc.errors import PallascError


def message(work: Callable[[], Any]) -> str:
    """Return what an error of ours says, its class first."""
    try:
        work()
    except PallascError as error:
        return f"{type(error).__name__}: {error.message}"
    except Exception as error:
        return f"not ours: {type(error).__name__}: {str(error).splitlines()[0]}"
    return "nothing"


def tensor(value: float, *, device: int = 0) -> Any:
    """Return a CUDA tensor of shape [4, 64] with one value everywhere."""
    return torch.full((4, 64), value, dtype=torch.float32).to(f"cuda:{device}")


def first(one: Any) -> float:
    return float(one.detach().cpu()[0, 0])


def adds(driver: Any) -> Any:
    """Return a kernel that adds."""

    @driver.kernel("three")
    def run(launch: Any) -> None:
        a, b, out = (launch.array(n, "float32", (4, 64)) for n in range(3))
        out[...] = a + b

    return made.kernel(made.add())


def updates(driver: Any) -> Any:
    """Return a kernel that gives a + b, doubles b in place, and gives a - b."""

    @driver.kernel("four")
    def run(launch: Any) -> None:
        a, b, total, difference = (launch.array(n, "float32", (4, 64)) for n in range(4))
        total[...] = a + b
        difference[...] = a - b
        b *= 2

    step = made.launch("four", 0, 1, 2, 3)
    return made.kernel(made.artifact(step, outputs=["f32[4, 64]", "b", "f32[4, 64]"]))


def works(driver: Any) -> dict[str, Any]:
    """Return what calls of all kinds give."""
    kernel, updating = adds(driver), updates(driver)
    a, b = tensor(1), tensor(2)
    found: dict[str, Any] = {}
    for _ in range(2):
        found["parameter"] = first(kernel(torch.nn.Parameter(a), b))
        total, updated, difference = updating(a, c := tensor(2))
        found["updated in place"] = [first(total), first(updated), first(difference), updated is c]
    found["second device"] = [
        str(kernel(tensor(1, device=1), tensor(2, device=1)).device) for _ in range(2)
    ]
    operator = updating.torch_operator("standin::updates")
    found["schema"] = str(operator.default._schema)

    def wrapped(x: Any, y: Any) -> Any:
        total, difference = operator(x, y)
        return total, difference, y

    compiled = torch.compile(wrapped, backend="aot_eager", fullgraph=True)
    found["operator that updates"] = [first(one) for one in compiled(a, tensor(2))]
    with torch.cuda.device(1):
        found["current device elsewhere"] = first(kernel(a, b))
    found["dlpack there and back"] = _through_dlpack(kernel, a, b)
    found["checks of the fake kernel"] = message(lambda: kernel.torch_operator("standin::adds"))
    return found


def _through_dlpack(kernel: Any, a: Any, b: Any) -> list[Any]:
    """Return what torch sees of a device array of ours."""
    from pallasc.runtime.adapters.device_arrays import DeviceArray

    class Foreign:
        def __init__(self, tensor: Any) -> None:
            self.__dlpack__, self.__dlpack_device__ = tensor.__dlpack__, tensor.__dlpack_device__

        __dlpack__: Any = None

    out = kernel(Foreign(a), Foreign(b))
    shared = torch.from_dlpack(out)
    half = torch.from_dlpack(DeviceArray((4, 64), "bf16"))
    return [first(shared), shared.data_ptr() == out.pointer, str(half.dtype)]


def refusals(driver: Any) -> dict[str, str]:
    """Return what is said where a call cannot be."""
    kernel = adds(driver)
    a, b = tensor(1), tensor(2)
    kernel(a, b)
    whole = torch.empty(4 * 64 + 1, device="cuda")
    return {
        "dtype": message(lambda: kernel(a.to(torch.float16), b)),
        "shape": message(lambda: kernel(a[:2], b)),
        "gaps": message(lambda: kernel(torch.empty(4, 128, device="cuda")[:, :64], b)),
        "host": message(lambda: kernel(a.cpu(), b)),
        "all on the host": message(lambda: kernel(a.cpu(), b.cpu())),
        "other device": message(lambda: kernel(a, tensor(2, device=1))),
        "sparse": message(lambda: kernel(torch.eye(4).to_sparse(), b)),
        "meta": message(lambda: kernel(torch.empty(4, 64, device="meta"), b)),
        "misaligned": message(lambda: kernel(whole[1:].view(4, 64), b)).split(" starts at ")[0],
        "overlap": message(lambda: kernel.into(a, b, out=a)),
        "operator name": message(lambda: kernel.torch_operator("adds")),
        "unknown dtype": message(lambda: kernel(torch.empty(4, 64, dtype=torch.complex32), b)),
    }


def main() -> None:
    """Try everything."""
    driver = standin_torch.load()
    print(json.dumps({"works": works(driver), "refusals": refusals(driver)}))


main()
