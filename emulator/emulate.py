"""Call an artifact on NumPy arrays, on a machine without a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pallasc.emulator.machine.machine import Machine
from pallasc.emulator.program import PlanRun, joined, numpy_dtype, of_devices, split
from pallasc.errors import ArgumentError, UnsupportedError
from pallasc.specs.arrays import DTYPES, array_text
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.artifacts.signature import Arguments, unflatten
from pallasc.specs.canonical import canonical_json
from pallasc.specs.spelling import an

_MOST_LISTED = 8


class Variant(Protocol):
    """A variant of a kernel that the runtime has opened."""

    @property
    def id(self) -> str:
        """The variant's id."""

    @property
    def params(self) -> Mapping[str, Any]:
        """The variant's values of the matrix parameters."""

    @property
    def artifact(self) -> Artifact:
        """The compiled artifact."""


class _Call(NamedTuple):
    """An artifact, and the arrays of a call in the order of the plan's inputs."""

    artifact: Artifact
    arrays: list[Any]


def emulate(artifact: Any, *arrays: Any, **named: Any) -> Any:
    """Execute an artifact's PTX on the CPU and return its results.

    The arguments match the compiled function's: NumPy arrays, or anything that `numpy.asarray`
    accepts, such as arrays of JAX and CPU tensors of torch; lists, tuples and dicts of them if the
    function takes those; None if it was compiled with None. The output of kernels (printf) goes to
    the standard output after the last kernel.

    An artifact has PTX only for Mosaic's kernels, not for kernels that XLA generates. If
    `pallasc.compile` returned the artifact in this process, the first call that needs the missing
    PTX compiles the function again.

    If the plan runs on several devices, the first dimension of each argument and result is the
    device.

    Args:
        artifact: the result of `pallasc.compile`, or a kernel of `pallasc.load`,
            `pallasc.open_bundle` or `pallasc.open_artifact`. For a kernel, `emulate` executes the
            variant that takes these arrays; if several variants differ only in their GPU, the first
            of them.
        arrays: positional arguments.
        named: arguments by name; for a kernel, also matrix parameters, such as tile_m=128.

    Returns:
        NumPy arrays, in the structure of the function's result.

    Raises:
        ArgumentError: `artifact` is neither an artifact nor a kernel; an argument is missing or
            does not fit; or several variants take these arrays.
        CheckError: a kernel accesses memory out of bounds, deadlocks, or fails an assertion.
        UnsupportedError: the emulator does not support an instruction of a kernel, or a kernel
            has no PTX, because it comes from the store or from a bundle without PTX.
        CompileError: the sources of the artifact have changed, so its PTX cannot be found.
    """
    call = _bound(artifact, arrays, named)
    plan = call.artifact.plan
    count = max(plan.device_count, 1)
    machine = Machine()
    run = PlanRun(call.artifact, machine, _missing_ptx(call.artifact))
    per_device = zip(*(split(array, count) for array in call.arrays), strict=True)
    found = run.run([list(own) for own in per_device] if call.arrays else [[]] * count)
    print("".join(machine.printed), end="")
    return unflatten(plan.output_tree, [joined(parts) for parts in zip(*found, strict=True)])


def _bound(artifact: Any, arrays: Sequence[Any], named: Mapping[str, Any]) -> _Call:
    """Return the artifact to execute, and its arrays.

    Raises:
        ArgumentError: no variant takes these arguments, or several do.
    """
    if isinstance(artifact, Artifact):
        launches = artifact.plan.launches
        name = launches[0].kernel if launches else f"artifact {artifact.digest[:12]}"
        return _Call(artifact, _arrays(name, artifact, (), arrays, named)[0])
    variants = _variants(artifact)
    fitting: list[tuple[Variant, _Call]] = []
    refused: list[ArgumentError] = []
    for variant in variants:
        try:
            leaves, params = _arrays(artifact.name, variant.artifact, variant.params, arrays, named)
        except ArgumentError as error:
            refused.append(error)
            continue
        if all(variant.params.get(name) == value for name, value in params.items()):
            fitting.append((variant, _Call(variant.artifact, leaves)))
    if not fitting and len(refused) == len(variants) == 1:
        raise refused[0]
    if not fitting:
        raise ArgumentError(
            f"no variant of {artifact.name} takes these arguments. {variants[0].id}: "
            f"{refused[0].message if refused else 'it has other parameters.'}",
            hint=f"Its variants are {_listed(variants)}.",
        )
    if len({canonical_json(dict(variant.params)) for variant, _ in fitting}) > 1:
        raise ArgumentError(
            f"several variants of {artifact.name} take these arguments: "
            f"{_listed([variant for variant, _ in fitting])}.",
            hint="Name the parameters that they differ in, such as tile_m=128.",
        )
    return fitting[0][1]


