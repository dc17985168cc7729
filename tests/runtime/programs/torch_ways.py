"""Call kernels with tensors of torch in every way; print what came of it as one JSON object."""

from __future__ import annotations

import json
from typing import Any

import made
import standin_torch
import torch
from standin import Standin
from torch_calls import message

from pallasc.runtime.calls.native_path import TRACED, skip_frames
from pallasc.runtime.opening import Kernels


def tensor(value: float, *, device: int = 0) -> Any:
    """Return a CUDA tensor of shape [4, 64] with one value everywhere."""
    return torch.full((4, 64), value, dtype=torch.float32).to(f"cuda:{device}")


def first(array: Any) -> float:
    return float(array.detach().cpu()[0, 0])


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
    found["operator that updates"] = [first(array) for array in compiled(a, tensor(2))]
    with torch.cuda.device(1):
        found["current device elsewhere"] = first(kernel(a, b))
    found["dlpack there and back"] = _through_dlpack(kernel, a, b)
    found["checks of the fake kernel"] = message(lambda: kernel.torch_operator("standin::adds"))
    found.update(_kinds_of_tensors(kernel, a, b))
    found.update(_gradients(kernel, a, b))
    found.update(_optional(driver, a, b))
    found["streams"] = _streams(driver, kernel, a, b)
    found["memory of streams"] = _memory_of_streams(driver, kernel, a, b)
    found["writes are counted"] = _versions(kernel, updating, a, b)
    found["backward notices a write"] = _noticed(kernel, a, b)
    return found


def _versions(kernel: Any, updating: Any, a: Any, b: Any) -> list[int]:
    """Return by how much calls move the version counters of what they write, and of an input."""
    out, updated = tensor(0), tensor(2)
    found = []
    for variant in (kernel, kernel.unchecked):
        for _ in range(3):  # slow, then through generated code
            before = out._version, a._version
            variant.into(a, b, out=out)
            found += [out._version - before[0], a._version - before[1]]
    for _ in range(2):
        before = updated._version
        updating(a, updated)
        found.append(updated._version - before)
    with torch.inference_mode():
        inference = torch.empty_like(out)
        for _ in range(2):
            kernel.into(a, b, out=inference)
    return found


def _noticed(kernel: Any, a: Any, b: Any) -> str:
    """Return what backward says where a tensor that it needs was written by a kernel."""
    tracked = tensor(1).requires_grad_()
    middle = tracked * 2
    square = middle**2
    kernel.into(a, b, out=middle)
    return message(lambda: square.sum().backward()).partition(":")[2].split("[")[0].strip()


def _optional(driver: Any, a: Any, b: Any) -> dict[str, Any]:
    """Return what comes of a kernel whose bias is None in one variant, and of its operator."""

    @driver.kernel("two")
    def copy(launch: Any) -> None:
        launch.array(1, "float32", (4, 64))[...] = launch.array(0, "float32", (4, 64))

    text = "f32[4, 64]"
    tree = {"a": 0, "bias": None}
    without = made.artifact(made.launch("two", 0, 1), inputs={"a": text}, input_tree=tree)
    having = made.artifact(made.launch("three", 0, 1, 2), inputs={"a": text, "bias": text})
    kernel = Kernels([("k", {"bias": None}, without), ("k", {"bias": text}, having)])["k"]
    operator = kernel.torch_operator("standin::optional")
    compiled = torch.compile(lambda x, y: operator(x, y), backend="aot_eager", fullgraph=True)
    ways = {
        "call": lambda: [kernel(a), kernel(a, None), kernel(a, bias=b)],
        "operator": lambda: [operator(a), operator(a, None), operator(a, bias=b)],
        "compiled": lambda: [compiled(a, None), compiled(a, b)],
    }
    return {
        "schema of an optional tensor": str(operator.default._schema),
        **{f"{name} without and with": [first(x) for x in way()] for name, way in ways.items()},
        **{f"{name} again": [first(x) for x in way()] for name, way in ways.items()},
    }


