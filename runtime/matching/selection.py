"""Select a variant. The decision depends only on the variants, the GPU and the arrays.

Code for an architecture with the suffix "a" runs on exactly that compute capability, with "f" on
its family, and without a suffix on the same major and the same or a higher minor version. The
family rule is the same: 100f covers 10.0, 10.3 and later, 120f covers 12.0 and 12.1. Embedded GPUs
are not compatible with other GPUs of their major version: 8.7, and 10.1, which CUDA 13 calls 11.0
and which 100f does not cover. Sources: CUDA programming guide, "Family-specific features", "Binary
compatibility".

Variants for any model of the architecture may be used, the most similar model first, with one
exception: if all blocks of a launch were resident at once on the model that it was compiled for,
but would not be on this GPU, blocks that wait for each other would hang. Such a variant is
rejected.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pallasc.errors import SelectionError
from pallasc.runtime.device.answers import version_text
from pallasc.runtime.device.devices import Device, capabilities
from pallasc.runtime.matching.candidates import (
    ArrayType,
    Candidate,
    array_type,
)
from pallasc.runtime.matching.mismatches import MOST_LISTED, cut, nearest_to_arrays
from pallasc.specs.arrays import array_text
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.cubin import api_version
from pallasc.specs.artifacts.resources import blocks_per_sm, model_figure
from pallasc.specs.artifacts.signature import misaligned_text
from pallasc.specs.canonical import plain
from pallasc.specs.gpus import ARCH, ARCHITECTURES, device_names
from pallasc.specs.templates import Scalar


def select(
    candidates: Sequence[Candidate],
    device: Device,
    arrays: Sequence[ArrayType] | None = None,
    params: Mapping[str, Scalar] | None = None,
    addresses: Sequence[int] | None = None,
    *,
    likely: Sequence[Candidate] | None = None,
) -> Candidate:
    """Return the variant that fits.

    Args:
        candidates: variants of one kernel.
        device: the GPU to run on.
        arrays: dtype and shape of each input; None for any.
        params: values of matrix parameters that were given by name.
        addresses: the address of each input; None for any.
        likely: the variants that take these arrays, if known; the others are only used to explain
            why none fits.

    Raises:
        SelectionError: no variant fits, and the message has the reason for each; or several that
            differ in their parameters fit.
    """
    asked = device, arrays, params or {}, addresses
    looked_at = candidates if likely is None else likely
    fitting = [candidate for candidate in looked_at if refusal(candidate, *asked) is None]
    if not fitting:
        reasons = [refusal(candidate, *asked) for candidate in candidates]
        raise none_fits(candidates, reasons, device, arrays)
    points = {point(candidate): candidate for candidate in fitting}
    if len(points) > 1:
        raise several_fit(list(points.values()))
    return likest(fitting, device)


def likest(candidates: Sequence[Candidate], device: Device) -> Candidate:
    """Return the variant whose model is most similar to a GPU."""
    return min(candidates, key=lambda candidate: _distance(candidate, device))


def fitting_candidates(candidates: Sequence[Candidate], device: Device) -> list[Candidate]:
    """Return the variant with the most similar model, for each matrix point and set of arrays.

    Raises:
        SelectionError: none can run on this GPU.
    """
    reasons = [device_refusal(candidate, device) for candidate in candidates]
    best: dict[Any, Candidate] = {}
    for candidate, reason in zip(candidates, reasons, strict=True):
        if reason is None:
            key = (point(candidate), candidate.arrays)
            best[key] = min(
                (best.get(key, candidate), candidate), key=lambda other: _distance(other, device)
            )
    if not best:
        raise none_fits(candidates, reasons, device)
    return list(best.values())


def refusal(
    candidate: Candidate,
    device: Device,
    arrays: Sequence[ArrayType] | None,
    params: Mapping[str, Scalar],
    addresses: Sequence[int] | None = None,
) -> str | None:
    """Return why a variant cannot be used, None if it can."""
    return (
        _params_refusal(candidate, params)
        or _arch_refusal(candidate, device)
        or (None if arrays is None else _arrays_refusal(candidate, arrays))
        or device_refusal(candidate, device)
        or (None if addresses is None else _address_refusal(candidate, addresses))
    )


def device_refusal(candidate: Candidate, device: Device) -> str | None:
    """Return why a variant cannot run on a GPU, None if it can."""
    # The artifact comes last: everything else is known without reading it.
    return _arch_refusal(candidate, device) or resource_refusal(candidate, device)


def resource_refusal(candidate: Candidate, device: Device) -> str | None:
    """Return why a variant for a GPU's architecture cannot run there, None if it can."""
    return (
        _driver_refusal(candidate.facts.minimum_driver, device.driver_version)
        or _mesh_refusal(candidate.artifact)
        or _launch_refusal(candidate.artifact, device)
    )


