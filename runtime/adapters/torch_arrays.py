"""Tensors of PyTorch."""

from __future__ import annotations

from typing import Any

from pallasc.errors import ArgumentError
from pallasc.runtime.adapters.arrays import ArrayView
from pallasc.runtime.front import Dialect
from pallasc.specs.dtypes import ALIASES, DTYPES

_OWN_NAMES = {"bool": "bool", "complex64": "c64", "complex128": "c128"}


class TorchAdapter:
    """Tensors of PyTorch, in device memory and in the order of its current stream."""

    name = "a torch tensor"
    has_pool = True

    def __init__(self) -> None:
        import torch

        self.torch: Any = torch
        self._short = {}
        self.dtypes: dict[str, Any] = {}
        for attribute in dir(torch):
            dtype = getattr(torch, attribute)
            if isinstance(dtype, torch.dtype):
                full = str(dtype).rpartition(".")[2]
                short = _OWN_NAMES.get(full) or ALIASES.get(full, full)
                self._short[dtype] = short
                if short in DTYPES:
                    self.dtypes[short] = dtype

    def dialect(self) -> Dialect:
        """Return how generated code asks for what a launch needs."""
        torch = self.torch
        return Dialect(
            kind=torch.Tensor,
            other_kinds=frozenset({torch.nn.Parameter}),
            dtypes=self.dtypes,
            dtype="{x}.dtype",
            shape="{x}.shape",
            is_contiguous="{x}.is_contiguous()",
            device="{x}.get_device()",
            pointer="{x}.data_ptr()",
            stream="_raw_stream({d})",
            current_device="_current_device()",
            empty=torch.empty,
            values={
                "_raw_stream": torch._C._cuda_getCurrentRawStream,
                "_current_device": torch._C._cuda_getDevice,
            },
        )

    def view(self, array: Any) -> ArrayView:
        """Return what the runtime needs to know of a tensor.

        Raises:
            ArgumentError: it is no dense tensor with memory of its own.
        """
        torch = self.torch
        if array.layout is not torch.strided or array.is_conj() or array.is_neg():
            raise ArgumentError("a tensor is sparse, conjugated or negated: pass a dense copy.")
        device = array.device
        if device.type not in ("cuda", "cpu"):
            raise ArgumentError(
                f"a tensor lies on {device}, which has no memory of a CUDA device.",
                hint="Register the kernel with torch_operator() to use it under torch.compile.",
            )
        return ArrayView(
            pointer=array.data_ptr(),
            dtype=self.short_dtype(array.dtype),
            shape=tuple(array.shape),
            is_contiguous=array.is_contiguous(),
            device=device.index if device.type == "cuda" else None,
        )

    def short_dtype(self, dtype: Any) -> str:
        """Return the short name of a dtype of torch, its own where there is none."""
        return self._short.get(dtype, str(dtype))

    def stream(self, device: int) -> int:
        """Return the handle of the current stream on a device."""
        return int(self.torch._C._cuda_getCurrentRawStream(device))

    def empty(self, shape: tuple[int, ...], dtype: str, device: int, stream: int | None) -> Any:
        """Return a new tensor; its memory belongs to the stream.

        Raises:
            ArgumentError: torch has no such dtype.
        """
        torch = self.torch
        if dtype not in self.dtypes:
            raise ArgumentError(f"this version of torch has no dtype for {dtype}.")
        where = torch.device("cuda", device)
        if stream is None or stream == self.stream(device):
            return torch.empty(shape, dtype=self.dtypes[dtype], device=where)
        with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=where)):
            return torch.empty(shape, dtype=self.dtypes[dtype], device=where)


def make_adapter() -> TorchAdapter:
    """Return the adapter; torch is imported already where one of its tensors is at hand."""
    return TorchAdapter()
