"""Select a variant. The decision depends only on the variants, the GPU and the arrays.

Code for an architecture with the suffix "a" runs on exactly that compute capability, with "f" on
its family, and without a suffix on the same major and the same or a higher minor version. A family
is the same major and the same or a higher minor version, too: 100f covers 10.0, 10.3 and later,
120f covers 12.0 and 12.1. The embedded GPUs, 8.7 and 10.1 (which CUDA 13 calls 11.0), are not
compatible with other GPUs of their major version, so 100f does not cover 10.1. Sources: CUDA
programming guide, "Family-specific features", "Binary compatibility".

Variants for any model of the architecture may be used, the most similar model first, with one
exception. Blocks that wait for each other hang if not all blocks of the launch are resident at
once. So a variant is rejected if all its blocks are resident at once on its own model, but not on
this GPU.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pallasc.errors import ArgumentError, SelectionError
from pallasc.runtime.device.devices import Device, capabilities, version_text
from pallasc.runtime.matching.candidates import ArrayType, Candidate, array_type
from pallasc.specs.arrays import array_text, strides_of
from pallasc.specs.artifacts.artifact import Artifact, blocks_per_sm
from pallasc.specs.artifacts.cubin import api_version
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.bundle.manifest import Array
from pallasc.specs.gpus import ARCH, ARCHITECTURES, device_names
from pallasc.specs.spelling import nearest, suggestion, values_text


def likest(candidates: Sequence[Candidate], device: Device) -> Candidate:
    """Return the variant whose model is most similar to a GPU."""
    return min(candidates, key=lambda candidate: _distance(candidate, device))


def refusal(candidate: Candidate, device: Device, arrays: Sequence[ArrayType] | None) -> str | None:
    """Return why a variant cannot be used, None if it can."""
    return (
        _arch_refusal(candidate, device)
        or (None if arrays is None else _arrays_refusal(candidate, arrays))
        or device_refusal(candidate, device)
    )


def device_refusal(candidate: Candidate, device: Device) -> str | None:
    """Return why a variant cannot run on a GPU, None if it can."""
    # The artifact comes last: everything else is known without reading it.
    return _arch_refusal(candidate, device) or resource_refusal(candidate, device)


def resource_refusal(candidate: Candidate, device: Device) -> str | None:
    """Return why a variant cannot run on a GPU of its architecture, None if it can."""
    refusal = _driver_refusal(candidate.facts.minimum_driver, device.driver_version)
    devices = 1 if refusal else candidate.artifact.plan.device_count
    if devices != 1:
        return f"it runs on {devices} devices together, which this runtime cannot launch"
    return refusal or _launch_refusal(candidate.artifact, device)


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
    """The reason why a variant cannot run, if it could run with a newer driver."""

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
        made_for = artifact.target.sm_count
        if at_a_time * device.sm_count < blocks <= at_a_time * made_for:
            return (
                f"{launch.kernel} needs all {blocks} blocks resident at once, as on {made_for} "
                f"SMs; this GPU has {device.sm_count} and could deadlock"
            )
    return None


def _arrays_refusal(candidate: Candidate, arrays: Sequence[ArrayType]) -> str | None:
    inputs = candidate.facts.inputs
    if len(inputs) != len(arrays):
        return f"it takes {len(inputs)} arrays, not {len(arrays)}"
    for binding, taken, array in zip(inputs, candidate.arrays, arrays, strict=True):
        if taken != array_type(*array):
            return f"{binding.path} is {array_text(*taken)}, not {array_text(*array)}"
    return None


def _distance(candidate: Candidate, device: Device) -> tuple[Any, ...]:
    """Return a sort key: the more a variant's model differs from a GPU, the greater."""
    target = candidate.artifact.target
    return (
        (target.major, target.minor) != (device.major, device.minor),
        {"a": 0, "f": 1}.get(target.suffix, 2),
        (-target.major, -target.minor),
        device.name not in device_names(target.description),
        abs(target.sm_count - device.sm_count),
        target.name,
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
        f"no variant of {name} fits {device}:{lines or ' there is none.'}",
        hint=_hint(candidates, reasons, device),
    )


def _hint(
    candidates: Sequence[Candidate], reasons: Sequence[str | None], device: Device
) -> str | None:
    """Return a hint if a newer driver helps, or if a package's providers lack the architecture."""
    minimums = [
        candidate.facts.minimum_driver or {}
        for candidate, reason in zip(candidates, reasons, strict=True)
        if isinstance(reason, _DriverRefusal)
    ]
    if minimums:
        least = min(minimums, key=lambda minimum: api_version(str(minimum["cuda"])) or 0)
        return f"Install NVIDIA driver {least['linux']} or newer."
    origins = candidates[0].origins if candidates else ()
    package = next((origin.package for origin in origins if origin.package), "")
    if not package or any(_arch_refusal(candidate, device) is None for candidate in candidates):
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


# ---- messages for arrays and parameters that no variant takes; they list the nearest variants

MOST_LISTED = 5
"""Maximum number of variants that one message lists."""


def nearest_to_arrays(
    candidates: Sequence[Candidate], arrays: Sequence[ArrayType]
) -> list[Candidate]:
    """Return variants sorted by how similar their arrays are to these, the most similar first."""

    def difference(candidate: Candidate) -> tuple[int, float]:
        pairs = list(zip(candidate.arrays, arrays, strict=False))
        kinds = sum((a[0], a[2:], len(a[1])) != (b[0], b[2:], len(b[1])) for a, b in pairs)
        sizes = [size for a, b in pairs for size in zip(a[1], b[1], strict=False)]
        others = abs(len(candidate.arrays) - len(arrays))
        return others + kinds, sum(abs(math.log2((m + 1) / (n + 1))) for m, n in sizes)

    return sorted(candidates, key=difference)


