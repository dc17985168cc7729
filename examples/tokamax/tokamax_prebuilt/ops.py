"""Tokamax's ops with kernels from the bundle instead of kernels that Tokamax compiles.

Tokamax calls each op like its own: with bound arguments, inside its transformations for `vmap`,
sharding, and derivatives. The op then looks for a kernel with the key of the call (`calls.py`), and
calls Tokamax's own op if there is none.
"""

from __future__ import annotations

import functools
import importlib.metadata
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
from jax.extend import backend
from tokamax._src.ops.attention import api as attention_api
from tokamax._src.ops.attention import base as attention
from tokamax._src.ops.gated_linear_unit import api as gated_linear_unit_api
from tokamax._src.ops.gated_linear_unit import base as gated_linear_unit
from tokamax._src.ops.op import Op
from tokamax._src.ops.ragged_dot import api as ragged_dot_api
from tokamax._src.ops.ragged_dot import base as ragged_dot

from tokamax_prebuilt import PrebuiltWarning
from tokamax_prebuilt.calls import OWN, UnknownCallError, call_key, call_text, join, split
from tokamax_prebuilt.imported import COMPILED_FROM, Prebuilt, find

_inside = jax.make_user_context(False)
"""True if this thread is inside `prebuilt()`; also part of the cache key of `jax.jit`."""

TOKAMAX = importlib.metadata.version("tokamax")

_lock = threading.Lock()
_said: set[str] = set()
"""Calls for which a warning was shown."""


@contextmanager
def prebuilt() -> Iterator[None]:
    """See `tokamax_prebuilt.prebuilt`."""
    register()
    with _inside(True):
        yield


def register() -> None:
    """See `tokamax_prebuilt.register`."""
    with _lock:
        for api, mosaic, op in (
            (attention_api, "mosaic_gpu", PrebuiltAttention),
            (gated_linear_unit_api, "mosaic", PrebuiltGatedLinearUnit),
            (ragged_dot_api, "mosaic_gpu", PrebuiltRaggedDot),
        ):
            if "prebuilt" not in api.IMPLEMENTATIONS:
                ours = {mosaic: op(only_inside=True), "prebuilt": op()}
                api.IMPLEMENTATIONS = api.IMPLEMENTATIONS.update(ours)


def _fitting(op: str, arguments: Mapping[str, Any]) -> tuple[Prebuilt | None, str]:
    """Return the kernel for a call, or None and the reason."""
    if TOKAMAX != COMPILED_FROM:
        return None, f"kernels are of Tokamax {COMPILED_FROM}, and this is {TOKAMAX}."
    try:
        found = find(op, call_key(op, arguments))
    except UnknownCallError as error:
        return None, str(error)
    device, reason = backend.get_default_device(), "no kernel was compiled for this call."
    for each in found:
        available = each.kernel.available(device if device.platform == "gpu" else None)
        if available:
            return each, ""
        reason = available.reason
    return None, reason


def _warn(name: str, arguments: dict[str, Any], reason: str) -> None:
    """Warn that Tokamax's own op runs, once per call and reason."""
    text = f"Tokamax's own op runs: {reason} The call is {call_text(name, arguments)}."
    with _lock:
        if text in _said:
            return
        _said.add(text)
    warnings.warn(text, PrebuiltWarning, stacklevel=2)


@dataclass(frozen=True)
class _Prebuilt:
    """Base class of the ops with compiled kernels.

    Attributes:
        op: Tokamax's op, by its name in `calls.OWN`.
        only_inside: True to run Tokamax's op for calls outside `prebuilt()`.
    """

    op: ClassVar[str]
    only_inside: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.only_inside and not _inside.value:
            return self._own()(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    def _own(self) -> Op:
        return OWN[self.op].replace(bypass_device_check=self.bypass_device_check)

    def _leaves_to_xla(self, arguments: Mapping[str, Any]) -> bool:
        """Return True if Tokamax's op runs this call in XLA, without a kernel."""
        return False

    def _launch(self, *args: Any, config: Any, **kwargs: Any) -> Any:
        """Launch the kernel for a call whose arguments are bound, or call Tokamax's op."""
        arguments = dict(self._fwd_signature.bind(*args, **kwargs).arguments)
        if self._leaves_to_xla(arguments):
            return self._fall_back(arguments)
        found, reason = _fitting(self.op, arguments)
        if found is None:
            _warn(self.op, arguments, reason)
            return self._fall_back(arguments)
        arrays, structure = split(arguments)
        results = self._unbatched(found, structure)(*arrays)
        return results if arguments["return_residuals"] else (results, None)

    def _fall_back(self, arguments: Mapping[str, Any]) -> Any:
        """Return the result and the residuals of Tokamax's op."""
        results = self._own()(**arguments)
        return results if arguments["return_residuals"] else (results, None)

    def _unbatched(self, found: Prebuilt, structure: Any) -> Callable[..., Any]:
        """Return a function that launches a kernel, and calls Tokamax's op under `jax.vmap`."""

        @jax.custom_batching.custom_vmap
        def launch(*arrays: Any) -> Any:
            return found.kernel(**found.operands(join(structure, arrays)))

        @launch.def_vmap
        def batch(size: int, in_batched: Sequence[bool], *arrays: Any) -> Any:
            def own(*parts: Any) -> Any:
                arguments = join(structure, parts)
                _warn(self.op, arguments, f"jax.vmap makes {size} of it.")
                return self._own()(**arguments)

            axes = [0 if is_batched else None for is_batched in in_batched]
            results = jax.vmap(own, in_axes=axes, axis_size=size)(*arrays)
            return results, jax.tree.map(lambda _: True, results)

        return launch


def _as(own: Op) -> Callable[..., Any]:
    """Return the method that Tokamax calls, with the parameters of Tokamax's op."""

    @functools.wraps(type(own)._fwd)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._launch(*args, **kwargs)

    return forward


@dataclass(frozen=True)
class PrebuiltAttentionVjp(_Prebuilt, attention.DotProductAttentionVjp):
    """The backward pass of attention."""

    op = "attention_vjp"
    _fwd = _as(OWN[op])


@dataclass(frozen=True)
class PrebuiltAttention(_Prebuilt, attention.DotProductAttention):
    """Attention."""

    op = "attention"
    _fwd = _as(OWN[op])

    def __post_init__(self) -> None:
        if self.vjp is None:
            object.__setattr__(self, "vjp", PrebuiltAttentionVjp())


@dataclass(frozen=True)
class PrebuiltGatedLinearUnit(_Prebuilt, gated_linear_unit.GatedLinearUnit):
    """The gated linear unit; its derivative is Tokamax's."""

    op = "gated_linear_unit"
    _fwd = _as(OWN[op])

    def _leaves_to_xla(self, arguments: Mapping[str, Any]) -> bool:
        return bool(arguments["return_residuals"])


@dataclass(frozen=True)
class PrebuiltRaggedDot(_Prebuilt, ragged_dot.RaggedDot):
    """Ragged dot; its derivative consists of two more ragged dots."""

    op = "ragged_dot"
    _fwd = _as(OWN[op])

    def __post_init__(self) -> None:
        if self.vjp is None:

            def again(*args: Any, **kwargs: Any) -> Any:
                return PrebuiltRaggedDot()(*args, **kwargs)

            vjp = partial(ragged_dot.vjp, dlhs_ragged_dot=again, drhs_ragged_dot=again)
            object.__setattr__(self, "vjp", vjp)
