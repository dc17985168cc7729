"""Tensors of any build of PyTorch: on the stand-in driver host memory can be the device's."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import standin as control

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    if reason := control.why_not():
        pytest.skip(reason)
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed; any build of it will do here, also one for the CPU")
    path = os.pathsep.join([str(HERE), str(PROGRAMS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-P", PROGRAMS / "torch_host.py"],
        env={**control.environment(), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_calls_of_all_kinds_work(report: dict[str, Any]) -> None:
    assert report["works"] == {
        "schema": "host::updates(Tensor a, Tensor(b!) b) -> (Tensor, Tensor)",
        "call": [3, 4, -1, True],
        "unchecked": [3, 4, -1, True],
        "into": [3, 4, -1],
        "operator": [3, 4, -1],
        "compiled": 3,
        "meta": [["meta", 4, 64], ["meta", 4, 64]],
        "gradient": [2, 5],
        "half": "torch.bfloat16",
    }


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("dtype", "made: a has dtype f16, and the kernel takes f32[4, 64]."),
        ("shape", "made: a has shape [2, 64], and the kernel takes f32[4, 64]."),
        ("gaps", "made: a is not contiguous: its elements have gaps or another order."),
        (
            "vmap",
            "made: a: a tensor is batched by torch.vmap, and the kernel's shapes are fixed.",
        ),
        ("vmap of the operator", "made cannot be used under torch.vmap: its shapes are fixed."),
        (
            "fake",
            "made: a: a tensor is traced by a transform of torch, and has no memory of its own.",
        ),
        ("sparse", "made: a: a tensor is sparse, conjugated or negated: pass a dense copy."),
        ("meta", "made: a: a tensor lies on meta, which has no memory of a CUDA device."),
        ("a byte an element", "made: a has dtype torch.int4, and the kernel takes f32[4, 64]."),
        ("operator of another kernel", "operator host::refusing is kernel made already."),
    ],
)
def test_what_cannot_be_is_refused(what: str, message: str, report: dict[str, Any]) -> None:
    assert report["refusals"][what] == f"ArgumentError: {message}"


def test_tensors_of_the_host_are_not_copied(report: dict[str, Any]) -> None:
    assert report["unlent"] == "ArgumentError: made: a is a torch tensor on the host."
