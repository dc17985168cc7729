"""Tensors of a stock PyTorch on the stand-in driver and a stand-in of the CUDA runtime."""

from __future__ import annotations

from typing import Any

import pytest

BATCHED = "a tensor is batched by torch.vmap, and the kernel's shapes are fixed."
UNDER_VMAP = "cannot be used under torch.vmap: its shapes are fixed."
TRACED = "a tensor is traced by a transform of torch, and has no memory of its own."


@pytest.fixture(scope="module")
def report(torch_process: Any) -> dict[str, Any]:
    found: dict[str, Any] = torch_process("torch_ways.py")
    return found


def test_calls_of_all_kinds_work(report: dict[str, Any]) -> None:
    assert report["works"] == {
        "parameter": 3,
        "updated in place": [3, 4, -1, True],
        "second device": ["cuda:1", "cuda:1"],
        "schema": "standin::updates(Tensor a, Tensor(b!) b) -> (Tensor, Tensor)",
        "operator that updates": [3, -1, 4],
        "current device elsewhere": 3,
        "dlpack there and back": [3, True, "torch.bfloat16"],
        "checks of the fake kernel": "nothing",
        "inference mode": [3, 3],
        "subclass": "Tensor",
        "compiled around the kernel itself": [4, 64],
        "looked into when compiled": 2,
        "without a break": True,
        "float8": "torch.float8_e5m2",
        "meta through the operator": ["meta", 4, 64],
        "a call records no gradient": False,
        "gradient of an operator": [True, 5],
        "schema of an optional tensor": "standin::optional(Tensor a, Tensor? bias=None) -> Tensor",
        **{
            f"{way} {when}": [1, 1, 3]
            for way in ("call", "operator")
            for when in ("without and with", "again")
        },
        "compiled without and with": [1, 3],
        "compiled again": [1, 3],
        "streams": [True] * 6,
        "memory of streams": [[True, True, 0, 0]] * 5 + [[True, True]] + [[True, 0]] * 3,
        "writes are counted": [1, 0] * 6 + [1, 1],
        "backward notices a write": "RuntimeError: one of the variables needed for gradient "
        "computation has been modified by an inplace operation:",
    }


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("dtype", "made: a has dtype f16, and the kernel takes f32[4, 64]."),
        ("shape", "made: a has shape [2, 64], and the kernel takes f32[4, 64]."),
        ("gaps", "made: a is not contiguous: its elements have gaps or another order."),
        ("host", "made: a is on the host, but b is on GPU 0."),
        ("all on the host", "made: a is a torch tensor on the host."),
        ("other device", "made: a is on GPU 0, but b is on GPU 1."),
        ("sparse", "made: a: a tensor is sparse, conjugated or negated: pass a dense copy."),
        ("meta", "made: a: a tensor lies on meta, which has no memory of a CUDA device."),
        ("misaligned", "made@h100-sxm: a"),
        ("overlap", "made@h100-sxm: the memory for out overlaps a."),
        ("stream", "torch cannot use stream 0x3039: it is not the handle of a stream."),
        ("operator name", "'adds' is not the name of an operator."),
        ("negated", "made: a: a tensor is sparse, conjugated or negated: pass a dense copy."),
        ("compressed", "made: a: a tensor is sparse, conjugated or negated: pass a dense copy."),
        ("nested", "made: a: a tensor is nested: pass a dense copy."),
        ("a byte an element", "made: a has dtype torch.int4, and the kernel takes f32[4, 64]."),
        ("shape instead", "made: a: a Size is not an array."),
        ("storage instead", "made: a: an UntypedStorage is not an array."),
        ("vmap", f"made: a: {BATCHED}"),
        ("vmap of the operator", f"made {UNDER_VMAP}"),
        ("vmap of updates", f"made {UNDER_VMAP}"),
        ("gradient transform", f"made: a: {TRACED}"),
        ("fake", f"made: a: {TRACED}"),
        ("fake of another shape", "made has no variant for f32[4, 32], f32[4, 32]."),
        ("operator on the host", "made: a is a torch tensor on the host."),
        ("operator of another kernel", "operator standin::refusing is kernel made already."),
        ("operator of torch", "operator aten::add exists already."),
        ("unknown dtype", "made: a is on the host, but b is on GPU 0."),
    ],
)
def test_what_cannot_be_is_refused(what: str, message: str, report: dict[str, Any]) -> None:
    assert report["refusals"][what] == f"ArgumentError: {message}"
