"""Checks that files hold the inputs of a kernel, before anything is executed.

Does not import numpy: only the headers of the files are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pallasc.compiler.arrays import check_input, named_with_devices
from pallasc.errors import ArgumentError
from pallasc.specs.spelling import suggestion

if TYPE_CHECKING:
    from pallasc.specs.artifacts.plan import LaunchPlan
    from pallasc.specs.spec import Args, ArgTree, Variant

_CHOOSE = "Or choose other variants with -k."


class Input(NamedTuple):
    """An input of a kernel: its path, such as `cache.0`, its short dtype name, and its shape."""

    path: str
    dtype: str
    shape: tuple[int, ...]


def _inputs_of_plan(plan: LaunchPlan) -> list[Input]:
    """Return the inputs of a plan; with several devices, the first dimension is the device."""
    front = (plan.device_count,) if plan.device_count > 1 else ()
    return [Input(b.path, b.dtype, (*front, *b.shape)) for b in plan.inputs]


def _inputs_of_variant(variant: Variant) -> list[Input] | None:
    """Return the inputs that a spec names, None if they are known only after compiling."""
    if not isinstance(variant.args, dict) or variant.mesh or _has_calls(variant.args):
        return None
    return [Input(path, array.dtype, array.shape) for path, array in variant.arrays()]


def _has_calls(tree: Args | ArgTree) -> bool:
    if isinstance(tree, dict):
        return "$call" in tree or any(map(_has_calls, tree.values()))
    return isinstance(tree, list) and any(map(_has_calls, tree))


def _check(files: Mapping[str, Path], inputs: Sequence[Input], name: str) -> None:
    known = {each.path: each for each in inputs}
    for path, file in files.items():
        if path not in known:
            hint = suggestion(path, known, otherwise="Its arrays")
            raise ArgumentError(f"{name} has no input {path!r}, which {file} is for.", hint=hint)
        try:
            check_input(file, path, known[path].dtype, known[path].shape, name)
        except ArgumentError as error:
            error.hint = f"{error.hint}\n  {_CHOOSE}" if error.hint else _CHOOSE
            raise


def check_plan(files: Mapping[str, Path], plan: LaunchPlan, name: str) -> None:
    """Check that files hold inputs of a compiled kernel.

    Args:
        files: the file of each given input, by its path.
        plan: the kernel's launch plan.
        name: the kernel's name in messages.

    Raises:
        SpecError: a file cannot be read.
        ArgumentError: the kernel has no such input, or its shape or dtype differs.
    """
    _check(files, _inputs_of_plan(plan), named_with_devices(name, plan.device_count))


def check_variants(files: Mapping[str, Path], variants: Iterable[Variant]) -> None:
    """Check that files hold inputs of variants, as far as their specs name the inputs.

    Raises:
        SpecError, ArgumentError: as for `check_plan`.
    """
    for variant in variants if files else ():
        inputs = _inputs_of_variant(variant)
        if inputs is not None:
            _check(files, inputs, variant.id)
