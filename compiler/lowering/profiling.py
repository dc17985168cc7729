"""Leave a profiled kernel's measurements where the runtime finds them, instead of calling back.

With `CompilerParams(profile_space=…)` JAX gives a kernel one more result and appends a callback to
the host that writes it to a file. A cubin cannot call back, so the callback is left out, and what
it needs to read the result is recorded (`Regions`). A kernel is recognised by JAX's hash of it.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from pallasc.compiler.executable.mosaic_kernel import Regions
from pallasc.compiler.lowering.patches import patched
from pallasc.errors import CompileError

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