def _kinds_of_tensors(kernel: Any, a: Any, b: Any) -> dict[str, Any]:
    """Return what comes of tensors that are not plain ones, and of torch's modes."""
    operator = kernel.torch_operator("standin::adds")
    assert kernel.torch_operator("standin::adds") is operator
    with torch.inference_mode():
        inference = [first(kernel(a, b)), first(operator(a, b))]
    mixed = torch.compile(lambda x, y: kernel(x, y) * 1, backend="eager")
    small = made.artifact(
        made.launch("two", 0, 1), inputs={"a": "f8e5m2[256]"}, outputs=["f8e5m2[256]"]
    )
    eighths = made.kernel(small)
    float8 = torch.zeros(256, dtype=torch.float8_e5m2).cuda()
    meta = operator(a.to("meta"), b.to("meta"))
    return {
        "inference mode": inference,
        "subclass": type(kernel(a.as_subclass(type("Sub", (torch.Tensor,), {})), b)).__name__,
        "compiled around the kernel itself": tuple(mixed(a, b).shape),
        "looked into when compiled": _looked_into(a, b),
        "without a break": _without_a_break(a, b),
        "float8": [str(eighths(float8).dtype) for _ in range(3)][2],
        "meta through the operator": [str(meta.device), *meta.shape],
    }


def _looked_into(a: Any, b: Any) -> int:
    """Return how many functions torch.compile looks into around the first calls of a kernel."""
    from torch._dynamo.utils import counters

    skip_frames([Standin._run])  # what the stand-in does is not the kernel's
    kernel = made.kernel(made.add())
    before = counters["frames"]["total"]
    call = torch.compile(lambda x, y: kernel(x, y), backend="eager")
    into = torch.compile(lambda x, y, out: kernel.into(x, y, out=out), backend="eager")
    for _ in range(3):
        call(a, b)
    for _ in range(3):
        into(a, b, torch.empty_like(a))
    found: int = counters["frames"]["total"] - before
    return found


def _without_a_break(a: Any, b: Any) -> bool:
    """Tell whether torch.compile says what to do where a graph may not end."""
    kernel = made.kernel(made.add())
    whole = torch.compile(lambda x, y: kernel(x, y), backend="eager", fullgraph=True)
    try:
        whole(a, b)
    except torch._dynamo.exc.Unsupported as error:
        return TRACED in str(error)
    return False


def _gradients(kernel: Any, a: Any, b: Any) -> dict[str, Any]:
    """Return what becomes of gradients: nothing in a call, the user's formula in an operator."""
    tracked = tensor(1).requires_grad_()
    operator = made.kernel(made.add()).torch_operator("standin::differentiated")
    torch.library.register_autograd("standin::differentiated", lambda ctx, g: (g, g))
    result = operator(tracked, b)
    (gradient,) = torch.autograd.grad(result, tracked, tensor(5))
    return {
        "a call records no gradient": kernel(tracked, b).requires_grad,
        "gradient of an operator": [result.requires_grad, first(gradient)],
    }


def _streams(driver: Any, kernel: Any, a: Any, b: Any) -> list[bool]:
    """Return whether launches went to the current stream, in both ways of calling."""
    side = torch.cuda.Stream()
    found = []
    for _ in range(2):
        with torch.cuda.stream(side):
            kernel(a, b)
            kernel.into(a, b, out=torch.empty_like(a))
        found += [launch.stream == side.cuda_stream for launch in driver.launches[-2:]]
        kernel(a, b)
        found.append(driver.launches[-1].stream == 0)
    return found


def _memory_of_streams(driver: Any, kernel: Any, a: Any, b: Any) -> list[list[Any]]:
    """Return of calls with a stream: is the launch in it, the memory of it, all else as before?"""
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    found = []
    for stream in (None, side, side.cuda_stream, 0, 1):
        result = kernel(a, b, stream=stream)
        handle = getattr(stream, "cuda_stream", stream) or 0
        memory = 0 if handle == 1 else handle
        unchanged = (torch.cuda.current_stream().cuda_stream, torch.cuda.current_device())
        found.append(
            [
                driver.launches[-1].stream == handle,
                memory == (0 if handle == 1 else handle),
                *unchanged,
            ]
        )
    with torch.cuda.stream(other):
        result = kernel(a, b, stream=side)
        found.append([torch.cuda.current_stream() == other, _stream_of(result) == side.cuda_stream])
    far = torch.cuda.Stream(1)
    for _ in range(3):
        result = kernel(tensor(1, device=1), tensor(2, device=1), stream=far)
        found.append([_stream_of(result) == far.cuda_stream, torch.cuda.current_device()])
    return found


