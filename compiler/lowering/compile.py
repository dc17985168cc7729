"""Compile a function for a target in this process: from a callable to an artifact.

The steps: trace and lower (`lower`), compile with XLA, parse the executable (`serialized`),
translate it into a plan (`translate`), read the resources (`resources`), check, write the record.

JAX prepares the call of XLA, but pallasc makes it, for two reasons: JAX's persistent cache could
return the output of a different assembler, and XLA could time candidates on a GPU of this machine.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import asdict, replace

from pallasc.compiler.lowering.constructs import hint, message
from pallasc.compiler.lowering.diagnose import (
    definition,
    explain,
    explain_compilation,
    is_mosaic,
    operation_place,
    user_place,
)
from pallasc.compiler.lowering.jax_versions import patched, target_config, variable_of_cpp
from pallasc.compiler.lowering.kernel_output import by_kernel, captured_output
from pallasc.compiler.lowering.lower import Job, Lowered, lower
from pallasc.compiler.lowering.resources import (
    check_launches,
    check_makers,
    kernel_resources,
)
from pallasc.compiler.lowering.serialized import parse_executable
from pallasc.compiler.lowering.translate import Translation, UnsupportedStepError, translate
from pallasc.compiler.toolchain.toolchain import check_folder
from pallasc.errors import CompileError, Location, summary_of
from pallasc.specs.artifacts.artifact import ARTIFACT_SCHEMA, KernelResources
from pallasc.specs.artifacts.cubin import minimum_driver
from pallasc.specs.artifacts.plan import Binding, Launch, LaunchPlan, check_ranges, plan_to_json
from pallasc.specs.canonical import canonical_json


@dataclass(frozen=True, slots=True)
class Tools:
    """The compiler: the toolchain's record and digests, and the assembler.

    `identity` contains the digests, by label, of everything installed that affects the result;
    `variables` the environment variables that reach the compiler. `toolkit` is the folder from
    which XLA and Mosaic take the assembler and the device library.
    """

    record: Mapping[str, object]
    ptxas: Path
    identity: Mapping[str, str]
    variables: Mapping[str, str]
    toolkit: Path


def lower_job(job: Job) -> Lowered:
    """Trace and lower a job.

    Raises:
        CompileError: tracing or lowering fails; the error has the user's line and JAX's message.
    """
    check_folder()
    try:
        return lower(job)
    except (Exception, SystemExit) as error:
        explained = explain(error, job.function)
        if is_mosaic(error):
            explained.location = _place_in_kernel(job) or explained.location
        explained.message = message(error) or explained.message
        explained.hint = explained.hint or hint(error)
        raise explained from error


def _place_in_kernel(job: Job) -> Location | None:
    """Lower again with locations, to find the line at which one of Mosaic's passes failed."""
    try:
        lower(job, locations=True)
    except Exception as again:  # noqa: BLE001 - the same error as before, or another one
        return operation_place(again)
    return None


def action_fields(job: Job, lowered: Lowered, tools: Tools) -> dict[str, str]:
    """Return the labeled fields of an action key, which together determine the artifact.

    `module` is the digest of the lowered function; Mosaic kernels are part of it. The fields `tool`
    are digests of Python, JAX with its plugin, the assembler, the device library, and pallasc
    (`toolchain/identity`). The fields `variable` are environment variables that reach the compiler
    (`toolchain/setup`). `workers/worker` adds JAX settings that user code has changed, and hashes
    all fields (`labelled_key`).
    """
    signature = [lowered.signature.input_tree, lowered.signature.output_tree]
    names = list(lowered.signature.parameters)
    return {
        "artifact": str(ARTIFACT_SCHEMA),
        "module": lowered.module,
        "paths": canonical_json([b.path for b in lowered.signature.inputs]).decode(),
        "signature": canonical_json(signature).decode(),
        **({"parameters": canonical_json(names).decode()} if names else {}),
        "target": target_config(job.target),
        "architecture": canonical_json(job.target.facts()).decode(),
        "target name": job.target.name,
        **({"mesh": canonical_json(job.mesh).decode()} if job.mesh else {}),
        **{f"tool {label}": value for label, value in tools.identity.items()},
        **{f"variable {name}": value for name, value in tools.variables.items()},
    }


