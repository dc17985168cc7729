"""Kernels that measure themselves."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

_SCOPES: Any = plgpu.core if hasattr(plgpu, "core") else plgpu


def _like(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _params(**more: Any) -> Any:
    return plgpu.CompilerParams(profile_space=16, profile_dir="/nowhere", **more)


def region(x: Any) -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        with jax.named_scope("add"):
            o_ref[...] = x_ref[...] + 1

    grid = {"grid": (2,), "grid_names": ("block",)}
    return plgpu.kernel(body, out_type=_like(x), compiler_params=_params(), **grid)(x)


def two(x: Any) -> Any:
    """Launch two profiled kernels, with work of XLA's between, and one that is not profiled."""

    def body(x_ref: Any, o_ref: Any, signal: Any) -> None:
        with jax.named_scope("signal"):
            pl.semaphore_signal(signal)
        o_ref[...] = x_ref[...] * 2

    def plain(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 3

    params = _params(profile_trace_scope=_SCOPES.TraceScope.WARP)
    scratch = [plgpu.SemaphoreType.REGULAR]
    doubled = plgpu.kernel(body, out_type=_like(x), scratch_types=scratch, compiler_params=params)(
        x
    )
    return region(jnp.sin(doubled)), plgpu.kernel(plain, out_type=_like(x))(doubled)


CASES = {"region": (region, ["f32[128]"], {}), "two": (two, ["f32[128]"], {})}
