"""What pallasc uses of JAX that differs between its versions or is not a public interface."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from pallasc.specs.meshes import Mesh

_MOST_FRAMES = 10
_ATTRIBUTE = "mosaic_gpu.dump_basename"


@contextlib.contextmanager
def source_locations(*, enabled: bool) -> Iterator[None]:
    """Lower with or without source locations while the context lasts.

    With them the kernel's hash and the cubin change with the checkout's folder and with every line
    above the kernel. `jax_traceback_in_locations_limit=0` is enough for XLA's module and for
    Mosaic's up to JAX 0.10; from 0.11 on, Mosaic asks for the user's innermost frame in any case
    (`jax/_src/pallas/mosaic_gpu/lowering.py`), so that function is made to return none.
    """
    import jax
    from jax._src import source_info_util

    config: Any = jax.config
    frames: Any = source_info_util
    limit, user_frame = config.jax_traceback_in_locations_limit, frames.user_frame
    config.update("jax_traceback_in_locations_limit", _MOST_FRAMES if enabled else 0)
    if not enabled:
        frames.user_frame = lambda _: None
    try:
        yield
    finally:
        frames.user_frame = user_frame
        config.update("jax_traceback_in_locations_limit", limit)


def jax_mesh(mesh: Mesh, devices: Sequence[Any]) -> Any:
    """Return JAX's mesh of these devices, in the order of their numbers."""
    import jax
    import numpy as np

    names = tuple(name for name, _ in mesh)
    shape = tuple(size for _, size in mesh)
    return jax.sharding.Mesh(np.array(devices).reshape(shape), names)


def on_one_device(function: Callable[..., Any], mesh: Any) -> Callable[..., Any]:
    """Return `function` as each device of a mesh runs it, on arrays of its own.

    The axes of the mesh have names inside it, and the executable is one device's.
    """
    import jax

    own = jax.sharding.PartitionSpec()
    jax_module: Any = jax
    wrapped: Callable[..., Any] = jax_module.shard_map(
        function, mesh=mesh, in_specs=own, out_specs=own, check_vma=False
    )
    return wrapped


def inferred_architecture() -> tuple[int, int] | None:
    """Return the compute capability that Mosaic lowers for, None if this JAX does not tell."""
    from jax.experimental.mosaic.gpu import core, utils

    # It moved from `core` to `utils` between JAX 0.10 and 0.12.
    infer = getattr(utils, "_infer_arch", None) or getattr(core, "_infer_arch", None)
    if infer is None:
        return None
    major, minor = infer()
    return major, minor


def keep_64_bits() -> Any:
    """Return a context in which 64-bit types stay as they are."""
    import jax
    from jax import experimental

    # Older versions have it in `experimental` alone.
    switch: Any = getattr(jax, "enable_x64", None)
    if switch is None:
        switch = getattr(experimental, "enable_x64", None)
    return switch(True)


def adapt(*, has_clusters: bool) -> None:
    """Patch this process's Mosaic to do what later versions do.

    Args:
        has_clusters: whether the target has clusters of blocks.
    """
    import jax

    series = jax.__version_info__[:2]
    if series == (0, 10) and not has_clusters:
        _adapt_before_hopper()
    if series == (0, 11):
        _name_dumps_alike()


def _adapt_before_hopper() -> None:
    """Replace two operations that do not exist before Hopper, in Mosaic of JAX 0.10.

    It picks one thread of a block with `elect.sync` and fences barrier initialisation for
    clusters in every kernel; neither exists before sm_90, and LLVM aborts the process. Later
    versions compare the thread's index instead, and fence only kernels with clusters.
    """
    from jax._src.lib.mlir.dialects import arith, nvvm
    from jax.experimental.mosaic import gpu
    from jax.experimental.mosaic.gpu import utils

    subset = utils.ThreadSubset
    group_threads = {subset.WARP: 32, subset.WARPGROUP: 128}

    def first_thread(scope: Any = subset.BLOCK) -> Any:
        index = utils.thread_idx()
        if scope in group_threads:
            index = arith.remui(index, utils.c(group_threads[scope], index.type))
        zero = utils.c(0, index.type)
        return arith.cmpi(arith.CmpIPredicate.eq, index, zero)

    gpu.single_thread_predicate = first_thread
    utils.single_thread_predicate = first_thread
    mosaic: Any = nvvm
    mosaic.fence_mbarrier_init = lambda *_, **__: None


@cache
def _name_dumps_alike() -> None:
    """Give every module of this process the same name for its dumps, in Mosaic of JAX 0.11.

    It numbers the kernels of a process and puts the number into each module, as the name of the
    files that it would dump (`get_or_set_dump_options`). The kernel's hash, and with it the key of
    a compilation, would depend on what was compiled before. JAX 0.12 leaves it out of the hash.
    """
    from jax.experimental.mosaic.gpu import core
    from jaxlib.mlir import ir

    mosaic: Any = core
    dialect = mosaic.dialect
    options_of = dialect.get_or_set_dump_options

    def dump_options(module: Any) -> Any:
        attributes = module.operation.attributes
        if _ATTRIBUTE not in attributes:
            with module.context:
                attributes[_ATTRIBUTE] = ir.StringAttr.get("kernel")
        return options_of(module)

    dialect.get_or_set_dump_options = dump_options