def _mesh_refusal(artifact: Artifact) -> str | None:
    devices = artifact.plan.device_count
    if devices == 1:
        return None
    return f"it runs on {devices} devices together, which this runtime cannot launch"


def _arch_refusal(candidate: Candidate, device: Device) -> str | None:
    return arch_refusal(candidate.arch, device.major, device.minor)


def may_run(candidate: Candidate) -> bool:
    """Return True if any GPU of this process has an architecture that runs a variant.

    Raises:
        DeviceError: there is no driver.
    """
    return any(arch_refusal(candidate.arch, *here) is None for here in capabilities())


def arch_refusal(arch: str, major: int, minor: int) -> str | None:
    """Return why code for an architecture does not run on a compute capability, None if it does."""
    match = ARCH.fullmatch(arch)
    if match is None or match["suffix"] not in ("", "a", "f"):
        return f"{arch!r} is not an architecture"
    own = (int(match[1]), int(match[2]))
    if own == (major, minor):
        return None
    here = f"and this GPU is sm_{major}{minor}"
    if match["suffix"] == "a":
        return f"{arch} runs on exactly sm_{own[0]}{own[1]}, {here}"
    same_family = own[0] == major and own[1] <= minor
    rows = (ARCHITECTURES.get(pair) for pair in (own, (major, minor)))
    if same_family and not any(row.embedded for row in rows if row):
        return None
    return f"{arch} runs on sm_{own[0]}{own[1]} and newer ones of its family, {here}"


class _DriverRefusal(str):
    """The reason that a variant cannot run, if a newer driver could run it."""

    __slots__ = ()


def _driver_refusal(minimum: Mapping[str, object] | None, version: int) -> str | None:
    if minimum is None:
        return None
    cuda = str(minimum.get("cuda", ""))
    needed = api_version(cuda)
    if needed is None:
        return f"its minimum driver {cuda!r} is damaged"
    if needed <= version:
        return None
    return _DriverRefusal(
        f"it needs a driver for CUDA {cuda}, {minimum.get('linux')} or newer, and this one is for "
        f"CUDA {version_text(version)}"
    )


def _launch_refusal(artifact: Artifact, device: Device) -> str | None:
    for launch in artifact.plan.launches:
        kernel = artifact.kernel_of(launch)
        smem = launch.dynamic_smem_bytes + kernel.static_smem_bytes
        if smem > device.smem_optin_bytes:
            return (
                f"a block of {launch.kernel} takes {smem} bytes of shared memory, and this GPU "
                f"has {device.smem_optin_bytes}"
            )
        blocks = math.prod(launch.grid)
        at_a_time = blocks_per_sm(launch, kernel, artifact.target)
        made_for = model_figure(artifact.target, "sm_count")
        if at_a_time * device.sm_count < blocks <= at_a_time * made_for:
            return (
                f"{launch.kernel} needs all {blocks} blocks resident at once, as on {made_for} "
                f"SMs; this GPU has {device.sm_count} and could deadlock"
            )
    return None


def point(candidate: Candidate) -> tuple[Any, ...]:
    """Return a variant's point in the matrix; 1 and True are different."""
    return tuple(sorted((name, str(type(own)), own) for name, own in candidate.params.items()))


def _params_refusal(candidate: Candidate, params: Mapping[str, Scalar]) -> str | None:
    for name, value in params.items():
        own = candidate.params.get(name)
        if name not in candidate.params:
            return f"it has no parameter {name}"
        if (type(own), own) != (type(value), value):
            return f"its {name} is {plain(own)}, not {value}"
    return None


def _arrays_refusal(candidate: Candidate, arrays: Sequence[ArrayType]) -> str | None:
    inputs = candidate.facts.inputs
    if len(inputs) != len(arrays):
        return f"it takes {len(inputs)} arrays, not {len(arrays)}"
    for binding, taken, array in zip(inputs, candidate.arrays, arrays, strict=True):
        if taken != array_type(*array):
            return f"{binding.path} is {array_text(*taken)}, not {array_text(*array)}"
    return None


def _address_refusal(candidate: Candidate, addresses: Sequence[int]) -> str | None:
    plan = candidate.artifact.plan
    for binding, address in zip(plan.inputs, addresses, strict=True):
        alignment = plan.buffers[binding.buffer].alignment
        if address % alignment and 0 not in binding.shape:
            return misaligned_text(binding.path, address, alignment)
    return None