def compile_job(
    job: Job, lowered: Lowered, tools: Tools
) -> tuple[dict[str, object], dict[str, bytes]]:
    """Compile a lowered job and return the artifact's record and its blobs.

    Raises:
        CompileError: compilation failed, or the result is not for the requested target.
        ToolError: the assembler that made a kernel is not the one in the toolchain's record.
    """
    try:
        translation = compile_lowered(lowered, job, tools)
    except Exception as error:
        raise _explain_again(job, tools, error) from error
    check_makers(translation, tools.ptxas, tools.record)
    kernels = kernel_resources(translation, tools.ptxas, job.target.arch)
    check_architecture(translation, kernels, job.target.arch)
    plan = build_plan(translation, lowered.signature)
    if not plan.outputs and not plan.steps:
        raise CompileError(
            "the function returns nothing, so XLA removes all of its code.",
            location=definition(job.function),
            hint="Return the results of its kernels.",
        )
    try:
        check_launches(plan, kernels, job.target)
    except CompileError as error:
        error.location = definition(job.function)
        raise
    record = {
        "schema": ARTIFACT_SCHEMA,
        "target": {"name": job.target.name, **job.target.figures()},
        "toolchain": dict(tools.record),
        "minimum_driver": minimum_driver_of(translation, kernels, tools.record),
        "plan": plan_to_json(plan),
        "kernels": [asdict(kernel) for kernel in kernels],
        "blobs": {key: len(data) for key, data in sorted(translation.blobs.items())},
    }
    return record, translation.blobs


def _explain_again(job: Job, tools: Tools, error: Exception) -> Exception:
    """Compile again with locations on, for the error message only."""
    place = definition(job.function)
    with captured_output() as output:
        try:
            compile_lowered(lower(job, locations=True), job, tools)
        except UnsupportedStepError as again:
            place = user_place([Location(*frame) for frame in again.frames]) or place
        except Exception as again:  # noqa: BLE001 - it becomes the error that is raised
            return explain_compilation(again, job.function, output())
    if isinstance(error, UnsupportedStepError):
        error.location = place
        return error
    return explain_compilation(error, job.function, "")


def build_plan(translation: Translation, signature: LaunchPlan) -> LaunchPlan:
    """Combine the translation with the signature: map arrays to buffers.

    Raises:
        CompileError: the executable's inputs or outputs differ from the function's.
    """
    inputs = [i for i, buffer in enumerate(translation.buffers) if buffer.role == "input"]
    plan = replace(
        signature,
        buffers=tuple(translation.buffers),
        inputs=_bound("inputs", signature.inputs, inputs),
        outputs=_bound("outputs", signature.outputs, translation.output_buffers),
        steps=tuple(translation.steps),
    )
    check_ranges(plan)
    return plan


def _bound(what: str, bindings: Sequence[Binding], buffers: Sequence[int]) -> tuple[Binding, ...]:
    if len(bindings) != len(buffers):
        raise CompileError(
            f"the executable has {len(buffers)} {what}, the function {len(bindings)}"
        )
    pairs = zip(bindings, buffers, strict=True)
    return tuple(replace(binding, buffer=buffer) for binding, buffer in pairs)


def check_architecture(translation: Translation, kernels: list[KernelResources], arch: str) -> None:
    """Check that every cubin is for the requested architecture.

    Raises:
        CompileError: a cubin is for a different one.
    """
    requested = int(arch.removeprefix("sm_").rstrip("af"))
    for kernel in kernels:
        sm = translation.cubin(kernel.cubin).sm
        if sm != requested:
            raise CompileError(f"asked for {arch}, the cubin of {kernel.name} is for sm_{sm}")


def minimum_driver_of(
    translation: Translation, kernels: list[KernelResources], record: Mapping[str, object]
) -> dict[str, str]:
    """Return the oldest driver that can load all cubins.

    Some cubins do not name their toolkit, for example CUDA 12 cubins for an architecture before
    sm_100. Their toolkit has the version of the assembler in `record`, the toolchain's record,
    since `check_makers` accepts cubins from no other assembler.
    """
    assembler = ".".join(str(record.get("ptxas", "")).split(".")[:2])
    needs = [{"cuda": "12.0", "linux": "525.60.13"}]
    for key in {kernel.cubin for kernel in kernels}:
        cubin = translation.cubin(key)
        needs.append(minimum_driver(toolkit=cubin.toolkit or assembler, sm=cubin.sm))
    return max(needs, key=lambda need: [int(part) for part in need["cuda"].split(".")])


