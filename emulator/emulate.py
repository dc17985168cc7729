"""Call an artifact on NumPy arrays, on a machine without a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pallasc.emulator.machine.machine import Machine
from pallasc.emulator.run_plan import PlanRun
from pallasc.errors import ArgumentError, UnsupportedError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.plan import LaunchPlan


def emulate(artifact: Artifact, *arrays: Any, **named: Any) -> Any:
    """Execute an artifact's PTX on the CPU and return its results.

    Arguments are those of the compiled function, as NumPy arrays, or lists and dicts of them; None
    where the function was compiled with None. What a kernel prints is written to the standard
    output when it has ended.

    The kernels that XLA makes around Mosaic's come without PTX. Where `pallasc.compile` returned
    the artifact, it is found by compiling once more, at the first call that needs it.

    Where the plan runs on several devices, each array has one more dimension in front, the device,
    and so have the results.

    Args:
        artifact: what was compiled.
        arrays: the arguments in their order.
        named: arguments by their names.

    Returns:
        The results: an array, or a list or dict of them, as the function returns them.

    Raises:
        ArgumentError: an argument is missing, or is not what the function was compiled for.
        CheckError: a kernel does what no GPU would do rightly: it reaches outside of its memory,
            waits for ever, fails an assertion.
        UnsupportedError: a kernel has an instruction that the emulator does not know, or comes
            without PTX, as in bundles and entries of the store.
        CompileError: what the artifact was compiled from has changed, so the PTX cannot be found.
    """
    plan = artifact.plan
    leaves = inputs_of(plan, arrays, named)
    machine = Machine()
    run = PlanRun(artifact, machine, _missing_ptx(artifact))
    if plan.device_count > 1:
        per_device = [[_of_device(a, d, plan) for a in leaves] for d in range(plan.device_count)]
        found = run.run(per_device)
        results = [np.stack(parts) for parts in zip(*found, strict=True)]
    else:
        (results,) = run.run([leaves])
    print("".join(machine.printed), end="")
    return _tree(plan.output_tree, results)


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


def _of_device(array: Any, device: int, plan: LaunchPlan) -> Any:
    values = np.asarray(array)
    if values.shape[:1] != (plan.device_count,):
        raise ArgumentError(
            f"the kernel runs on {plan.device_count} devices, which must be the first dimension of "
            f"each array; got shape {list(values.shape)}"
        )
    return values[device]


def inputs_of(
    plan: LaunchPlan, arrays: Sequence[Any], named: Mapping[str, Any]
) -> list[npt.ArrayLike]:
    """Return the arrays of a call in the order of the plan's inputs.

    Raises:
        ArgumentError: the call does not have the arguments that the plan's function has.
    """
    found: dict[int, npt.ArrayLike] = {}
    tree = plan.input_tree
    if isinstance(tree, Mapping):
        names = list(plan.parameters) or sorted(tree, key=lambda name: _first(tree[name]))
        arguments = dict(zip(names, arrays, strict=False)) | dict(named)
        if len(arrays) > len(names) or arguments.keys() != tree.keys():
            raise ArgumentError(
                f"the function takes {', '.join(names)}; got {len(arrays)} arguments by position "
                f"and {', '.join(named) or 'none'} by name"
            )
        _place(tree, arguments, "", found)
    elif named:
        raise ArgumentError(f"the function takes no arguments by name; got {', '.join(named)}")
    else:
        _place(tree, list(arrays), "", found)
    return [found[number] for number in sorted(found)]


def _first(tree: Any) -> float:
    """Return the number of the first array in a tree; those without one go last."""
    if isinstance(tree, int):
        return tree
    children = tree.values() if isinstance(tree, Mapping) else tree or ()
    return min(map(_first, children), default=float("inf"))


def _place(tree: Any, value: Any, path: str, found: dict[int, npt.ArrayLike]) -> None:
    if isinstance(tree, int):
        if value is None:
            raise ArgumentError(f"{path or 'an argument'} must be an array, got None")
        found[tree] = value
    elif tree is None:
        if value is not None:
            raise ArgumentError(f"{path or 'an argument'} must be None, as it was compiled")
    elif isinstance(tree, Mapping):
        if not isinstance(value, Mapping) or value.keys() != tree.keys():
            raise ArgumentError(f"{path or 'the arguments'} must be a dict of {', '.join(tree)}")
        for name, child in tree.items():
            _place(child, value[name], f"{path}.{name}".lstrip("."), found)
    else:
        if not isinstance(value, Sequence) or len(value) != len(tree):
            what = path or "the call"
            needed = "1 argument" if len(tree) == 1 else f"{len(tree)} arguments"
            raise ArgumentError(f"{what} needs {needed}; got {_count(value)}")
        for number, (child, item) in enumerate(zip(tree, value, strict=True)):
            _place(child, item, f"{path}[{number}]", found)


def _count(value: Any) -> str:
    return str(len(value)) if isinstance(value, Sequence) else type(value).__name__


def _tree(tree: Any, results: Sequence[Any]) -> Any:
    if isinstance(tree, int):
        return results[tree]
    if isinstance(tree, Mapping):
        return {name: _tree(child, results) for name, child in tree.items()}
    return None if tree is None else [_tree(child, results) for child in tree]
