"""Trace a function for a target and lower it to a module without source locations.

Locations are off (`jax_versions`), so that a kernel gives the same module in every folder. They can
be switched on to explain an error.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

from pallasc.compiler.lowering.constructs import check_constructs, warn_of_wrong_constructs
from pallasc.compiler.lowering.entry import (
    abstract,
    arrays_tell_order,
    bind,
    leaves,
    signature_of,
    takes,
)
from pallasc.compiler.lowering.jax_versions import (
    adapted,
    devices_for,
    devices_present,
    inferred_architecture,
    jax_mesh,
    lines_of_rules,
    on_one_device,
    source_locations,
)
from pallasc.errors import CompileError, SpecError
from pallasc.specs.arrays import DTYPES
from pallasc.specs.artifacts.plan import Binding, LaunchPlan
from pallasc.specs.canonical import digest
from pallasc.specs.gpus import Target
from pallasc.specs.spec import Args, Mesh
from pallasc.specs.spelling import suggestion


@dataclass(frozen=True, slots=True)
class Job:
    """A function, its arrays and static arguments, and the target to compile it for.

    `mesh` has the axes of the devices that run the function together; `args` are the arrays of a
    single device. The function is traced inside the context that `within` returns.
    """

    function: Callable[..., Any]
    args: Args
    static: Mapping[str, object]
    target: Target
    mesh: Mesh = ()
    within: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass(frozen=True, slots=True)
class Lowered:
    """A lowered function, ready to compile, and the digest of its module.

    `signature` is a plan without buffers and steps, in which `buffer` of each array is the number
    of its leaf.
    """

    stage: Any
    module: str
    signature: LaunchPlan


def lower(job: Job, *, locations: bool = False) -> Lowered:
    """Trace a job's function and lower it for its target.

    Args:
        job: the job to lower.
        locations: keep source locations, for an error message or a line table.

    Raises:
        SpecError: the arguments do not fit the function.
        Exception: any error that tracing raises; `diagnose` turns it into a `PallascError`.
    """
    import jax

    with job.within():
        devices = devices_for(job.target, math.prod(size for _, size in job.mesh))
        names, values = _ordered(job)
        callee, sharding = _placed(_callee(job, names), job.mesh, devices)
        with _settings(devices, job.args, locations), adapted(job.target):
            _claim_architecture(job.target)
            arrays = [abstract(value, sharding) for value in values]
            traced = jax.jit(callee, keep_unused=True).trace(*arrays)
            check_constructs(traced.jaxpr, job.target)
            stage = traced.lower(lowering_platforms=("cuda",))
            # Only after lowering, since a failure matters more than a warning. A run with locations
            # repeats an earlier run, which has warned.
            if not locations:
                warn_of_wrong_constructs(traced.jaxpr)
            signature = _signature(job.mesh, names, arrays, stage)
    return Lowered(stage, _module_digest(stage), signature)


def _module_digest(stage: Any) -> str:
    written = io.BytesIO()
    stage.compiler_ir().operation.write_bytecode(written)
    return digest(written.getvalue())


def _callee(job: Job, names: list[str] | None) -> Callable[..., Any]:
    """Return a function of positional arrays.

    The function's name is part of the module, and so of the key. It is the same for every kernel.
    """

    def main(*arrays: Any) -> Any:
        if names is None:
            return job.function(*arrays, **job.static)
        return job.function(**dict(zip(names, arrays, strict=True)), **job.static)

    return main


def _placed(
    function: Callable[..., Any], mesh: Mesh, devices: Sequence[Any]
) -> tuple[Callable[..., Any], Any]:
    """Return the function as a single device runs it, and the sharding of its arrays."""
    import jax

    if not mesh:
        return function, jax.sharding.SingleDeviceSharding(devices[0])
    made = jax_mesh(mesh, devices)
    own = jax.sharding.NamedSharding(made, jax.sharding.PartitionSpec())
    return on_one_device(function, made), own


@contextlib.contextmanager
def _settings(devices: Sequence[Any], args: Args, locations: bool) -> Iterator[None]:
    import jax

    here, there = jax.default_device(devices[0]), devices_present(devices)
    has_64_bits = (DTYPES[a.dtype].bits >= 64 and a.dtype != "c64" for a in leaves(args))
    wide = jax.enable_x64(True) if any(has_64_bits) else nullcontext()
    with source_locations(enabled=locations), here, there, wide, lines_of_rules():
        yield


def _claim_architecture(target: Target) -> None:
    """Check that Mosaic will lower for the requested architecture.

    Mosaic assumes sm_90 if it cannot determine the architecture, and registers its assembler pass
    once per process, for the architecture of the first kernel.
    """
    major, minor = inferred_architecture()
    if (major, minor) != (target.major, target.minor):
        raise CompileError(f"asked for {target.arch}, Mosaic would lower for sm_{major}{minor}")
    claimed = _process_architecture.setdefault("arch", target.arch)
    if claimed != target.arch:
        raise CompileError(
            f"this process compiles for {claimed} and cannot compile for {target.arch} as well",
            hint="Mosaic GPU compiles for one architecture per process: pass isolated=True.",
        )


_process_architecture: dict[str, str] = {}


def _ordered(job: Job) -> tuple[list[str] | None, list[Any]]:
    """Return the names and values of the arrays in the order of the function's signature.

    Positional arrays take the names of the matching parameters, so that positional and named arrays
    give the same artifact. The names are None if a positional array matches no named parameter: for
    `*args`, positional-only parameters, or a function without a signature.
    """
    args, parameters = job.args, _fitting_parameters(job)
    if isinstance(args, list):
        taken = [*parameters.values()][: len(args)]
        named = [each.name for each in taken if each.kind is each.POSITIONAL_OR_KEYWORD]
        if len(named) < len(args):
            return None, args
        args = dict(zip(named, args, strict=True))
    order = {name: index for index, name in enumerate(parameters)}
    names = sorted(args, key=lambda name: (order.get(name, len(order)), name))
    return names, [args[name] for name in names]


def _fitting_parameters(job: Job) -> Mapping[str, Parameter]:
    """Return the parameters of a job's function, after checking that its arguments fit."""
    positional, named = (job.args, {}) if isinstance(job.args, list) else ([], job.args)
    name, signature = getattr(job.function, "__name__", "the function"), signature_of(job.function)
    for key in (*named, *job.static):
        if not takes(job.function, key):
            error = SpecError(
                f"{name} has no parameter {key!r}.", hint=suggestion(key, signature.parameters)
            )
            error.field = f"{'args' if key in named else 'static'}.{key}"
            raise error
    try:
        signature.bind(*positional, **named, **job.static)
    except TypeError as mismatch:
        raise SpecError(
            f"{name} cannot be called: {mismatch}.",
            hint=f"Its parameters: {', '.join(signature.parameters)}. Give each as an array, as "
            "null (None), or as a static argument.",
        ) from None
    return signature.parameters


def _signature(mesh: Mesh, names: list[str] | None, arrays: list[Any], stage: Any) -> LaunchPlan:
    inputs: list[Binding] = []
    labels = names if names is not None else [str(index) for index in range(len(arrays))]
    trees = [
        bind(tree, label, inputs, is_input=True) for label, tree in zip(labels, arrays, strict=True)
    ]
    outputs: list[Binding] = []
    output_tree = bind(stage.out_info, "out", outputs)
    input_tree = dict(zip(labels, trees, strict=True)) if names is not None else trees
    implied = isinstance(input_tree, list) or arrays_tell_order(input_tree)
    parameters = () if implied else tuple(input_tree)
    return LaunchPlan(
        buffers=(),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        steps=(),
        input_tree=input_tree,
        output_tree=output_tree,
        mesh=mesh,
        parameters=parameters,
    )
