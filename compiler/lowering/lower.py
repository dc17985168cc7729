"""Trace a function for a target and lower it to a module without source locations.

Locations are off (`jax_versions`), so that one kernel has one module in every folder; they can be
switched on to explain an error.

With `CompilerParams(profile_space=…)` JAX gives a kernel one more result and appends a callback to
the host that writes it to a file. A cubin cannot call back, so the callback is left out, and what
is needed to read the result is recorded (`Regions`). JAX's hash of a kernel identifies it.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pallasc.compiler.executable.mosaic_kernel import Regions
from pallasc.compiler.lowering.constructs import check_instructions, warn_of_wrong_constructs
from pallasc.compiler.lowering.entry import abstract, arrays_tell_order, bind, leaves
from pallasc.compiler.lowering.jax_versions import (
    adapt,
    devices_for,
    devices_present,
    inferred_architecture,
    jax_mesh,
    keep_64_bits,
    lines_of_rules,
    on_one_device,
    patched,
    source_locations,
)
from pallasc.errors import CompileError, SpecError
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.dtypes import DTYPES
from pallasc.specs.gpus import Target
from pallasc.specs.meshes import Mesh
from pallasc.specs.spec import Args
from pallasc.specs.spelling import suggestion


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of a traced function; `buffer` of the bindings is the leaf's number.

    `parameters` is what it is in a launch plan.
    """

    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]
    input_tree: Any
    output_tree: Any
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lowered:
    """A lowered function, ready to compile, and the text that identifies it.

    `regions` say how to read what profiled kernels measure.
    """

    stage: Any
    text: str
    signature: Signature
    regions: tuple[Regions, ...] = ()


def lower(
    function: Callable[..., Any],
    args: Args,
    static: Mapping[str, object],
    target: Target,
    *,
    mesh: Mesh = (),
    locations: bool = False,
) -> Lowered:
    """Trace and lower `function` for `target`.

    Args:
        function: any callable that JAX can trace.
        args: arrays by name or by position.
        static: further keyword arguments, passed unchanged.
        target: what to compile for.
        mesh: the devices that run it together; `args` are those of a single device.
        locations: keep source locations, for an error message.

    Raises:
        SpecError: the arguments do not fit the function.
        Exception: whatever tracing raises; `diagnose` turns it into an error of ours.
    """
    import jax

    devices = devices_for(target, math.prod(size for _, size in mesh))
    names, values = _ordered(function, args, static)
    callee, sharding = _placed(_callee(function, names, static), mesh, devices)
    with _settings(devices, args, locations), _for_architecture(target), lines_of_rules():
        arrays = [abstract(value, sharding) for value in values]
        traced = jax.jit(callee, keep_unused=True).trace(*arrays)
        check_instructions(traced.jaxpr, target)
        with recorded_regions() as regions:
            stage = traced.lower(lowering_platforms=("cuda",))
        # After lowering: if that fails, its error matters, not a warning. With locations, this runs
        # again for a message.
        if not locations:
            warn_of_wrong_constructs(traced.jaxpr)
        signature = _signature(names, arrays, stage)
    text = "" if locations else stage.as_text()
    return Lowered(stage, text, signature, tuple(regions))


def _callee(
    function: Callable[..., Any], names: list[str] | None, static: Mapping[str, object]
) -> Callable[..., Any]:
    """Return a function of positional arrays.

    Its name is in the module's text, and so in the key: it is the same for every kernel.
    """

    def main(*arrays: Any) -> Any:
        if names is None:
            return function(*arrays, **static)
        return function(**dict(zip(names, arrays, strict=True)), **static)

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
    wide = keep_64_bits() if any(has_64_bits) else contextlib.nullcontext()
    with source_locations(enabled=locations), here, there, wide:
        yield


@contextlib.contextmanager
def _for_architecture(target: Target) -> Iterator[None]:
    """Check that Mosaic will lower for the requested architecture.

    Mosaic assumes sm_90 where it cannot tell, and registers its assembler pass once per process,
    for the architecture of the first kernel.
    """
    inferred = inferred_architecture()
    if inferred is None:
        raise CompileError("this JAX version does not say for which architecture Mosaic lowers")
    major, minor = inferred
    if (major, minor) != (target.major, target.minor):
        raise CompileError(f"asked for {target.arch}, Mosaic would lower for sm_{major}{minor}")
    claimed = _process_architecture.setdefault("arch", target.arch)
    if claimed != target.arch:
        raise CompileError(
            f"this process compiles for {claimed} and cannot compile for {target.arch} as well",
            hint="Mosaic GPU compiles for one architecture per process: pass isolated=True.",
        )
    adapt(has_clusters="clusters" in target.features)
    yield


_process_architecture: dict[str, str] = {}


def _ordered(
    function: Callable[..., Any], args: Args, static: Mapping[str, object]
) -> tuple[list[str] | None, list[Any]]:
    """Return the names and values of the arrays in the order of the function's signature.

    Arrays given by position take the names of the parameters that they fall on, so that both ways
    to write a call give the same artifact. The names are None if there are none: after `*args`,
    for positional-only parameters, or where the function has no signature.
    """
    parameters = _parameters(function)
    if isinstance(args, list):
        _check_positions(function, parameters, len(args), static)
        names = _positional_names(parameters, len(args), static)
        if names is None:
            return None, args
        args = dict(zip(names, args, strict=True))
    if parameters is None:
        return sorted(args), [args[name] for name in sorted(args)]
    _check_names(function, parameters, args, static)
    order = {name: index for index, name in enumerate(parameters)}
    names = sorted(args, key=lambda name: (order.get(name, len(order)), name))
    return names, [args[name] for name in names]


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


