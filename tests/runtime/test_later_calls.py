"""Later calls: the usual case goes through C where it can, the unusual through Python."""

from __future__ import annotations

from typing import Any

import made
import pytest

from pallasc.runtime.opening import Kernels


@pytest.fixture
def fast(native: Any, slow: list[str]) -> list[str]:
    """Give the calls that do not go through C, where it can be used."""
    return slow


def test_variants_with_other_results_are_kept_apart(runtime: Any, framework: Any) -> None:
    runtime.devices("9.0", "10.0")
    entries = [
        ("sum", {}, made.add(target=target, outputs=[text]))
        for target, text in (("h100-sxm", "f32[4, 64]"), ("b200", "f32[8, 32]"))
    ]
    kernel = Kernels(entries)["sum"]
    for _ in range(3):
        for device, shape in enumerate([(4, 64), (8, 32)]):
            a, b = (framework.tensor("f32[4, 64]", device=device) for _ in range(2))
            assert kernel(a, b).shape == shape
            out = framework.tensor(f"f32[{shape[0]}, {shape[1]}]", device=device)
            kernel.into(a, b, out=out)
            assert runtime.launches[-1].device == device


@pytest.mark.parametrize("checks", [True, False])
def test_writes_are_counted(checks: bool, fast: list[str], runtime: Any, framework: Any) -> None:
    import foreign

    kernel = made.kernel(made.add(), checks=checks)
    updates = made.kernel(made.artifact(made.launch("two", 0, 1), outputs=["b"]), checks=checks)
    a, b, out = (framework.tensor("f32[4, 64]") for _ in range(3))
    other = foreign.CudaArray(framework.tensor("f32[4, 64]"))
    calls: list[tuple[Any, list[Any]]] = [
        (lambda: kernel.into(a, b, out=out), [out]),
        (lambda: updates(a, b), [b]),
        (lambda: updates.into(a, b), [b]),
        (lambda: kernel.into(a, other, out=out), [out]),
        (lambda: kernel.into(a, b, out=other), []),
    ]
    for call, expected in calls:
        for _ in range(3):
            framework.written.clear()
            call()
            assert framework.written == expected
    for _ in range(2):
        framework.written.clear()
        kernel(a, b)
        assert all(array not in (a, b) for array in framework.written)