def _distance(candidate: Candidate, device: Device) -> tuple[Any, ...]:
    """Return the sort key for how much a variant's model differs from a GPU, the least first."""
    target = candidate.artifact.target
    match = ARCH.fullmatch(str(target["arch"]))
    exact, suffix = (0, "") if match is None else (int(match[1] + match[2]), match[3])
    other_sms = abs(int(target["sm_count"]) - device.sm_count)
    return (
        exact != device.major * 10 + device.minor,
        {"a": 0, "f": 1}.get(suffix, 2),
        -exact,
        device.name not in device_names(str(target.get("description"))),
        other_sms,
        str(target["name"]),
    )


def none_fits(
    candidates: Sequence[Candidate],
    reasons: Sequence[str | None],
    device: Device,
    arrays: Sequence[ArrayType] | None = None,
) -> SelectionError:
    """Return the error if none of the variants can be used, with the reason for each."""
    name = candidates[0].name if candidates else "the kernel"
    reason_of = dict(zip(candidates, reasons, strict=True))
    listed = list(candidates)
    if len(listed) > MOST_LISTED:
        listed = nearest_to_arrays(listed, arrays or ())
        listed.sort(key=lambda candidate: _arch_refusal(candidate, device) is not None)
    lines = "".join(
        f"\n  {line}"
        for line in cut([f"{candidate.id}: {reason_of[candidate]}" for candidate in listed])
    )
    return SelectionError(
        f"no variant of {name} fits {device}:{lines or ' there is none.'}"
        f"{_at_hand(candidates, device)}",
        hint=_hint(candidates, reasons, device),
    )


def _at_hand(candidates: Sequence[Candidate], device: Device) -> str:
    """Return the available architectures and their origins, if none of them runs on the GPU."""
    if _any_for(candidates, device) or not any(candidate.origin for candidate in candidates):
        return ""
    architectures: dict[str, dict[str, None]] = {}
    for candidate in candidates:
        architectures.setdefault(str(candidate.origin or "artifacts"), {})[candidate.arch] = None
    lines = [f"\n  {', '.join(archs)} from {origin}" for origin, archs in architectures.items()]
    return f"\nThere are variants for other architectures only:{''.join(lines)}"


def _any_for(candidates: Sequence[Candidate], device: Device) -> bool:
    return any(_arch_refusal(candidate, device) is None for candidate in candidates)


def _hint(
    candidates: Sequence[Candidate], reasons: Sequence[str | None], device: Device
) -> str | None:
    """Return an installation hint if the architecture or the driver is the obstacle."""
    if not _any_for(candidates, device):
        return _provider_hint(candidates, device)
    minimums = [
        candidate.facts.minimum_driver or {}
        for candidate, reason in zip(candidates, reasons, strict=True)
        if isinstance(reason, _DriverRefusal)
    ]
    if not minimums:
        return None
    least = min(minimums, key=lambda minimum: api_version(str(minimum["cuda"])) or 0)
    return f"Install NVIDIA driver {least['linux']} or newer."


def _provider_hint(candidates: Sequence[Candidate], device: Device) -> str | None:
    """Return a hint on missing providers if a package's bundles have nothing for the GPU."""
    origins = candidates[0].origins if candidates else ()
    package = next((origin.package for origin in origins if origin.package), "")
    if not package:
        return None
    providers = dict.fromkeys(origin.provider for origin in origins)
    return (
        f"No installed provider of {package} supports sm_{device.major}{device.minor}; "
        f"installed: {', '.join(providers)}."
    )


def several_fit(
    candidates: Sequence[Candidate], *, decided: Collection[str] = ()
) -> SelectionError:
    """Return the error for variants between which only the caller can choose.

    Args:
        candidates: the variants.
        decided: parameters that the caller need not choose.
    """
    points = [candidate.params for candidate in candidates]
    differing = [
        name
        for name in candidates[0].params
        if name not in decided
        and len({(type(point.get(name)), point.get(name)) for point in points}) > 1
    ]
    first = candidates[0].params
    example = ", ".join(f"{name}={first[name]!r}" for name in differing)
    listed = "".join(f"\n  {line}" for line in cut([candidate.id for candidate in candidates]))
    return SelectionError(
        f"{len(candidates)} variants of {candidates[0].name} fit:{listed}",
        hint=f"Say which, by name: {example}.",
    )
