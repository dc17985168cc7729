"""Call kernels with tensors of torch in every way."""

import re
from typing import Any

import made
import pytest
import standin_torch
import torch
from messages import message, refused
from standin import Standin

from pallasc.runtime.adapters.device_arrays import DeviceArray
from pallasc.runtime.calls.native_path import TRACED, skip_frames
from pallasc.runtime.opening import Kernels

TEXT = "f32[4, 64]"
NO_MEMORY = "made: a: a tensor has no memory of its own."


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
    return made.kernel(made.artifact(step, outputs=[TEXT, "b", TEXT]))


def calls(kernel: Any, updating: Any, a: Any, b: Any) -> None:
    """Check calls of all kinds."""
    for _ in range(2):
        assert first(kernel(torch.nn.Parameter(a), b)) == 3
        total, updated, difference = updating(a, c := tensor(2))
        assert [first(total), first(updated), first(difference)] == [3, 4, -1]
        assert updated is c
        assert str(kernel(tensor(1, device=1), tensor(2, device=1)).device) == "cuda:1"
    with torch.cuda.device(1):
        assert first(kernel(a, b)) == 3
    with torch.inference_mode():
        assert first(kernel(a, b)) == 3
    sub = type("Sub", (torch.Tensor,), {})
    assert type(kernel(a.as_subclass(sub), b)) is torch.Tensor
    assert not kernel(tensor(1).requires_grad_(), b).requires_grad
    small = made.artifact(
        made.launch("two", 0, 1), inputs={"a": "f8e5m2[256]"}, outputs=["f8e5m2[256]"]
    )
    eighths, float8 = made.kernel(small), torch.zeros(256, dtype=torch.float8_e5m2).cuda()
    for _ in range(3):
        assert eighths(float8).dtype is torch.float8_e5m2


def operators(kernel: Any, updating: Any, a: Any, b: Any) -> None:
    """Check kernels as operators, in graphs of torch.compile too."""
    operator = updating.torch_operator("standin::updates")
    schema = "standin::updates(Tensor a, Tensor(b!) b) -> (Tensor, Tensor)"
    assert str(operator.default._schema) == schema
    compiled = torch.compile(lambda x, y: (*operator(x, y), y), backend="aot_eager", fullgraph=True)
    assert [*map(first, compiled(a, tensor(2)))] == [3, -1, 4]
    operator = kernel.torch_operator("standin::adds")
    assert kernel.torch_operator("standin::adds") is operator
    with torch.inference_mode():
        assert first(operator(a, b)) == 3
    meta = operator(a.to("meta"), b.to("meta"))
    assert (str(meta.device), *meta.shape) == ("meta", 4, 64)
    operator = made.kernel(made.add()).torch_operator("standin::differentiated")
    torch.library.register_autograd("standin::differentiated", lambda ctx, g: (g, g))
    tracked = tensor(1).requires_grad_()
    (gradient,) = torch.autograd.grad(operator(tracked, b), tracked, tensor(5))
    assert first(gradient) == 5


def optional(driver: Any, a: Any, b: Any) -> None:
    """Check a kernel whose bias is None in one variant, and its operator."""

    @driver.kernel("two")
    def copy(launch: Any) -> None:
        launch.array(1, "float32", (4, 64))[...] = launch.array(0, "float32", (4, 64))

    tree = {"a": 0, "bias": None}
    without = made.artifact(made.launch("two", 0, 1), inputs={"a": TEXT}, input_tree=tree)
    having = made.artifact(made.launch("three", 0, 1, 2), inputs={"a": TEXT, "bias": TEXT})
    kernel = Kernels([("k", {"bias": None}, without), ("k", {"bias": TEXT}, having)])["k"]
    operator = kernel.torch_operator("standin::optional")
    schema = "standin::optional(Tensor a, Tensor? bias=None) -> Tensor"
    assert str(operator.default._schema) == schema
    compiled = torch.compile(lambda x, y: operator(x, y), backend="aot_eager", fullgraph=True)
    for _ in range(2):
        for call in (kernel, operator):
            assert [first(call(a)), first(call(a, None)), first(call(a, bias=b))] == [1, 1, 3]
        assert [first(compiled(a, None)), first(compiled(a, b))] == [1, 3]


