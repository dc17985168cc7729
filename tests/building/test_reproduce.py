"""Variants compiled twice in fresh processes: the same bytes, others, or none."""

from copy import deepcopy
from typing import Any

from pallasc.compiler.builds.options import Options
from pallasc.compiler.builds.reproduce import differences, reproduce
from pallasc.specs.canonical import digest

KERNELS = '''
import os
import jax.numpy as jnp


def same(x): return x + 1


def process(x):
    """Differs with the process: its number is a constant of the kernel."""
    return x * float(os.getpid())
'''


def record(*blobs: bytes, **more: Any) -> dict[str, Any]:
    names = [digest(blob) for blob in blobs]
    return {
        "schema": 1,
        "target": {"name": "h100-sxm"},
        "toolchain": {},
        "plan": {"launches": [{"cubin": name, "grid": [1, 2, 3]} for name in names]},
        "kernels": [{"cubin": name, "registers": 24} for name in names],
        "blobs": {digest(blob): len(blob) for blob in blobs},
        **more,
    }


def test_a_field_is_named_with_both_values() -> None:
    first = record(b"x")
    second = deepcopy(first)
    second["plan"]["launches"][0]["grid"][2] = 4
    second["kernels"][0]["registers"] = None
    second["target"]["more"] = True
    assert list(differences(first, first)) == []
    assert list(differences(first, second)) == [
        "kernels[0].registers: 24 and null",
        "plan.launches[0].grid[2]: 3 and 4",
        "target.more: null and true",
    ]


def test_compiling_again_finds_what_differs(project: Any) -> None:
    project.write("kernel.py", KERNELS)
    names = ("same", "process")
    project.spec(*({"name": name, "entry": f"kernel.py:{name}"} for name in names))
    built = project.build()
    events: list[Any] = []
    report, found = reproduce(
        built, 2, store=project.store, on_event=events.append, options=Options(jobs=1)
    )
    assert report.seconds > built.seconds
    same, process = found
    assert (same.outcome, same.differences) == ("same", ())
    assert same.built == same.again is not None
    assert process.outcome == "different"
    assert process.built != process.again
    assert any(text.startswith("kernels[0].cubin: ") for text in process.differences)
    assert [result.status for result in report.results] == ["compiled", "failed"]
    started = [event.variant.name for event in events if getattr(event, "kind", "") == "started"]
    assert started == list(reversed(names))