def _arrays(
    name: str,
    artifact: Artifact,
    params: Sequence[str] | Mapping[str, Any],
    arrays: Sequence[Any],
    named: Mapping[str, Any],
) -> tuple[list[Any], dict[str, object]]:
    """Return the checked arrays of a call, and the matrix parameters among `named`."""
    plan = artifact.plan
    leaves, rest = Arguments(name, plan, params, others=()).bind(arrays, named)
    pairs = zip(leaves, plan.inputs, strict=True)
    return [_passed(leaf, b, name, plan.device_count) for leaf, b in pairs], rest


_NO_ARRAY = "Pass a NumPy array, or an object that numpy.asarray can convert to one."


def _passed(value: Any, binding: Binding, kernel: str, devices: int) -> npt.NDArray[Any]:
    """Convert an argument to the NumPy array that a kernel takes.

    Args:
        value: the argument.
        binding: the input of the plan that the argument is for.
        kernel: the kernel's name in messages.
        devices: number of devices that run the kernel together; with several, the first dimension
            of the array is the device.

    Raises:
        ArgumentError: the argument cannot be read as an array, or has another dtype or shape.
    """
    what = f"{kernel}: {binding.path or 'the argument'}"
    array = _read(value, what)
    needed = of_devices(binding, devices)
    taken = array_text(needed.dtype, needed.shape)
    kind = numpy_dtype(needed.dtype)
    if array.dtype != kind:
        own = "ml_dtypes" if kind.isbuiltin == 2 else "numpy"
        raise ArgumentError(
            f"{what} has dtype {_short(array.dtype)}, and the kernel takes {taken}.",
            hint=f"Convert it: numpy.asarray({binding.path or 'x'}, {own}.{kind.name}).",
        )
    if array.shape != needed.shape:
        of_all = f"The first dimension is the {devices} devices that run the kernel together."
        raise ArgumentError(
            f"{what} has shape {list(array.shape)}, and the kernel takes {taken}.",
            hint=of_all if devices > 1 else "Compile the function for this shape.",
        )
    return array


def _read(value: Any, what: str) -> npt.NDArray[Any]:
    kind = type(value)
    if value is None or isinstance(value, str | bytes):
        article = "None" if value is None else an(kind.__name__)
        raise ArgumentError(f"{what} must be an array, not {article}.", hint=_NO_ARRAY)
    try:
        array: npt.NDArray[Any] = np.asarray(value)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ArgumentError(
            f"{what} is {an(kind.__name__)} that NumPy cannot read: {reason}.", hint=_NO_ARRAY
        ) from error
    if array.dtype.hasobject:
        raise ArgumentError(f"{what} must be an array, not {an(kind.__name__)}.", hint=_NO_ARRAY)
    return array


def _short(dtype: np.dtype[Any]) -> str:
    """Return the short name of a NumPy dtype, or its own name if there is none."""
    return next((name for name in DTYPES if numpy_dtype(name) == dtype), str(dtype))


def _listed(variants: Sequence[Variant]) -> str:
    more = ", …" if len(variants) > _MOST_LISTED else ""
    return ", ".join(variant.id for variant in variants[:_MOST_LISTED]) + more


def _variants(kernel: Any) -> Sequence[Variant]:
    """Return the variants of a kernel of the runtime.

    Raises:
        ArgumentError: `kernel` is not a kernel of the runtime.
    """
    variants = getattr(kernel, "variants", None)
    if isinstance(variants, tuple) and all(hasattr(each, "params") for each in variants):
        return variants
    what = an(type(kernel).__name__) if kernel is not None else "None"
    raise ArgumentError(
        f"emulate takes an artifact or a kernel, not {what}.",
        hint="Pass what pallasc.compile returns, or a kernel: pallasc.open_bundle(path)[name].",
    )


def _missing_ptx(artifact: Artifact) -> Mapping[str, str]:
    """Find the PTX of the kernels that have none in the artifact, by the digest of their cubin."""
    lacking = [kernel for kernel in artifact.kernels if kernel.ptx is None]
    if not lacking:
        return {}
    if artifact.find_ptx is not None:
        return artifact.find_ptx()
    if any(kernel.origin == "mosaic" for kernel in lacking):
        hint = "Write the bundle with pallasc bundle create --keep-ptx."
    else:
        hint = (
            "It is a kernel of XLA's, whose PTX is not in the artifact. Emulate the artifact that "
            "pallasc.compile returned in this process, or use pallasc run SPECS --emulate."
        )
    raise UnsupportedError(f"the artifact has no PTX of the kernel {lacking[0].name}.", hint=hint)
