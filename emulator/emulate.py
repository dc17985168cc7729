"""Call an artifact on NumPy arrays, on a machine without a GPU."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from pallasc.emulator.arrays import joined, split
from pallasc.emulator.machine.machine import Machine
from pallasc.emulator.passed_arrays import passed_array
from pallasc.emulator.run_plan import PlanRun
from pallasc.errors import ArgumentError, UnsupportedError
from pallasc.specs.artifacts.arguments import Arguments
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.trees import unflatten
from pallasc.specs.canonical import canonical_json
from pallasc.specs.spelling import an

_MOST_LISTED = 8


class Variant(Protocol):
    """A variant of a kernel that the runtime has opened."""

    @property
    def id(self) -> str:
        """What it is called."""

    @property
    def params(self) -> Mapping[str, Any]:
        """Its point of the matrix."""

    @property
    def artifact(self) -> Artifact:
        """What was compiled."""


class _Call(NamedTuple):
    """An artifact, and the arrays that it is called on, in the order of the plan's inputs."""

    artifact: Artifact
    arrays: list[Any]


def emulate(artifact: Any, *arrays: Any, **named: Any) -> Any:
    """Execute an artifact's PTX on the CPU and return its results.

    Arguments are those of the compiled function: arrays of NumPy, or what `numpy.asarray` makes
    one of, such as JAX's and those of torch that lie on the CPU; lists, tuples and dicts of them
    where the function takes these; None where it was compiled with None. What a kernel prints is
    written to the standard output when it has ended.

    The kernels that XLA makes around Mosaic's come without PTX. Where `pallasc.compile` returned
    the artifact, it is found by compiling once more, at the first call that needs it.

    Where the plan runs on several devices, each array has one more dimension in front, the device,
    and so have the results.

    Args:
        artifact: what `pallasc.compile` returned; or a kernel of `pallasc.load`,
            `pallasc.open_bundle` or `pallasc.open_artifact`. Of its variants the one is executed
            that takes these arrays; of those for several GPUs, the first.
        arrays: the arguments in their order.
        named: arguments by their names; of a kernel, also parameters of the matrix.

    Returns:
        The results, as NumPy arrays: one, or a list, tuple or dict of them, as the function
        returns them.

    Raises:
        ArgumentError: this is neither an artifact nor a kernel; an argument is missing, or is not
            what the function was compiled for; several variants take these arrays.
        CheckError: a kernel does what no GPU would do rightly: it reaches outside of its memory,
            waits for ever, fails an assertion.
        UnsupportedError: a kernel has an instruction that the emulator does not know, or comes
            without PTX, as in bundles and entries of the store.
        CompileError: what the artifact was compiled from has changed, so the PTX cannot be found.
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
    """Return what is executed, and on which arrays.

    Raises:
        ArgumentError: nothing takes these arguments, or several variants do.
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
    """Return the arrays of a call, checked, and the parameters of the matrix among `named`."""
    plan = artifact.plan
    leaves, rest = Arguments(name, plan, params, others=()).bind(arrays, named)
    pairs = zip(leaves, plan.inputs, strict=True)
    return [passed_array(leaf, b, name, plan.device_count) for leaf, b in pairs], rest


def _listed(variants: Sequence[Variant]) -> str:
    more = ", …" if len(variants) > _MOST_LISTED else ""
    return ", ".join(variant.id for variant in variants[:_MOST_LISTED]) + more


def _variants(kernel: Any) -> Sequence[Variant]:
    """Return the variants of a kernel of the runtime.

    Raises:
        ArgumentError: it is something else.
    """
    variants = getattr(kernel, "variants", None)
    if isinstance(variants, tuple) and all(hasattr(each, "params") for each in variants):
        return variants
    if isinstance(kernel, str | os.PathLike):
        what, hint = f"the text {str(kernel)!r}", "Open the file: pallasc.open_bundle(path)[name]."
    elif isinstance(kernel, Mapping):
        what, hint = an(type(kernel).__name__), "Choose one of its kernels: kernels[name]."
    elif callable(kernel):
        what = f"the function {getattr(kernel, '__name__', type(kernel).__name__)}"
        hint = "Compile it first: pallasc.emulate(pallasc.compile(function, …), …)."
    else:
        what = an(type(kernel).__name__) if kernel is not None else "None"
        hint = "Pass what pallasc.compile returns, or a kernel of pallasc.open_bundle."
    raise ArgumentError(f"emulate takes an artifact or a kernel, not {what}.", hint=hint)


def _missing_ptx(artifact: Artifact) -> Mapping[str, str]:
    """Return the PTX of the kernels that come without, by the digest of their cubin."""
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