def _stream_of(array: Any) -> int:
    """Return the stream that torch's allocator took the memory of a tensor for."""
    at, device = array.data_ptr(), array.device.index
    (stream,) = (
        segment["stream"]
        for segment in torch.cuda.memory_snapshot()
        if segment["device"] == device
        and segment["address"] <= at < segment["address"] + segment["total_size"]
    )
    return int(stream)


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
    operator = kernel.torch_operator("standin::refusing")
    updating = updates(driver).torch_operator("standin::refusing_updates")
    scalar = made.kernel(
        made.artifact(made.launch("two", 0, 1), inputs={"a": "f32[1]"}, outputs=["f32[1]"])
    )
    scalar(torch.ones(1, device="cuda"))
    imaginary = torch.ones(1, dtype=torch.complex64).cuda().conj().imag
    assert imaginary.is_neg()
    assert imaginary.is_contiguous()
    return {
        "dtype": message(lambda: kernel(a.to(torch.float16), b)),
        "shape": message(lambda: kernel(a[:2], b)),
        "gaps": message(lambda: kernel(torch.empty(4, 128, device="cuda")[:, :64], b)),
        "host": message(lambda: kernel(a.cpu(), b)),
        "all on the host": message(lambda: kernel(a.cpu(), b.cpu())),
        "other device": message(lambda: kernel(a, tensor(2, device=1))),
        "sparse": message(lambda: kernel(torch.zeros(4, 64).to_sparse(), b)),
        "meta": message(lambda: kernel(torch.empty(4, 64, device="meta"), b)),
        "misaligned": message(lambda: kernel(whole[1:].view(4, 64), b)).split(" starts at ")[0],
        "overlap": message(lambda: kernel.into(a, b, out=a)),
        "stream": message(lambda: kernel(a, b, stream=12345)),
        "operator name": message(lambda: kernel.torch_operator("adds")),
        "negated": message(lambda: scalar(imaginary)),
        "compressed": message(lambda: kernel(torch.zeros(4, 64).to_sparse_csr(), b)),
        "nested": message(
            lambda: kernel(torch.nested.nested_tensor([torch.ones(3), torch.ones(2)]), b)
        ),
        "a byte an element": message(
            lambda: kernel(torch.empty((4, 64), dtype=torch.int4, device="cuda"), b)
        ),
        "shape instead": message(lambda: kernel(a.shape, b)),
        "storage instead": message(lambda: kernel(a.untyped_storage(), b)),
        "vmap": message(lambda: torch.vmap(lambda x: kernel(x, b))(a[None])),
        "vmap of the operator": message(lambda: torch.vmap(lambda x: operator(x, b))(a[None])),
        "vmap of updates": message(lambda: torch.vmap(lambda x: updating(x, b))(a[None])),
        "gradient transform": message(lambda: torch.func.jvp(lambda x: kernel(x, b), (a,), (a,))),
        "fake": message(lambda: _faked(kernel)),
        "fake of another shape": message(lambda: _faked(operator, 32)),
        "operator on the host": message(lambda: operator(a.cpu(), b.cpu())),
        "operator of another kernel": message(
            lambda: made.kernel(made.add()).torch_operator("standin::refusing")
        ),
        "operator of torch": message(lambda: kernel.torch_operator("aten::add")),
        "reserved namespace": message(lambda: kernel.torch_operator("prim::adds")),
        "unknown dtype": message(lambda: kernel(torch.empty(4, 64, dtype=torch.complex32), b)),
    }


def _faked(function: Any, columns: int = 64) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty((4, columns), device="cuda")
        return function(fake, fake)


def main() -> None:
    """Try everything."""
    driver = standin_torch.load()
    print(json.dumps({"works": works(driver), "refusals": refusals(driver)}))


if __name__ == "__main__":
    main()
