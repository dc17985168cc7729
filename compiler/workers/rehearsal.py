"""Compile a small kernel before the first task: what JAX, Mosaic and XLA do once is done then.

JAX imports its dialects when it first traces, XLA starts its compiler when it first compiles. What
a process compiles does not depend on what it compiled before, so no artifact shows a rehearsal.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pallasc.compiler.lowering.compile import Job, Tools, compile_job, lower_job
from pallasc.specs.arrays import resolve_array
from pallasc.specs.gpus import Target

_SIZE = 128


def rehearse(target: Target, tools: Tools) -> None:
    """Compile a kernel of this module for a target; what goes wrong is left to the first task."""
    array = resolve_array(f"f32[{_SIZE}]")
    job = Job(function=_double, args={"x": array}, static={}, target=target)
    with suppress(Exception):
        compile_job(job, lower_job(job), tools)


def _double(x: Any) -> Any:
    import jax
    from jax.experimental.pallas import mosaic_gpu as plgpu

    def body(x_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = x_gmem[...] + x_gmem[...]

    out = jax.ShapeDtypeStruct((_SIZE,), x.dtype)
    warpgroup = plgpu.LoweringSemantics.Warpgroup
    compiled = plgpu.CompilerParams(lowering_semantics=warpgroup)
    return plgpu.kernel(body, out_type=out, compiler_params=compiled)(x)
