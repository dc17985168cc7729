"""Call kernels with tensors of any build of torch, whose host memory counts as the device's.

On the stand-in driver that is so. The adapter is torch's own, but for where tensors lie. What came
of it is printed as one JSON object.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import made
import standin
import torch
from torch_calls import message

from pallasc.runtime.adapters.torch_arrays import TorchAdapter
from pallasc.runtime.matching import arrays


class HostAsDevice(TorchAdapter):
    """Torch's adapter for tensors of the host, which lie on device 0."""

    def __init__(self, driver: standin.Standin) -> None:
        super().__init__()
        self._driver = driver

    def dialect(self) -> Any:
        for name in ("_cuda_getCurrentRawStream", "_cuda_getDevice"):
            if not hasattr(torch._C, name):  # a build for the CPU
                setattr(torch._C, name, lambda *_: 0)
        dialect = super().dialect()
        return replace(
            dialect,
            device="-(not {x}.is_cpu)",
            stream="0",
            current_device="0",
            new="_new({shape}, {dtype})",
            values={**dialect.values, "_new": self._empty},
        )

    def view(self, array: Any) -> Any:
        view = super().view(array)
        return view._replace(device=0) if view.device is None else view

    def stream(self, device: int) -> int:
        return 0

    def empty(self, shape: Any, dtype: str, device: int, stream: int | None) -> Any:
        return self._empty(shape, self.dtypes[dtype])

    def _empty(self, shape: Any, dtype: Any) -> Any:
        return adopted(self._driver, torch.zeros(shape, dtype=dtype))


def adopted(driver: standin.Standin, tensor: Any) -> Any:
    """Return a tensor with the same values in memory that the driver knows, 256-aligned."""
    size = tensor.element_size()
    whole = torch.zeros(tensor.numel() + 512 // size, dtype=tensor.dtype)
    driver.adopt(whole)
    offset = -whole.data_ptr() % 256 // size
    part = whole[offset : offset + tensor.numel()].view(tensor.shape)
    part.copy_(tensor)
    return part


def updates(driver: standin.Standin) -> Any:
    """Return a kernel that gives a + b, doubles b in place, and gives a - b."""

    @driver.kernel("four")
    def run(launch: Any) -> None:
        a, b, total, difference = (launch.array(n, "float32", (4, 64)) for n in range(4))
        total[...] = a + b
        difference[...] = a - b
        b *= 2

    step = made.launch("four", 0, 1, 2, 3)
    return made.kernel(made.artifact(step, outputs=["f32[4, 64]", "b", "f32[4, 64]"]))


def first(tensor: Any) -> float:
    return float(tensor.detach().reshape(-1)[0])


def works(driver: standin.Standin) -> dict[str, Any]:
    """Return what calls of all kinds give."""

    def tensor(value: float) -> Any:
        return adopted(driver, torch.full((4, 64), float(value)))

    kernel = updates(driver)
    operator = kernel.torch_operator("host::updates")
    a = tensor(1)
    found: dict[str, Any] = {"schema": str(operator.default._schema)}
    for name, call in (("call", kernel), ("unchecked", kernel.unchecked)):
        for _ in range(3):
            total, updated, difference = call(a, b := tensor(2))
            found[name] = [first(total), first(updated), first(difference), updated is b]
    for _ in range(2):
        out = (tensor(0), b := tensor(2), tensor(0))
        assert kernel.into(a, b, out=out) is out
        found["into"] = [first(array) for array in out]
    total, difference = operator(a, b := tensor(2))
    found["operator"] = [first(total), first(b), first(difference)]
    meta = operator(a.to("meta"), a.to("meta"))
    found["meta"] = [[str(array.device), *array.shape] for array in meta]
    adds = _adds(driver)
    adding = adds.torch_operator("host::compiled")
    compiled = torch.compile(lambda x, y: adding(x, y), backend="aot_eager", fullgraph=True)
    found["compiled"] = first(compiled(a, tensor(2)))
    differentiated = adds.torch_operator("host::adds")
    torch.library.register_autograd("host::adds", lambda ctx, g: (g, g))
    tracked = tensor(1).requires_grad_()
    result = differentiated(tracked, a)
    (gradient,) = torch.autograd.grad(result, tracked, tensor(5))
    found["gradient"] = [first(result), first(gradient)]
    found["half"] = _half(driver)
    return found


def _adds(driver: standin.Standin) -> Any:
    @driver.kernel("three")
    def add(launch: Any) -> None:
        a, b, out = (launch.array(n, "float32", (4, 64)) for n in range(3))
        out[...] = a + b

    return made.kernel(made.add())


def _half(driver: standin.Standin) -> str:
    artifact = made.artifact(
        made.launch("two", 0, 1), inputs={"a": "bf16[256]"}, outputs=["bf16[256]"]
    )
    kernel = made.kernel(artifact)
    for _ in range(2):
        out = kernel(adopted(driver, torch.zeros(256, dtype=torch.bfloat16)))
    return str(out.dtype)


def refusals(driver: standin.Standin) -> dict[str, str]:
    """Return what is said where a call cannot be."""
    kernel = _adds(driver)
    operator = kernel.torch_operator("host::refusing")
    a, b = (adopted(driver, torch.full((4, 64), value)) for value in (1.0, 2.0))
    kernel(a, b)
    return {
        "dtype": message(lambda: kernel(a.to(torch.float16), b)),
        "shape": message(lambda: kernel(a[:2], b)),
        "gaps": message(lambda: kernel(torch.empty(4, 128)[:, :64], b)),
        "vmap": message(lambda: torch.vmap(lambda x: kernel(x, b))(a[None])),
        "vmap of the operator": message(lambda: torch.vmap(lambda x: operator(x, b))(a[None])),
        "fake": message(lambda: _faked(kernel)),
        "sparse": message(lambda: kernel(torch.eye(4).to_sparse(), b)),
        "meta": message(lambda: kernel(torch.empty(4, 64, device="meta"), b)),
        "a byte an element": message(lambda: kernel(torch.empty((4, 64), dtype=torch.int4), b)),
        "operator of another kernel": message(
            lambda: made.kernel(made.add()).torch_operator("host::refusing")
        ),
    }


def _faked(function: Any) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty((4, 64))
        return function(fake, fake)


def unlent(driver: standin.Standin) -> str:
    """Return what is said of tensors of the host by the adapter as it is."""
    kernel = made.kernel(made.add())
    return message(lambda: kernel(torch.zeros(4, 64), torch.zeros(4, 64)))


def main() -> None:
    """Try everything."""
    driver = standin.load()
    driver.reset()
    report = {"unlent": unlent(driver)}
    arrays._by_type[torch.Tensor] = HostAsDevice(driver)
    print(json.dumps({**report, "works": works(driver), "refusals": refusals(driver)}))


if __name__ == "__main__":
    main()
