"""How much a kernel computes, and what torch has for the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from carried import Carried
from desk import MissingError


def flop(variant: Carried) -> float | None:
    """Return the operations of a launch, None where they do not bound a kernel's time."""
    shapes = [shape for _, shape in variant.arrays().values()]
    name = variant.name
    if "attention" in name:
        q, k = shapes[0], shapes[1]
        products = 7 if "backward" in name else 2  # the backward kernels compute two of them twice
        share = 0.5 if variant.static["config"].get("causal") else 1.0
        return products * 2.0 * q[0] * q[2] * q[1] * k[1] * q[3] * share
    if name == "ragged_dot_backward_rhs":
        return 2.0 * math.prod(shapes[0]) * shapes[1][1]
    if "ragged_dot" in name:
        rows, inner = shapes[0]
        return 2.0 * rows * inner * (math.prod(shapes[1][1:]) // inner)
    if "matmul" in name:
        return 2.0 * math.prod(shapes[0]) * shapes[1][1]
    return None


def torch_rival(variant: Carried, tensors: Mapping[str, Any]) -> tuple[str, Callable[[], Any]]:
    """Return what torch does the same with: its name, and the call.

    Raises:
        MissingError: torch has nothing for it.
    """
    import torch
    from torch.nn import functional

    name, static = variant.name, variant.static
    a, *rest = tensors.values()
    if name == "add":
        return "torch.add", lambda: torch.add(a, rest[0])
    if name == "row_sum":
        return "torch.sum", lambda: torch.sum(a, -1)
    if name == "softmax":
        return "torch.softmax", lambda: torch.softmax(a, -1)
    if name == "rms_norm":
        shape = (a.shape[-1],)
        return "rms_norm", lambda: functional.rms_norm(a, shape, rest[0], static["epsilon"])
    if name == "fused_matmul":
        bias = rest[1].to(a.dtype)
        act = functional.relu if static["activation"] == "relu" else _gelu(functional)
        return "torch.addmm and an activation", lambda: act(torch.addmm(bias, a, rest[0]))
    if "attention" in name and "backward" not in name:
        q, k, v = (array.transpose(1, 2) for array in (a, *rest))
        causal = bool(static["config"].get("causal"))
        call = functional.scaled_dot_product_attention
        return "scaled_dot_product_attention", lambda: call(
            q, k, v, is_causal=causal, scale=1.0, enable_gqa=True
        )
    if "ragged_dot" in name and len(rest[0].shape) == 3:
        ends = rest[1].cumsum(0).tolist()
        bounds = list(zip([0, *ends], ends, rest[0], strict=False))
        return "torch.mm of each group", lambda: [
            torch.mm(a[i:j], b) for i, j, b in bounds if j > i
        ]
    if "matmul" in name and a.dtype == rest[0].dtype:
        return "torch.matmul", lambda: torch.matmul(a, rest[0])
    if "matmul" in name:
        floats = [t for t in (a, rest[0]) if t.dtype.is_floating_point]
        left, right = (array.to(floats[0].dtype) for array in (a, rest[0]))
        return "torch.matmul of converted operands", lambda: torch.matmul(left, right)
    raise MissingError(f"torch has no single operation for {name}")


def _gelu(functional: Any) -> Callable[[Any], Any]:
    return lambda x: functional.gelu(x, approximate="tanh")
