"""Run kernels that `library.py` saved on CUDA tensors of a stock torch.

Usage: library_torch.py FOLDER. Standard output gets one JSON object: kernel -> how it was
called -> whether the numbers are right. `KERNEL, executed` is a kernel whose own PTX was the
device.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import emulated
import made
import standin_torch
import torch
from emulate import emulate

from pallasc.specs.artifacts.artifact import Artifact

DTYPES = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "i8": torch.int8,
    "i32": torch.int32,
}


def read(folder: Path) -> tuple[Artifact, list[bytes], list[bytes]]:
    """Return a saved artifact with its inputs and results."""
    record = json.loads((folder / "record.json").read_text())
    artifact = Artifact(record, lambda key: (folder / "blobs" / key).read_bytes())
    rows = [
        [(folder / f"{kind}{number}").read_bytes() for number in range(len(bindings))]
        for kind, bindings in (("in", artifact.plan.inputs), ("out", artifact.plan.outputs))
    ]
    return artifact, rows[0], rows[1]


def upload(data: bytes, dtype: str, shape: Any) -> Any:
    """Return a CUDA tensor with these bytes."""
    host = torch.frombuffer(bytearray(data), dtype=DTYPES[dtype]).reshape(shape)
    return host.to("cuda")


def holds(tensor: Any, data: bytes) -> bool:
    """Tell whether a tensor holds these bytes."""
    return bytes(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy()) == data


def device(inputs: list[bytes], outputs: list[bytes], artifact: Artifact) -> Any:
    """Return the device: it wants the right inputs, and gives the right results."""
    import numpy as np

    from pallasc.runtime.adapters.numpy_arrays import numpy_dtype

    def run(*arrays: Any) -> Any:
        for number, (got, right) in enumerate(zip(arrays, inputs, strict=True)):
            assert got.tobytes() == right, f"input {number} has other bytes"
        return [
            np.frombuffer(data, numpy_dtype(array.dtype)).reshape(array.shape)
            for data, array in zip(outputs, artifact.plan.outputs, strict=True)
        ]

    return run


def run(name: str, folder: Path, driver: Any) -> dict[str, bool]:
    """Call a kernel in every way; return which ones gave the right bytes."""
    artifact, inputs, outputs = read(folder)
    driver.kernel("*")(emulate(artifact, device(inputs, outputs, artifact)))
    kernel = made.kernel(artifact)
    (result,) = artifact.plan.outputs
    tensors = [
        upload(data, array.dtype, array.shape)
        for data, array in zip(inputs, artifact.plan.inputs, strict=True)
    ]
    wanted = outputs[0]

    def empty() -> Any:
        made = torch.empty(result.shape, dtype=DTYPES[result.dtype], device="cuda")
        return made.copy_(torch.zeros(result.shape, dtype=DTYPES[result.dtype]))

    found = {"call": all(holds(kernel(*tensors), wanted) for _ in range(3))}
    out = empty()
    found["into"] = all(kernel.into(*tensors, out=out) is out for _ in range(2))
    found["into"] &= holds(out, wanted)
    found["view"] = _views(kernel, tensors, result, wanted)
    stream, out = torch.cuda.Stream(), empty()
    with torch.cuda.stream(stream):
        found["stream"] = holds(kernel(*tensors), wanted)
    found["stream"] &= holds(kernel.into(*tensors, out=out, stream=stream), wanted)
    found["unchecked"] = all(holds(kernel.unchecked(*tensors), wanted) for _ in range(2))
    operator = kernel.torch_operator(f"standin::{name}")
    found["operator"] = holds(operator(*tensors), wanted)
    torch._dynamo.reset()
    compiled = torch.compile(lambda *a: operator(*a), backend="aot_eager", fullgraph=True)
    found["compiled"] = holds(compiled(*tensors), wanted)
    found["graph"] = _graph(kernel, tensors, empty(), wanted)
    return found


def execute(name: str, folder: Path, driver: Any) -> dict[str, bool]:
    """Call a kernel whose PTX is executed; return which ways give the reference's numbers."""
    artifact, inputs, outputs = read(folder)
    gpu = emulated.install(driver)
    gpu.know(artifact)
    kernel = made.kernel(artifact)
    tensors = [
        upload(data, array.dtype, array.shape)
        for data, array in zip(inputs, artifact.plan.inputs, strict=True)
    ]
    (result,) = artifact.plan.outputs
    wanted = torch.frombuffer(bytearray(outputs[0]), dtype=DTYPES[result.dtype])
    found = {"call": kernel(*tensors)}
    found["into"] = kernel.into(*tensors, out=torch.empty_like(found["call"]))
    torch.cuda.synchronize()
    driver.check()
    return {
        way: emulated.close(tensor.cpu().float().numpy(), wanted.float().reshape(result.shape))
        for way, tensor in found.items()
    }


def _views(kernel: Any, tensors: list[Any], result: Any, wanted: bytes) -> bool:
    """Pass views that start in the middle of larger tensors."""
    moved = []
    for tensor in tensors:
        step = 256 // tensor.element_size()
        whole = torch.empty(tensor.numel() + 2 * step, dtype=tensor.dtype, device="cuda")
        part = whole[step : step + tensor.numel()].view(tensor.shape)
        part.copy_(tensor)
        moved.append(part)
    return holds(kernel(*moved), wanted) and holds(kernel(*moved), wanted)


def _graph(kernel: Any, tensors: list[Any], out: Any, wanted: bytes) -> bool:
    """Capture a launch, and replay it twice."""
    kernel.preload(0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel.into(*tensors, out=out)
    before = holds(out, wanted)
    graph.replay()
    graph.replay()
    return not before and holds(out, wanted)


def main() -> None:
    """Run everything that was saved."""
    driver = standin_torch.load()
    report = {}
    for folder in sorted(Path(sys.argv[1]).iterdir()):
        try:
            report[folder.name] = run(folder.name, folder, driver)
            if folder.name in emulated.EXECUTED:
                report[f"{folder.name}, executed"] = execute(folder.name, folder, driver)
        finally:
            driver.check()
    print(json.dumps(report))


main()
