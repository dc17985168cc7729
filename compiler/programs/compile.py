"""Compile a whole JAX program for another machine, which `pallasc machine` described.

The artifact's record has the usual fields with an empty plan and no kernels, and a field `program`:

* `key`: the key under which the machine's JAX looks the executable up
* `module`: the name of its module
* `entry`: digest of the blob with the content of JAX's cache file, "" if it was only lowered
* `lines`: digest of the blob with the source line of each line of the module (`module_lines`)
"""

from __future__ import annotations

import inspect
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pallasc.cache.stat_digest import FileDigests
from pallasc.compiler.lowering.compile import Tools, device_library, prepare_call
from pallasc.compiler.lowering.constructs import jaxprs_of
from pallasc.compiler.lowering.diagnose import (
    definition,
    explain,
    explain_compilation,
    frames_of,
    user_place,
)
from pallasc.compiler.lowering.entry import abstract, signature_of
from pallasc.compiler.lowering.jax_versions import adapted, jax_mesh, source_locations
from pallasc.compiler.lowering.kernel_output import captured_output
from pallasc.compiler.lowering.lower import Job
from pallasc.compiler.programs.jax_cache import (
    entry_bytes,
    machine_devices,
    on_machine,
    program_key,
)
from pallasc.compiler.programs.lines import module_lines
from pallasc.compiler.toolchain.identity import PROGRAMS, own_digest
from pallasc.compiler.toolchain.toolchain import check_folder
from pallasc.errors import Location, SpecError, UnsupportedError
from pallasc.specs.artifacts.artifact import ARTIFACT_SCHEMA
from pallasc.specs.artifacts.plan import LaunchPlan, plan_to_json
from pallasc.specs.canonical import digest
from pallasc.specs.spec import Axes, Program

_ON_THE_DEVICE = ("mpmd_map", "core_map", "pallas_call")
_CALLBACKS = ("callback", "debug_print")


@dataclass(frozen=True, slots=True)
class ProgramJob:
    """A program and its job; paths of source lines are relative to `base_dir`."""

    job: Job
    program: Program
    base_dir: str


@dataclass(frozen=True, slots=True)
class LoweredProgram:
    """A lowered program: the call that compiles it, its key, and the lines of its module."""

    call: Any
    key: str
    module: str
    lines: bytes


def importing(program: Program) -> AbstractContextManager[None]:
    """Return a context in which the user's modules see the machine's GPUs.

    Raises:
        ToolError: the installed JAX cannot describe these GPUs.
    """
    return on_machine(machine_devices(program.machine), tracing=False)


def lower_program(work: ProgramJob) -> LoweredProgram:
    """Trace and lower a program as the machine's JAX does, and compute its key.

    Raises:
        CompileError: tracing or lowering fails; the error has the user's line.
        UnsupportedError: the program calls Python while it runs; the error has the user's line.
        SpecError: the arguments do not fit the function.
        ToolError: the installed JAX cannot describe the machine.
    """
    check_folder()
    devices = machine_devices(work.program.machine)
    try:
        stage = _lowered(work, devices, locations=False)
        call = prepare_call(stage, {})
        if call.host_callbacks:
            raise _callback_error(definition(work.job.function))
        located = None
        if work.program.only_lower:  # `warm --verify` shows the lines of changes
            located = _lowered(work, devices, locations=True)
    except (Exception, SystemExit) as error:
        raise explain(error, work.job.function) from error
    module = str(call.module.operation.attributes["sym_name"]).strip('"')
    places = "" if located is None else _text(located, locations=True)
    lines = module_lines(_text(stage), places, work.base_dir)
    return LoweredProgram(call, program_key(call, work.program.machine), module, lines)


def _text(stage: Any, *, locations: bool = False) -> str:
    operation = stage.compiler_ir().operation
    if not locations:
        return str(operation.get_asm(enable_debug_info=False, use_local_scope=True))
    return str(operation.get_asm(enable_debug_info=True, use_local_scope=True))


@cache
def _traced_again() -> Any:
    """Return a JAX context; JAX reuses a lowering only if the context had an equal value."""
    import jax

    return jax.make_user_context(False)


def _lowered(work: ProgramJob, devices: Sequence[Any], *, locations: bool) -> Any:
    import jax

    job = work.job
    count = math.prod(size for _, size in job.mesh)
    if count > len(devices):
        raise SpecError(f"a mesh of {count} devices; the machine has {len(devices)}.")
    with (
        job.within(),
        on_machine(devices, tracing=True),
        source_locations(enabled=locations),
        _traced_again()(locations),
        adapted(job.target),
    ):
        explicit = work.program.explicit
        mesh = jax_mesh(job.mesh, devices[:count], explicit) if job.mesh else None
        positional, named = _arguments(work, mesh)
        function: Any = job.function
        if not hasattr(function, "trace"):
            static = [name for name in job.static if name in signature_of(function).parameters]
            function = jax.jit(
                function, static_argnames=static, donate_argnames=work.program.donate or None
            )
        elif work.program.donate:
            raise SpecError(
                "the function is jitted, so it has its own donations.",
                hint="Give donate_argnums to jax.jit instead.",
            )
        traced = function.trace(*positional, **named)
        if place := next(_callbacks(traced.jaxpr), None):
            raise _callback_error(place or definition(job.function))
        return traced.lower(lowering_platforms=("cuda",))