def graphs_of_compile(kernel: Any, a: Any, b: Any) -> None:
    """Check that torch.compile ends a graph at a kernel, looks into nothing of it, and says so."""
    from torch._dynamo.utils import counters

    mixed = torch.compile(lambda x, y: kernel(x, y) * 1, backend="eager")
    assert mixed(a, b).shape == (4, 64)
    skip_frames([Standin._run])  # what the stand-in does is not the kernel's
    new = made.kernel(made.add())
    before = counters["frames"]["total"]
    call = torch.compile(lambda x, y: new(x, y), backend="eager")
    into = torch.compile(lambda x, y, out: new.into(x, y, out=out), backend="eager")
    for _ in range(3):
        call(a, b)
    for _ in range(3):
        into(a, b, torch.empty_like(a))
    assert counters["frames"]["total"] - before == 2
    whole = torch.compile(lambda x, y: new(x, y), backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=re.escape(TRACED)):
        whole(a, b)


def streams(driver: Any, kernel: Any, a: Any, b: Any) -> None:
    """Check that launches go to the current or the given stream, and so does their memory."""
    side, other, far = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream(1)
    for _ in range(2):
        with torch.cuda.stream(side):
            kernel(a, b)
            kernel.into(a, b, out=torch.empty_like(a))
        kernel(a, b)
        used = [launch.stream for launch in driver.launches[-3:]]
        assert used == [side.cuda_stream, side.cuda_stream, 0]
    for stream in (None, side, side.cuda_stream, 0, 1):
        kernel(a, b, stream=stream)
        assert driver.launches[-1].stream == (getattr(stream, "cuda_stream", stream) or 0)
        assert (torch.cuda.current_stream().cuda_stream, torch.cuda.current_device()) == (0, 0)
    with torch.cuda.stream(other):
        assert _stream_of(kernel(a, b, stream=side)) == side.cuda_stream
        assert torch.cuda.current_stream() == other
    for _ in range(3):
        result = kernel(tensor(1, device=1), tensor(2, device=1), stream=far)
        assert (_stream_of(result), torch.cuda.current_device()) == (far.cuda_stream, 0)


def graphs_of_cuda(kernel: Any, a: Any, b: Any) -> None:
    """Check that a launch is captured, and runs when its graph does."""
    kernel.preload(0)
    graph, out = torch.cuda.CUDAGraph(), tensor(0)
    with torch.cuda.graph(graph):
        kernel.into(a, b, out=out)
    assert first(out) == 0
    graph.replay()
    graph.replay()
    assert first(out) == 3


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


def writes(kernel: Any, updating: Any, a: Any, b: Any) -> None:
    """Check that calls move the version counters of what they write, which backward looks at."""
    out, updated = tensor(0), tensor(2)
    for variant in (kernel, kernel.unchecked):
        for _ in range(3):  # slow, then fast
            before = out._version, a._version
            variant.into(a, b, out=out)
            assert (out._version, a._version) == (before[0] + 1, before[1])
    for _ in range(2):
        counted = updated._version
        updating(a, updated)
        assert updated._version == counted + 1
    with torch.inference_mode():
        inference = torch.empty_like(out)
        for _ in range(2):
            kernel.into(a, b, out=inference)
    middle = tensor(1).requires_grad_() * 2
    square = middle**2
    kernel.into(a, b, out=middle)
    assert "has been modified by an inplace operation" in message(lambda: square.sum().backward())


def through_dlpack(kernel: Any, a: Any, b: Any) -> None:
    """Check what torch sees of a device array of ours."""

    class Foreign:
        def __init__(self, tensor: Any) -> None:
            self.__dlpack__, self.__dlpack_device__ = tensor.__dlpack__, tensor.__dlpack_device__

        __dlpack__: Any = None

    out = kernel(Foreign(a), Foreign(b))
    shared = torch.from_dlpack(out)
    assert (first(shared), shared.data_ptr()) == (3, out.pointer)
    assert torch.from_dlpack(DeviceArray((4, 64), "bf16")).dtype is torch.bfloat16


