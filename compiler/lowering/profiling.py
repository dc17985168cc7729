"""Keep what a profiled kernel measures where the runtime finds it, instead of calling back.

With `CompilerParams(profile_space=…)` JAX gives a kernel one more result and appends a callback to
the host that writes it to a file. No cubin can call back; so the callback is left out here, and
what it would have known of the result is kept (`profiles`). A kernel is recognised by the hash that
JAX gives it.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from pallasc.compiler.executable.profiles import Regions
from pallasc.compiler.lowering.patches import replaced
from pallasc.errors import CompileError

_CALLBACK = "dump_profile"


@contextlib.contextmanager
def profiles_kept() -> Iterator[list[Regions]]:
    """Leave the callbacks of profiled kernels out of what is lowered meanwhile.

    Yields:
        The list that their regions are put into.
    """
    import jax
    from jax.experimental.mosaic.gpu import core

    mosaic: Any = core
    debug: Any = jax.debug
    lower_call, callback = mosaic._mosaic_gpu_lowering_rule, debug.callback
    found: list[Regions] = []
    hashes: list[str] = []

    def lowered(*args: Any, **kwargs: Any) -> Any:
        results = lower_call(*args, **kwargs)
        hashes[:] = [_kernel_hash(results)]
        return results

    def called_back(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if getattr(function, "__name__", "") != _CALLBACK or not _is_mosaic(function):
            return callback(function, *args, **kwargs)
        _add(found, _regions(function, hashes))
        return None

    with (
        replaced(mosaic, {"_mosaic_gpu_lowering_rule": lowered}),
        replaced(debug, {"callback": called_back}),
    ):
        yield found


def _is_mosaic(function: Callable[..., Any]) -> bool:
    return ".mosaic_gpu." in f".{function.__module__}."


def _kernel_hash(results: Any) -> str:
    """Return the hash in the custom call that these are the results of."""
    from jaxlib.mlir import ir

    if not len(results):
        return ""
    attributes = results[0].owner.attributes
    config = ir.DictAttr(attributes["mhlo.backend_config"])
    return bytes(ir.StringAttr(config["kernel_hash"]).value_bytes).hex()


def _regions(function: Callable[..., Any], hashes: list[str]) -> Regions:
    known = inspect.getclosurevars(function).nonlocals
    spec, lowering = known.get("prof_spec"), known.get("lowering_result")
    if spec is None or lowering is None or not hashes:
        raise CompileError("this JAX version profiles kernels in a way that is not known here")
    words = int(spec.entries_per_warpgroup)
    traces = int(spec.smem_i32_elements(lowering.block)) // words
    names = sorted(spec.interned_names, key=spec.interned_names.__getitem__)
    return Regions(hashes[0], words, traces, tuple(names))


def _add(found: list[Regions], regions: Regions) -> None:
    for other in found:
        if other.kernel == regions.kernel and other != regions:
            raise CompileError(
                "two profiled kernels are the same but for the names of their regions",
                hint="Give the regions of both the same names.",
            )
    if regions not in found:
        found.append(regions)