class _Call(NamedTuple):
    """The arguments of `jax._src.compiler.compile_or_get_cached`."""

    backend: Any
    module: Any
    devices: Any
    options: Any
    host_callbacks: Any
    executable_devices: Any
    profiler: Any = None


class _Stopped(BaseException):
    """Stops JAX before its last step; a `BaseException`, so that JAX does not handle it."""


def compile_lowered(
    lowered: Lowered, job: Job, tools: Tools, *, ptx_folder: Path | None = None
) -> Translation:
    """Compile a lowered job; return its steps, buffers, and cubins.

    Args:
        lowered: the result of `lower_job`.
        job: the job that was lowered.
        tools: the compiler.
        ptx_folder: folder for the PTX of XLA's own kernels; None writes no PTX.

    Raises:
        Exception: XLA fails, with any type of error, or the executable contains something that a
            plan cannot express.
    """
    # From JAX 0.11 on, XLA assembles with libnvJitLink in this process if it can load it.
    options = {
        "xla_gpu_libnvjitlink_mode": "LIB_NV_JIT_LINK_MODE_DISABLED",
        "xla_gpu_cuda_data_dir": str(tools.toolkit),
    }
    if ptx_folder is not None:
        options |= {"xla_dump_to": str(ptx_folder), "xla_dump_emitter_re": "ptx"}
    call = prepare_call(lowered.stage, options)
    ranks = math.prod(size for _, size in job.mesh)
    callbacks = {"host_callbacks": call.host_callbacks} if call.host_callbacks else {}
    with device_library(tools.toolkit):
        executable = call.backend.compile(
            call.module,
            executable_devices=call.executable_devices,
            compile_options=call.options,
            **callbacks,
        )
    return translate(parse_executable(executable.serialize()), ranks=ranks)


def device_library(toolkit: Path) -> AbstractContextManager[None]:
    """Make Mosaic take the device library from a toolkit; XLA has `xla_gpu_cuda_data_dir` for that.

    Mosaic keeps the library of the first kernel that it compiles in a process. By default, it
    prefers the library in `/usr/local/cuda`, if there is one (`tsl::CandidateCudaRoots`).
    """
    return variable_of_cpp("CUDA_HOME", str(toolkit))


def prepare_call(stage: Any, options: dict[str, str]) -> _Call:
    """Return XLA's call for the result of `jax.jit(…).trace(…).lower(…)`."""
    from jax._src import compiler

    calls: list[_Call] = []

    def stop(*arguments: Any) -> Any:
        calls.append(_Call(*arguments))
        raise _Stopped

    with contextlib.suppress(_Stopped), patched(compiler, {"compile_or_get_cached": stop}):
        stage.compile(compiler_options=options)
    if not calls:
        raise RuntimeError("JAX compiled a module by itself")
    return calls[0]


def xla_ptx(job: Job, tools: Tools, cubins: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Compile a job again, and return the PTX of XLA's kernels by the digest of their cubin.

    Args:
        job: the job that the kernels were compiled from.
        tools: the compiler that the kernels were compiled with.
        cubins: the names of the kernels, by the digest of their cubin.

    Raises:
        CompileError: compilation now gives a different cubin or fails, or XLA wrote no PTX.
    """
    with tempfile.TemporaryDirectory(prefix="pallasc-ptx-") as folder:
        try:
            translation = compile_lowered(lower(job), job, tools, ptx_folder=Path(folder))
        except Exception as error:
            raise _not_found(job, f"recompiling it failed: {summary_of(error)}") from error
        texts = written_kernels(Path(folder))
    now = {(s.kernel, s.cubin) for s in translation.steps if isinstance(s, Launch)}
    found = {}
    for cubin, names in cubins.items():
        for name in names:
            if (name, cubin) not in now:
                raise _not_found(job, f"{name} is compiled to another cubin now")
        written = set.intersection(*(texts.get(name, set()) for name in names))
        if len(written) != 1:
            raise _not_found(job, f"XLA wrote {len(written)} texts for {', '.join(names)}")
        (found[cubin],) = written
    return found


def written_kernels(folder: Path) -> dict[str, set[str]]:
    """Return the distinct PTX texts in a folder by the names of their kernels."""
    texts = (place.read_text(encoding="utf-8") for place in sorted(folder.glob("*.ptx")))
    return {name: {*found} for name, found in by_kernel(texts).items()}


def _not_found(job: Job, why: str) -> CompileError:
    return CompileError(
        f"cannot recover the PTX of XLA's kernels: {why}.", location=definition(job.function)
    )
