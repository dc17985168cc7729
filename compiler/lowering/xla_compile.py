"""Hand a lowered module to XLA, with JAX's options and those that choose the assembler.

JAX prepares the call and is stopped at its last step, so that neither its persistent cache answers,
which may hold what another assembler made, nor a GPU of this machine is asked for its timings.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pallasc.compiler.lowering.patches import patched

_NO_LIBRARY = {"xla_gpu_libnvjitlink_mode": "LIB_NV_JIT_LINK_MODE_DISABLED"}
"""XLA assembles with a library inside the process wherever it can load one; JAX 0.10 does not."""


class _Call(NamedTuple):
    """The arguments of `jax._src.compiler.compile_or_get_cached`."""

    backend: Any
    module: Any
    devices: Any
    options: Any
    host_callbacks: Any
    executable_devices: Any
    profiler: Any = None


class _Prepared(BaseException):
    """Carries the call out of JAX; a `BaseException`, so that JAX does not handle it."""

    def __init__(self, call: _Call) -> None:
        super().__init__()
        self.call = call


def compile_module(
    stage: Any,
    toolkit: Path | None,
    elsewhere: Callable[[Any], bytes] | None = None,
    *,
    ptx_folder: Path | None = None,
) -> bytes:
    """Compile what `jax.jit(…).trace(…).lower(…)` returned; return the serialised executable.

    Args:
        stage: the lowered function.
        toolkit: the CUDA toolkit whose assembler and device library XLA takes; None for JAX's.
        elsewhere: compiles a prepared call; by default this process does.
        ptx_folder: where XLA writes the PTX of its own kernels, None for nowhere.

    Raises:
        Exception: whatever XLA raises.
    """
    options: dict[str, str] = dict(_NO_LIBRARY)
    if toolkit is not None:
        options["xla_gpu_cuda_data_dir"] = str(toolkit)
    if ptx_folder is not None:
        options |= {"xla_dump_to": str(ptx_folder), "xla_dump_emitter_re": "ptx"}
    call = _prepare(stage, options)
    if elsewhere is not None:
        return elsewhere(call)
    callbacks = {"host_callbacks": call.host_callbacks} if call.host_callbacks else {}
    executable = call.backend.compile(
        call.module,
        executable_devices=call.executable_devices,
        compile_options=call.options,
        **callbacks,
    )
    serialized: bytes = executable.serialize()
    return serialized


def _prepare(stage: Any, options: dict[str, str]) -> _Call:
    from jax._src import compiler

    def stop(*arguments: Any) -> Any:
        raise _Prepared(_Call(*arguments))

    try:
        with patched(compiler, {"compile_or_get_cached": stop}):
            stage.compile(compiler_options=options)
    except _Prepared as prepared:
        return prepared.call
    raise RuntimeError("JAX compiled a module by itself")