def _arguments(work: ProgramJob, mesh: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments as most programs pass them: by position as far as possible."""
    job, shardings = work.job, work.program.shardings
    items = enumerate(job.args) if isinstance(job.args, list) else job.args.items()
    arrays = {str(key): _sharded(value, str(key), shardings, mesh) for key, value in items}
    if isinstance(job.args, list):
        return [*arrays.values()], dict(job.static)
    try:
        bound = inspect.signature(job.function).bind(**arrays, **job.static)
    except ValueError:
        return [], {**arrays, **job.static}
    except TypeError as error:
        raise SpecError(f"the arguments do not fit the function: {error}.") from error
    return [*bound.args], dict(bound.kwargs)


def _sharded(value: Any, path: str, shardings: Mapping[str, tuple[Axes, ...]], mesh: Any) -> Any:
    """Return the abstract value of an argument, with the shardings of its arrays."""
    import jax

    made = abstract(value, None)
    own = {name: axes for name, axes in shardings.items() if f"{name}.".startswith(f"{path}.")}
    if not own:
        return made

    used: set[str] = set()

    def placed(key_path: Any, array: Any) -> Any:
        parts = [path, *(str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k))))
                         for k in key_path)]  # fmt: skip
        names = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
        used.update(names)
        for name in names:
            axes = own.get(name)
            if axes is not None:
                spec = jax.sharding.PartitionSpec(*axes)
                sharding = jax.sharding.NamedSharding(mesh, spec)
                return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)
        return array

    divided = jax.tree_util.tree_map_with_path(placed, made)
    if unused := sorted({*own} - used):
        raise SpecError(f"shardings: no array is at {unused[0]!r} in args.")
    return divided


def _callbacks(jaxpr: Any) -> Iterator[Location | None]:
    """Yield the user's line of each equation that calls Python while the program runs."""
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if any(word in equation.primitive.name for word in _CALLBACKS):
            yield user_place(frames_of(equation))
        elif equation.primitive.name not in _ON_THE_DEVICE:
            for inner in jaxprs_of(equation):
                yield from _callbacks(inner)


def _callback_error(place: Location | None) -> UnsupportedError:
    return UnsupportedError(
        "the program calls Python while it runs; a program compiled in advance cannot.",
        location=place,
        hint="Move jax.debug.print, jax.pure_callback, and io_callback out of it.",
    )


@cache
def _code() -> str:
    """Return the digest of pallasc's modules that compile programs."""
    return own_digest(FileDigests().digest, PROGRAMS)


def program_fields(work: ProgramJob, lowered: LoweredProgram, tools: Tools) -> dict[str, str]:
    """Return the labeled fields of an action key; JAX's key covers module, options, and machine."""
    return {
        "artifact": str(ARTIFACT_SCHEMA),
        "program": lowered.key,
        "program code": _code(),
        "lines": digest(lowered.lines),
        "compression": work.program.machine.compression,
        "tuned": digest(work.program.tuned),
        **({"only": "lowered"} if work.program.only_lower else {}),
        **{f"tool {label}": value for label, value in tools.identity.items()},
        **{f"variable {name}": value for name, value in tools.variables.items()},
    }


def compile_program(
    work: ProgramJob, lowered: LoweredProgram, tools: Tools
) -> tuple[dict[str, object], dict[str, bytes]]:
    """Compile a lowered program and return the artifact's record and its blobs.

    Raises:
        CompileError: XLA fails.
        ToolError: the machine's JAX compresses with zstandard, which is not installed here.
    """
    job, program = work.job, work.program
    blobs = {digest(lowered.lines): lowered.lines}
    entry = ""
    if not program.only_lower:
        with captured_output() as output:
            try:
                executable = _executable(lowered.call, tools, program.tuned)
            except Exception as error:
                raise explain_compilation(error, job.function, output()) from error
        content = entry_bytes(executable, program.machine)
        entry = digest(content)
        blobs[entry] = content
    plan = plan_to_json(LaunchPlan((), (), (), (), [], []))
    record = {
        "schema": ARTIFACT_SCHEMA,
        "target": {"name": job.target.name, **job.target.figures()},
        "toolchain": dict(tools.record),
        "plan": plan,
        "kernels": [],
        "blobs": {key: len(data) for key, data in sorted(blobs.items())},
        "program": {
            "key": lowered.key,
            "module": lowered.module,
            "entry": entry,
            "lines": digest(lowered.lines),
        },
    }
    return record, blobs


def _executable(call: Any, tools: Tools, tuned: bytes) -> bytes:
    """Compile with the toolchain's assembler and recorded autotuning.

    The options are set in a copy: the machine's JAX computes its key without them.
    """
    options = deepcopy(call.options)
    own = {
        "xla_gpu_libnvjitlink_mode": "LIB_NV_JIT_LINK_MODE_DISABLED",
        "xla_gpu_cuda_data_dir": str(tools.toolkit),
    }
    with tempfile.TemporaryDirectory(prefix="pallasc-autotune-") as folder:
        if tuned:
            # XLA chooses between text and binary by the suffix.
            kind = "textproto" if tuned.isascii() else "pb"
            results = Path(folder, f"{digest(tuned)}.{kind}")
            results.write_bytes(tuned)
            own["xla_gpu_load_autotune_results_from"] = str(results)
        options.env_option_overrides = [*options.env_option_overrides, *own.items()]
        with device_library(tools.toolkit):
            compiled = call.backend.compile(
                call.module, executable_devices=call.executable_devices, compile_options=options
            )
        return bytes(compiled.serialize())
