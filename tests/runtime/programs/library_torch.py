"""Run kernels that `library.py` saved on CUDA tensors of a stock torch: library_torch.py FOLDER.

The reference is the device; of the kernels that `emulated.py` executes, it is their own PTX too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import emulated
import made
import numpy as np
import standin_torch
import torch
from emulate import emulate

from pallasc.runtime.adapters.numpy_arrays import numpy_dtype
from pallasc.specs.artifacts.artifact import Artifact

DTYPES = {
    "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i8": torch.int8,
    "i32": torch.int32,
}  # fmt: skip


def tensor(data: bytes, array: Any) -> Any:
    """Return a CUDA tensor with these bytes, for an array of a plan."""
    host = torch.frombuffer(bytearray(data), dtype=DTYPES[array.dtype])
    return host.reshape(array.shape).to("cuda")


class Saved:
    """A saved kernel.

    Attributes:
        artifact: what was compiled.
        inputs, wanted: the bytes of its arrays, and of its result.
        tensors: its arrays.
    """

    def __init__(self, folder: Path) -> None:
        record = json.loads((folder / "record.json").read_text())
        self.artifact = Artifact(record, lambda key: (folder / "blobs" / key).read_bytes())
        plan = self.artifact.plan
        self.inputs = [(folder / f"in{n}").read_bytes() for n in range(len(plan.inputs))]
        self.wanted, (self.result,) = (folder / "out0").read_bytes(), plan.outputs
        self.tensors = [tensor(*row) for row in zip(self.inputs, plan.inputs, strict=True)]

    def device(self, *arrays: Any) -> Any:
        """Take the right inputs, and give the right result."""
        assert [array.tobytes() for array in arrays] == self.inputs
        kind = numpy_dtype(self.result.dtype)
        return [np.frombuffer(self.wanted, kind).reshape(self.result.shape)]

    def is_right(self, made: Any) -> bool:
        """Tell whether a tensor holds the result."""
        return bytes(made.cpu().contiguous().view(-1).view(torch.uint8).numpy()) == self.wanted

    def empty(self) -> Any:
        return tensor(bytes(len(self.wanted)), self.result)


def check(saved: Saved, name: str, driver: Any) -> None:
    """Call a kernel in every way."""
    driver.kernel("*")(emulate(saved.artifact, saved.device))
    kernel, tensors, is_right = made.kernel(saved.artifact), saved.tensors, saved.is_right
    for _ in range(3):
        assert is_right(kernel(*tensors))
        assert is_right(kernel.unchecked(*tensors))
        out = saved.empty()
        assert kernel.into(*tensors, out=out) is out
        assert is_right(out)
    moved = [_view_of(each) for each in tensors]
    assert is_right(kernel(*moved))
    stream, out = torch.cuda.Stream(), saved.empty()
    with torch.cuda.stream(stream):
        assert is_right(kernel(*tensors))
    assert is_right(kernel.into(*tensors, out=out, stream=stream))
    operator = kernel.torch_operator(f"standin::{name}")
    assert is_right(operator(*tensors))
    torch._dynamo.reset()
    compiled = torch.compile(lambda *a: operator(*a), backend="aot_eager", fullgraph=True)
    assert is_right(compiled(*tensors))
    kernel.preload(0)
    graph, out = torch.cuda.CUDAGraph(), saved.empty()
    with torch.cuda.graph(graph):
        kernel.into(*tensors, out=out)
    assert not is_right(out)
    graph.replay()
    graph.replay()
    assert is_right(out)


def _view_of(tensor: Any) -> Any:
    """Return a copy that starts in the middle of a larger tensor."""
    step = 256 // tensor.element_size()
    whole = torch.empty(tensor.numel() + 2 * step, dtype=tensor.dtype, device="cuda")
    return whole[step : step + tensor.numel()].view(tensor.shape).copy_(tensor)


def execute(saved: Saved, driver: Any) -> None:
    """Call a kernel whose PTX is executed."""
    gpu = emulated.install(driver)
    gpu.know(saved.artifact)
    found = made.kernel(saved.artifact)(*saved.tensors)
    torch.cuda.synchronize()
    wanted = torch.frombuffer(bytearray(saved.wanted), dtype=DTYPES[saved.result.dtype])
    right = wanted.float().reshape(saved.result.shape)
    assert emulated.close(found.cpu().float().numpy(), right)


def main() -> None:
    """Run everything that was saved."""
    driver = standin_torch.load()
    for folder in sorted(Path(sys.argv[1]).iterdir()):
        saved = Saved(folder)
        check(saved, folder.name, driver)
        if folder.name in emulated.EXECUTED:
            execute(saved, driver)
        driver.check()
    print("null")


main()