def _positional_names(
    parameters: Mapping[str, inspect.Parameter] | None, count: int, static: Mapping[str, object]
) -> list[str] | None:
    taken = list((parameters or {}).values())[:count]
    by_name = inspect.Parameter.POSITIONAL_OR_KEYWORD
    if len(taken) < count or any(p.kind is not by_name or p.name in static for p in taken):
        return None
    return [parameter.name for parameter in taken]


def _check_positions(
    function: Callable[..., Any],
    parameters: Mapping[str, inspect.Parameter] | None,
    count: int,
    static: Mapping[str, object],
) -> None:
    kinds = {p.kind for p in (parameters or {}).values()}
    if parameters is None or inspect.Parameter.VAR_POSITIONAL in kinds:
        return
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in parameters.values() if p.kind in by_position]
    called = _name(function)
    if count > len(names):
        raise SpecError(
            f"{called} takes {_arrays(len(names))} by position, {count} are given.",
            hint=f"Its parameters: {', '.join(parameters)}." if parameters else None,
        )
    twice = next((name for name in names[:count] if name in static), None)
    if twice is not None:
        raise SpecError(
            f"{called} is given {twice!r} twice: as an array by position and as a static one.",
            hint="Give it once.",
        )


def _arrays(count: int) -> str:
    return f"{count} array" if count == 1 else f"{count} arrays"


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", "the function"))


def _check_names(
    function: Callable[..., Any],
    parameters: Mapping[str, inspect.Parameter],
    args: Mapping[str, object],
    static: Mapping[str, object],
) -> None:
    kinds = {parameter.kind for parameter in parameters.values()}
    name = _name(function)
    passed = [*args, *static]
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        for key in passed:
            if key not in parameters:
                error = SpecError(
                    f"{name} has no parameter {key!r}.", hint=suggestion(key, parameters)
                )
                error.field = f"{'args' if key in args else 'static'}.{key}"
                raise error
    missing = [
        parameter.name
        for parameter in parameters.values()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        and parameter.name not in passed
    ]
    if missing:
        raise SpecError(
            f"{name} needs {', '.join(map(repr, missing))}, which is not given.",
            hint="Give it as an array, as null (None), or as a static argument.",
        )


def _signature(names: list[str] | None, arrays: list[Any], stage: Any) -> Signature:
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
    return Signature(tuple(inputs), tuple(outputs), input_tree, output_tree, parameters)


_CALLBACK = "dump_profile"


@contextlib.contextmanager
def recorded_regions() -> Iterator[list[Regions]]:
    """Leave the callbacks of profiled kernels out of what is lowered meanwhile.

    Yields:
        The list that their regions are added to.
    """
    import jax
    from jax.experimental.mosaic.gpu import core

    mosaic: Any = core
    debug: Any = jax.debug
    lower_call, callback = mosaic._mosaic_gpu_lowering_rule, debug.callback
    recorded: list[Regions] = []
    hashes: list[str] = []

    def lowered(*args: Any, **kwargs: Any) -> Any:
        results = lower_call(*args, **kwargs)
        hashes[:] = [_kernel_hash(results)]
        return results

    def called_back(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        name = getattr(function, "__name__", "")
        if name != _CALLBACK or ".mosaic_gpu." not in f".{function.__module__}.":
            return callback(function, *args, **kwargs)
        _add(recorded, _regions(function, hashes))
        return None

    with (
        patched(mosaic, {"_mosaic_gpu_lowering_rule": lowered}),
        patched(debug, {"callback": called_back}),
    ):
        yield recorded


def _kernel_hash(results: Any) -> str:
    """Return the hash in the custom call that these are the results of."""
    from jaxlib.mlir import ir

    if not len(results):
        return ""
    attributes = results[0].owner.attributes
    config = ir.DictAttr(attributes["mhlo.backend_config"])
    return bytes(ir.StringAttr(config["kernel_hash"]).value_bytes).hex()


def _regions(function: Callable[..., Any], hashes: list[str]) -> Regions:
    # The callback's closure is the only place where JAX has both when it calls back.
    closure = inspect.getclosurevars(function).nonlocals
    spec, lowering = closure.get("prof_spec"), closure.get("lowering_result")
    if spec is None or lowering is None or not hashes:
        raise CompileError("pallasc does not know how this JAX version profiles kernels")
    words = int(spec.entries_per_warpgroup)
    traces = int(spec.smem_i32_elements(lowering.block)) // words
    names = sorted(spec.interned_names, key=spec.interned_names.__getitem__)
    return Regions(hashes[0], words, traces, tuple(names))


def _add(recorded: list[Regions], regions: Regions) -> None:
    for other in recorded:
        if other.kernel == regions.kernel and other != regions:
            raise CompileError(
                "two profiled kernels are the same but for the names of their regions",
                hint="Give the regions of both the same names.",
            )
    if regions not in recorded:
        recorded.append(regions)