def no_variant_for(
    name: str, candidates: Sequence[Candidate], arrays: Sequence[ArrayType]
) -> ArgumentError:
    """Return the error for arrays that no variant takes on any GPU."""
    by_arrays = {candidate.arrays: candidate for candidate in reversed(candidates)}
    nearest = nearest_to_arrays(list(by_arrays.values())[::-1], arrays)
    texts = [f"{candidate.id}{_differences(candidate, arrays)}" for candidate in nearest]
    return ArgumentError(
        f"{name} has no variant for {', '.join(array_text(*array) for array in arrays)}.",
        hint=_nearest_hint(texts, len(candidates)),
    )


def no_variant_with(
    name: str, candidates: Sequence[Candidate], params: Mapping[str, object]
) -> ArgumentError:
    """Return the error for parameters, or values of parameters, that no variant has."""
    known = dict.fromkeys(key for candidate in candidates for key in candidate.params)
    for key in params:
        if key not in known:
            near = nearest(key, known)
            listed = f" {_values(near, candidates, params[key])}" if near is not None else ""
            return ArgumentError(
                f"{name} has no parameter {key!r}.",
                hint=f"{suggestion(key, known, otherwise='Its parameters')}{listed}"
                if known
                else "It has no parameters.",
            )
    listed = ", ".join(f"{key}={value!r}" for key, value in params.items())
    values = [_values(key, candidates, value) for key, value in params.items()]
    return ArgumentError(f"{name} has no variant with {listed}.", hint="\n  ".join(values))


def _values(key: str, candidates: Sequence[Candidate], asked: object) -> str:
    values = [candidate.params[key] for candidate in candidates if key in candidate.params]
    return f"Values of {key}: {values_text(values, asked, text=repr)}."


def wrong_array(
    name: str, bindings: Sequence[Array | Binding], arrays: Sequence[ArrayType]
) -> ArgumentError:
    """Return the error for arrays that a kernel with only one set of array types does not take."""
    binding, (dtype, shape, *layout) = next(
        (binding, array)
        for binding, array in zip(bindings, arrays, strict=True)
        if array_type(*array) != array_type(binding.dtype, binding.shape, binding.layout)
    )
    taken = array_text(binding.dtype, binding.shape, binding.layout)
    if dtype != binding.dtype:
        return ArgumentError(
            f"{name}: {binding.path} has dtype {dtype}, and the kernel takes {taken}.",
            hint="Convert the array, or compile a variant for its dtype.",
        )
    if tuple(shape) != tuple(binding.shape):
        return ArgumentError(
            f"{name}: {binding.path} has shape {list(shape)}, and the kernel takes {taken}.",
            hint="Compile a variant for this shape.",
        )
    return wrong_layout(name, binding, strides_of(shape, *layout))


def wrong_layout(name: str, binding: Binding | Array, strides: Sequence[int]) -> ArgumentError:
    """Return the error for an array in another layout than the kernel's."""
    expected = strides_of(binding.shape, binding.layout)
    taken = array_text(binding.dtype, binding.shape, binding.layout)
    if binding.layout is None:
        hint = (
            f"It has strides {list(strides)}, and {taken} has {list(expected)}: pass a contiguous "
            "copy, or compile a variant for its layout."
        )
        return not_contiguous(name, binding, hint)
    return ArgumentError(
        f"{name}: {binding.path} has strides {list(strides)}, and the kernel takes {taken} with "
        f"strides {list(expected)}.",
        hint="Pass an array in the kernel's layout, or compile a variant for this array's layout.",
    )


def read_only(name: str, binding: Binding) -> ArgumentError:
    """Return the error for a read-only array that would be written."""
    return ArgumentError(f"{name}: {binding.path} may not be written, it is read-only.")


def not_contiguous(
    name: str, binding: Binding | Array, hint: str = "Pass a contiguous copy."
) -> ArgumentError:
    """Return the error for an array with gaps."""
    return ArgumentError(
        f"{name}: {binding.path} is not contiguous: its elements have gaps or another order.",
        hint=hint,
    )


def place_text(device: int | None) -> str:
    """Return the name of an array's device in messages."""
    return "the host" if device is None else f"GPU {device}"


def cut(lines: Sequence[str]) -> list[str]:
    """Return the first lines of a list, and the number of lines left out."""
    more = len(lines) - MOST_LISTED
    return [*lines[:MOST_LISTED], *([f"… and {more} more"] if more > 0 else [])]


def _nearest_hint(texts: Sequence[str], count: int) -> str:
    """Return a hint that lists the first of these texts, for a kernel with `count` variants."""
    listed = texts[:MOST_LISTED]
    if len(listed) == count == 1:
        return f"It has {listed[0]}."
    head = "It has:" if len(listed) == count else f"The nearest of its {count} variants:"
    return "\n    ".join([head, *listed])


def _differences(candidate: Candidate, arrays: Sequence[ArrayType]) -> str:
    inputs = candidate.facts.inputs
    if len(inputs) != len(arrays):
        return f", which takes {len(inputs)} arrays, not {len(arrays)}"
    differences = [
        f"{binding.path} is {array_text(*taken)}"
        for binding, taken, array in zip(inputs, candidate.arrays, arrays, strict=True)
        if taken != tuple(array)
    ]
    return f", where {', '.join(differences)}"
