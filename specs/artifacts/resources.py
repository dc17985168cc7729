"""The resources of an artifact, as a lock keeps them and gates compare them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pallasc.errors import CorruptError
from pallasc.specs.artifacts.artifact import Artifact, KernelResources
from pallasc.specs.artifacts.occupancy import warps_per_sm
from pallasc.specs.resources import Resources


def resources_of(artifact: Artifact, target: Mapping[str, Any] | None = None) -> Resources:
    """Return what an artifact takes of each resource.

    Args:
        artifact: the artifact.
        target: the figures of its model where they are known; None reads them from its record.

    Raises:
        CorruptError: its plan or its target is damaged.
    """
    return Resources(*(number_of(artifact, field, target) for field in Resources._fields))


def number_of(
    artifact: Artifact, field: str, target: Mapping[str, Any] | None = None
) -> int | None:
    """Return one number of an artifact's `Resources`; that of the worst kernel, None if unknown.

    Raises:
        CorruptError: its plan or its target is damaged.
    """
    if field == "occupancy":
        return min((warps for _, warps in _residents(artifact, target)), default=None)
    if field == "cubin_bytes":
        return artifact.cubin_bytes
    numbers: list[Any] = [getattr(kernel, field) for kernel in artifact.kernels]
    return None if None in numbers else max(numbers, default=0)


def kernels_of(artifact: Artifact) -> tuple[tuple[str, Resources], ...]:
    """Return the name of each kernel of an artifact, and what it takes; no cubin is its own.

    Raises:
        CorruptError: the artifact's plan or target is damaged.
    """
    residents = _residents(artifact)
    found = []
    for kernel in artifact.kernels:
        warps = [number for name, number in residents if name == kernel.name]
        taken = (kernel.registers, kernel.spill_bytes, kernel.stack_bytes, kernel.smem_bytes)
        found.append((kernel.name, Resources(*taken, min(warps, default=None))))
    return tuple(found)


def worst_kernel(artifact: Artifact, field: str) -> str:
    """Return the name of the kernel that a number of `Resources` is of; "" for `cubin_bytes`."""
    if field == "occupancy":
        return min(_residents(artifact), key=lambda pair: pair[1], default=("", 0))[0]
    if field == "cubin_bytes" or not artifact.kernels:
        return ""

    def number(kernel: KernelResources) -> float:
        value = getattr(kernel, field)
        return float("inf") if value is None else value

    return max(artifact.kernels, key=number).name


def _residents(
    artifact: Artifact, target: Mapping[str, Any] | None = None
) -> list[tuple[str, int]]:
    """Return each launch's kernel, and how many of its warps a multiprocessor holds."""
    kernels = {(kernel.name, kernel.cubin): kernel for kernel in artifact.kernels}
    residents: list[tuple[str, int]] = []
    for launch in artifact.launch_sizes:
        kernel = kernels.get((launch.kernel, launch.cubin))
        if kernel is None:
            raise CorruptError(f"the plan launches {launch.kernel}, which the artifact lacks")
        target = artifact.target if target is None else target
        residents.append((launch.kernel, warps_per_sm(launch, kernel, target)))
    return residents
