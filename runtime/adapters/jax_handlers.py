"""C handlers that launch kernels in JAX programs, through XLA's foreign function interface.

A call becomes a custom call whose attributes contain flat plans, one for each GPU that the kernel
was compiled for (`runtime/native/xla.c` describes the attributes). The handlers verify and load the
plans when XLA loads the program, and launch without Python. So `jax.export` can write such a
program to a file, with the cubins or with their digests.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pallasc.errors import CorruptError, ToolError, UnsupportedError
from pallasc.runtime.calls.match import Variants
from pallasc.runtime.matching.candidates import ArrayType, Candidate, find_blob
from pallasc.runtime.matching.selection import arch_refusal, several_fit
from pallasc.runtime.matching.tuned import Selector
from pallasc.runtime.native.library import open_library
from pallasc.specs.artifacts.flat_plan import flat_plan
from pallasc.specs.gpus import ARCH, device_names

TARGET = "pallasc_launch"
"""Name of the custom call in programs."""

MOST_PLANS = 256
"""Maximum number of plans in one call; must match xla.c."""

_FIND = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_size_t),
)
_lock = threading.Lock()
_callback: list[Any] = []
"""The callback for C; once registered, it must live as long as the process."""


class Plan(bytes):
    """A flat plan in an attribute; printed programs show only its size."""

    def __repr__(self) -> str:
        return f"<{len(self)} bytes>"


def register_jax_handlers() -> None:
    """Let JAX run programs that contain pallasc kernels, such as those from `jax.export`.

    Calling a kernel under `jax.jit` also registers the handlers. Further calls do nothing.

    Raises:
        ToolError: pallasc's native library is missing, or JAX is not installed.
    """
    try:
        functions = open_library().functions
    except ToolError as error:
        raise ToolError(
            f"JAX programs cannot launch kernels: {error.message}", hint=error.hint
        ) from error
    try:
        import jax.ffi
    except ImportError as error:
        raise ToolError("JAX is not installed.", hint="Run pip install jax.") from error
    with _lock:
        if not _callback:
            handlers = {
                stage: jax.ffi.pycapsule(getattr(functions, f"pallasc_xla_cuda_{stage}"))
                for stage in ("instantiate", "prepare", "execute")
            }
            jax.ffi.register_ffi_target(TARGET, handlers, platform="CUDA")
            _callback.append(_FIND(_find))
            functions.pallasc_xla_find_with(_callback[0])


def jax_export_checks() -> list[Any]:
    """Return the `disabled_checks` that `jax.export.export` needs for functions with kernels.

    JAX refuses to export custom calls without a compatibility guarantee. pallasc guarantees that a
    program can be run as long as pallasc supports the version of its plans.

    Raises:
        ToolError: as for `register_jax_handlers`. JAX cannot export kernels without handlers.
    """
    register_jax_handlers()
    from jax.export import DisabledSafetyCheck

    return [DisabledSafetyCheck.custom_call(TARGET)]


def handler(
    kernel: Variants, types: Sequence[ArrayType], results: Sequence[Any], aliases: Mapping[int, int]
) -> Callable[..., Any]:
    """Return a function that launches a kernel inside a JAX program.

    Args:
        kernel: the kernel to launch.
        types: the types of its arrays.
        results: what XLA allocates: inputs updated in place, results, then memory for temporaries.
        aliases: for each input that is updated in place, the number of its result.

    Raises:
        SelectionError: several variants for one architecture fit.
        CorruptError: an artifact is damaged.
        ToolError: as for `register_jax_handlers`.
        UnsupportedError: a flat plan cannot express a variant (for example, for several devices),
            or there are more than `MOST_PLANS` variants.
    """
    import jax

    register_jax_handlers()
    kept = vars(kernel).setdefault("_jax_attributes", {})
    key = tuple(types)
    if key not in kept:
        kept[key] = _attributes(kernel, types)
    call = jax.ffi.ffi_call(TARGET, list(results), input_output_aliases=dict(aliases))
    return partial(call, **kept[key])


def _attributes(kernel: Variants, types: Sequence[ArrayType]) -> dict[str, Any]:
    names = _local_names()
    candidates = kernel.selector.by_targets(tuple(types), names)
    by_digest = kernel.is_by_digest
    _check_choice(kernel.selector, candidates)
    ordered = sorted(candidates, key=lambda candidate: _order(candidate, names))
    if len(ordered) > MOST_PLANS:
        raise UnsupportedError(
            f"{kernel.name} has {len(ordered)} variants for these arrays, and a call inside JAX "
            f"takes at most {MOST_PLANS}.",
            hint="Choose some of them with kernel.variant(…).",
        )
    plans = {
        f"{number:03}{candidate.id}": Plan(
            flat_plan(candidate.artifact, name=candidate.id, inside=not by_digest)
        )
        for number, candidate in enumerate(ordered)
    }
    origins = dict.fromkeys(_origin(candidate) for candidate in ordered) if by_digest else {}
    return {"kernel": kernel.name, "plans": plans, "origin": ", ".join(filter(None, origins))}


def _check_choice(selector: Selector, candidates: Sequence[Candidate]) -> None:
    """Check that the variants for a GPU do not differ in their parameters.

    Raises:
        SelectionError: the parameters differ, so that the choice is ambiguous.
    """
    if len({selector.point(candidate) for candidate in candidates}) == 1:
        return
    for arch in dict.fromkeys(candidate.arch for candidate in candidates):
        here = _capability(arch)
        fitting = [c for c in candidates if arch_refusal(c.arch, *here) is None]
        points = {selector.point(candidate): candidate for candidate in fitting}
        if len(points) > 1:
            raise several_fit(list(points.values()))


def _capability(arch: str) -> tuple[int, int]:
    match = ARCH.fullmatch(arch)
    return (0, 0) if match is None else (int(match[1]), int(match[2]))


def _order(candidate: Candidate, local_names: Sequence[str]) -> tuple[Any, ...]:
    """Return the sort key for the order in which variants are tried; see `selection`."""
    target = candidate.artifact.target
    return (
        {"a": 0, "f": 1}.get(target.suffix, 2),
        -target.major,
        -target.minor,
        set(device_names(target.description)).isdisjoint(local_names),
        candidate.target,
    )


def _local_names() -> list[str]:
    """Return the names of JAX's GPUs; within an architecture, their variants are tried first."""
    import jax

    if jax.default_backend() != "gpu":
        return []
    return [device.device_kind for device in jax.local_devices()]


def _origin(candidate: Candidate) -> str:
    """Return the provider or file name that has a variant's cubins, without any local path."""
    origin = candidate.origin
    return "" if origin is None else origin.provider or Path(origin.file).name


_NOT_FOUND, _DAMAGED = 1, 2
"""Status codes returned to C; with the second, the data is an error message."""

_given: dict[int, Any] = {}
"""The last buffer given to C, by thread; C copies it before the thread's next call.

Not in `threading.local()`: for XLA's threads, ctypes destroys Python's thread state, and with it
such data, after each callback.
"""


def _find(kernel: bytes, variant: bytes, digest: bytes, data: Any, size: Any) -> int:
    """Give XLA's handlers a blob of one of the kernels that are open in this process."""
    status = 0
    try:
        blob = find_blob(*(text.decode("utf-8", "replace") for text in (kernel, variant, digest)))
    except CorruptError as error:
        blob, status = error.message.encode("utf-8", "replace"), _DAMAGED
    except OSError:  # C reports that it was not found
        blob = None
    if blob is None:
        return _NOT_FOUND
    _given[threading.get_ident()] = buffer = ctypes.create_string_buffer(blob, len(blob))
    data[0], size[0] = ctypes.addressof(buffer), len(blob)
    return status
