"""JAX's collective kernels on two to four emulated devices: their numbers, and their races."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled_plans import Compiled, compiled

from pallasc.cache.store import Store
from pallasc.compiler.lowering import LineTable
from pallasc.compiler.toolchain.setup import prepare
from pallasc.compiler.workers.pool import find_lines
from pallasc.emulator.arrays import numpy_dtype
from pallasc.emulator.machine.machine import Machine, Policy
from pallasc.emulator.program import PlanRun
from pallasc.emulator.races.observer import Races
from pallasc.emulator.races.threads import Finding
from pallasc.errors import Location
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml
from pallasc.specs.spec import Variant

VARIANTS = expand(load_yaml(Path(__file__).parent / "collectives.yaml"))


@pytest.fixture(scope="module")
def plans(store: Store) -> Compiled:
    return compiled(VARIANTS, store)


def gathered(params: Mapping[str, Any], given: list[list[Any]]) -> list[Any]:
    return [np.concatenate([x for (x,) in given], params["dimension"])] * len(given)


def reduced(params: Mapping[str, Any], given: list[list[Any]]) -> list[Any]:
    reduce = {"add": np.sum, "max": np.max}[params["reduction"]]
    total = reduce(np.stack([x for (x,) in given]), axis=0)
    return np.split(total, len(given), params["dimension"])


def summed(params: Mapping[str, Any], given: list[list[Any]]) -> list[Any]:
    return [np.sum([x for (x,) in given], axis=0)] * len(given)


def multiplied(params: Mapping[str, Any], given: list[list[Any]]) -> list[Any]:
    whole = np.concatenate([lhs for lhs, _ in given]).astype(np.float32)
    return [whole @ rhs.astype(np.float32) for _, rhs in given]


EXPECTED: dict[str, Callable[[Mapping[str, Any], list[list[Any]]], list[Any]]] = {
    "all_gather": gathered,
    "reduce_scatter": reduced,
    "all_reduce": summed,
    "all_gather_matmul": multiplied,
}


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.id)
def test_every_device_gets_its_numbers(variant: Variant, plans: Compiled, store: Store) -> None:
    artifact, texts = plans[variant.id]
    given = inputs(artifact)
    races = Races()
    machine = Machine(Policy(seconds=3600), observer=races)
    found = PlanRun(artifact, machine, texts).run(given)
    expected = EXPECTED[variant.name](dict(variant.params), given)
    assert len(found) == len(expected) == artifact.plan.device_count
    for (own,), right in zip(found, expected, strict=True):
        assert own.shape == right.shape
        np.testing.assert_array_equal(own.astype(np.float32), right.astype(np.float32))
    errors = races.findings
    if variant.name == "all_gather_matmul" and artifact.plan.device_count > 2:
        assert {each.rule for each in errors} == {
            "async-write-not-awaited",
            "overwritten-in-flight",
        }
        check_lines(errors, lines_of(variant, artifact, store))
    else:
        assert [str(each) for each in errors] == []


def inputs(artifact: Artifact) -> list[list[Any]]:
    """Return small whole numbers for each device, of which every sum is exact."""
    source, plan = np.random.default_rng(11), artifact.plan
    return [
        [source.integers(-4, 5, b.shape).astype(numpy_dtype(b.dtype)) for b in plan.inputs]
        for _ in range(plan.device_count)
    ]


# On three devices and more JAX's all-gather matmul races. Each block of a device signals once a
# step to the device before it, which goes on when it has counted as many signals as there are
# blocks, of all steps together: a block that is ahead, and has signalled twice, counts for one that
# is late, and has not sent its part yet. On two devices each block signals once only.


def lines_of(variant: Variant, artifact: Artifact, store: Store) -> LineTable:
    """Return the lines of JAX's source of the only kernel of Mosaic."""
    (ptx,) = [kernel.ptx for kernel in artifact.kernels if kernel.ptx]
    with prepare() as setup:
        (tables,) = find_lines([(variant, {ptx: artifact.blob(ptx).decode()})], setup, store)
    assert isinstance(tables, Mapping), tables
    return tables[ptx]


def check_lines(errors: Sequence[Finding], table: LineTable) -> None:
    """Check that the copy to another device races with the next step's copies from there."""
    for each in errors:
        assert each.first is not None
        sent, read = sorted((each.first, each.second), key=lambda access: access.what)
        assert (sent.what, read.what) == ("the bulk store", "the tensor load")
        assert sent.actor.device == (read.actor.device + 1) % 3
        sends, reads = (source_of(table.stack(a.instruction.line)) for a in (sent, read))
        assert any("copy_smem_to_gmem(a_smem, send_ref" in line for line in sends)
        assert any("device_step(scratch_ref.at[device_offset - 1]" in line for line in reads)


def source_of(stack: Sequence[Location]) -> list[str]:
    return [linecache.getline(at.file, at.line or 0) for at in stack]
