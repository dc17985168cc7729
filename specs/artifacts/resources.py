"""The resources of an artifact, as a lock keeps them and gates compare them."""

from __future__ import annotations

from typing import Any

from pallasc.errors import CorruptError
from pallasc.specs.artifacts.artifact import Artifact, KernelResources
from pallasc.specs.artifacts.occupancy import warps_per_sm
from pallasc.specs.resources import Resources


def resources_of(artifact: Artifact) -> Resources:
    """Return what an artifact takes of each resource.

    Raises:
        CorruptError: its plan or its target is damaged.
    """
    return Resources(*(number_of(artifact, field) for field in Resources._fields))


def number_of(artifact: Artifact, field: str) -> int | None:
    """Return one number of an artifact's `Resources`; that of the worst kernel, None if unknown.

    Raises:
        CorruptError: its plan or its target is damaged.
    """
    if field == "occupancy":
        return min((warps for _, warps in _residents(artifact)), default=None)
    if field == "cubin_bytes":
        return artifact.cubin_bytes
    numbers: list[Any] = [getattr(kernel, field) for kernel in artifact.kernels]
    return None if None in numbers else max(numbers, default=0)


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


def _residents(artifact: Artifact) -> list[tuple[str, int]]:
    """Return each launch's kernel, and how many of its warps a multiprocessor holds."""
    kernels = {(kernel.name, kernel.cubin): kernel for kernel in artifact.kernels}
    residents = []
    for launch in artifact.plan.launches:
        kernel = kernels.get((launch.kernel, launch.cubin))
        if kernel is None:
            raise CorruptError(f"the plan launches {launch.kernel}, which the artifact lacks")
        residents.append((launch.kernel, warps_per_sm(launch, kernel, artifact.target)))
    return residents