def refused_tensors(kernel: Any, a: Any, b: Any) -> None:
    """Check what is said of tensors that a kernel cannot take."""
    takes = "and the kernel takes f32[4, 64]."
    dense = "made: a: a tensor is sparse, conjugated or negated: pass a dense copy."
    for wrong, words in (
        (a.to(torch.float16), f"made: a has dtype f16, {takes}"),
        (a[:2], f"made: a has shape [2, 64], {takes}"),
        (
            torch.empty(4, 128, device="cuda")[:, :64],
            "made: a is not contiguous: its elements have gaps or another order.",
        ),
        (a.cpu(), "made: a is on the host, but b is on GPU 0."),
        (tensor(2, device=1), "made: a is on GPU 1, but b is on GPU 0."),
        (torch.zeros(4, 64).to_sparse(), dense),
        (torch.zeros(4, 64).to_sparse_csr(), dense),
        (
            torch.empty(4, 64, device="meta"),
            "made: a: a tensor is on meta, which is not a CUDA device.",
        ),
        (
            torch.nested.nested_tensor([torch.ones(3), torch.ones(2)]),
            NO_MEMORY,
        ),
        (
            torch.empty((4, 64), dtype=torch.int4, device="cuda"),
            f"made: a has dtype torch.int4, {takes}",
        ),
        (a.shape, "made: a: a Size is not an array."),
    ):
        refused(words, lambda wrong=wrong: kernel(wrong, b))
    refused("made: a is a torch tensor on the host.", lambda: kernel(a.cpu(), b.cpu()))
    one = {"inputs": {"a": "f32[1]"}, "outputs": ["f32[1]"]}
    scalar = made.kernel(made.artifact(made.launch("two", 0, 1), **one))
    scalar(torch.ones(1, device="cuda"))
    negated = torch.ones(1, dtype=torch.complex64).cuda().conj().imag
    refused(dense, lambda: scalar(negated))
    shifted = torch.empty(4 * 64 + 1, device="cuda")[1:].view(4, 64)
    assert message(lambda: kernel(shifted, b)).startswith("ArgumentError: made@h100-sxm: a starts")
    refused("made@h100-sxm: the memory for out overlaps a.", lambda: kernel.into(a, b, out=a))
    handle = "torch cannot use stream 0x3039: it is not the handle of a stream."
    refused(handle, lambda: kernel(a, b, stream=12345))


def refused_transforms(kernel: Any, a: Any, b: Any) -> None:
    """Check what is said under transforms of torch, and of operators that cannot be."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    operator = kernel.torch_operator("standin::refusing")
    refused(NO_MEMORY, lambda: torch.vmap(lambda x: kernel(x, b))(a[None]))
    refused(NO_MEMORY, lambda: torch.func.jvp(lambda x: kernel(x, b), (a,), (a,)))
    with FakeTensorMode():
        fake = torch.empty((4, 64), device="cuda")
        refused(NO_MEMORY, lambda: kernel(fake, fake))
        fake = torch.empty((4, 32), device="cuda")
        narrow = "made: a has shape [4, 32], and the kernel takes f32[4, 64]."
        refused(narrow, lambda: operator(fake, fake))
    host = "made: a is a torch tensor on the host."
    refused(host, lambda: operator(a.cpu(), b.cpu()))
    # torch calls the operator once for each element of the batch.
    assert first(torch.vmap(lambda x: operator(x, b))(a[None])[0]) == first(operator(a, b))
    for name, words in (
        ("adds", "'adds' is not the name of an operator."),
        ("standin::refusing", "operator standin::refusing is kernel made already."),
        ("aten::add", "operator aten::add exists already."),
    ):
        refused(words, lambda name=name: made.kernel(made.add()).torch_operator(name))
    said = message(lambda: kernel.torch_operator("prim::adds"))
    assert said.startswith("ArgumentError: operator prim::adds ")


def main() -> None:
    """Try everything."""
    driver = standin_torch.load()
    kernel, updating = adds(driver), updates(driver)
    a, b = tensor(1), tensor(2)
    calls(kernel, updating, a, b)
    operators(kernel, updating, a, b)
    optional(driver, a, b)
    graphs_of_compile(kernel, a, b)
    streams(driver, kernel, a, b)
    graphs_of_cuda(kernel, a, b)
    writes(kernel, updating, a, b)
    through_dlpack(kernel, a, b)
    refused_tensors(kernel, a, b)
    refused_transforms(kernel, a, b)
    driver.check()
    print("null")


if __name__ == "__main__":
    main()
