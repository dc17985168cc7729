"""Tokamax's ops with compiled kernels in place of those that it would compile.

Each takes a call as Tokamax's own op of the same kind does: with arguments that Tokamax has bound,
inside what it makes of `vmap`, sharding and derivatives. It then looks for a kernel with the key of
the call (`calls.py`), and leaves the call to the own op where there is none.
"""

from __future__ import annotations

import functools
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

import pallasc
from tokamax_prebuilt import PrebuiltWarning, kernels
from tokamax_prebuilt.calls import OWN, UnknownCallError, call_key, call_text, join, split

_inside = jax.make_user_context(False)
"""Whether this thread is inside of `prebuilt()`; `jax.jit` knows programs by it, too."""

_lock = threading.Lock()
_said: set[str] = set()
"""Calls that were warned of."""


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


@functools.cache
def _kernel(name: str, key: str) -> pallasc.Kernel | None:
    """Return the kernel for calls with a key, None where none was compiled."""
    kernel = kernels()[name]
    for variant in kernel.variants:
        if str(variant.params["call"]).endswith(f"-{key}"):
            return kernel.variant(**variant.params)
    return None


def _fitting(name: str, arguments: dict[str, Any]) -> tuple[pallasc.Kernel | None, str]:
    """Return the kernel for a call, or None and the reason."""
    try:
        key = call_key(name, arguments)
    except UnknownCallError as error:
        return None, str(error)
    kernel = _kernel(name, key)
    if kernel is None:
        return None, "no kernel was compiled for it."
    device = backend.get_default_device()
    available = kernel.available(device if device.platform == "gpu" else None)
    return (kernel, "") if available else (None, available.reason)


def _warn(name: str, arguments: dict[str, Any], reason: str) -> None:
    """Say that a call is left to Tokamax, once for each call and reason."""
    text = f"a call is left to Tokamax: {reason} It is {call_text(name, arguments)}."
    with _lock:
        if text in _said:
            return
        _said.add(text)
    warnings.warn(text, PrebuiltWarning, stacklevel=2)


@dataclass(frozen=True)
class _Prebuilt:
    """What these ops have in common.

    Attributes:
        kernel: name of the kernels, and of the own op in `calls.OWN`.
        only_inside: whether calls outside of `prebuilt()` go to the own op.
    """

    kernel: ClassVar[str]
    only_inside: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.only_inside and not _inside.value:
            return self._own()(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    def _own(self) -> Op:
        return OWN[self.kernel].replace(bypass_device_check=self.bypass_device_check)

    def _leaves_to_xla(self, arguments: Mapping[str, Any]) -> bool:
        """Tell whether the own op has no kernel for a call either."""
        return False

    def _launch(self, *args: Any, config: Any, **kwargs: Any) -> Any:
        """Launch the kernel for a call whose arguments are bound, or call the own op."""
        arguments = dict(self._fwd_signature.bind(*args, **kwargs).arguments)
        if self._leaves_to_xla(arguments):
            return self._fall_back(arguments)
        kernel, reason = _fitting(self.kernel, arguments)
        if kernel is None:
            _warn(self.kernel, arguments, reason)
            return self._fall_back(arguments)
        arrays, structure = split(arguments)
        return self._unbatched(kernel, structure)(*arrays)

    def _fall_back(self, arguments: Mapping[str, Any]) -> Any:
        """Return what the own op gives, and its residuals."""
        found = self._own()(**arguments)
        return found if arguments["return_residuals"] else (found, None)

    def _unbatched(self, kernel: pallasc.Kernel, structure: Any) -> Callable[..., Any]:
        """Return a function that launches a kernel, and calls the own op under `jax.vmap`."""
        launch = jax.custom_batching.custom_vmap(lambda *arrays: kernel([*arrays]))

        @launch.def_vmap
        def batch(size: int, in_batched: Sequence[bool], *arrays: Any) -> Any:
            def own(*parts: Any) -> Any:
                _warn(self.kernel, join(structure, parts), f"jax.vmap makes {size} of it.")
                return self._fall_back(join(structure, parts))

            axes = [0 if is_batched else None for is_batched in in_batched]
            found = jax.vmap(own, in_axes=axes, axis_size=size)(*arrays)
            return found, jax.tree.map(lambda _: True, found)

        return launch


def _as(own: Op) -> Callable[..., Any]:
    """Return the method that Tokamax calls, with the parameters of an op's own."""

    @functools.wraps(type(own)._fwd)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._launch(*args, **kwargs)

    return forward


@dataclass(frozen=True)
class PrebuiltAttentionVjp(_Prebuilt, attention.DotProductAttentionVjp):
    """The backward pass of attention."""

    kernel = "attention_vjp"
    _fwd = _as(OWN[kernel])


@dataclass(frozen=True)
class PrebuiltAttention(_Prebuilt, attention.DotProductAttention):
    """Attention."""

    kernel = "attention"
    _fwd = _as(OWN[kernel])

    def __post_init__(self) -> None:
        if self.vjp is None:
            object.__setattr__(self, "vjp", PrebuiltAttentionVjp())


@dataclass(frozen=True)
class PrebuiltGatedLinearUnit(_Prebuilt, gated_linear_unit.GatedLinearUnit):
    """The gated linear unit; its derivative is Tokamax's."""

    kernel = "gated_linear_unit"
    _fwd = _as(OWN[kernel])

    def _leaves_to_xla(self, arguments: Mapping[str, Any]) -> bool:
        return bool(arguments["return_residuals"])


@dataclass(frozen=True)
class PrebuiltRaggedDot(_Prebuilt, ragged_dot.RaggedDot):
    """Ragged dot; its derivative consists of two more of them."""

    kernel = "ragged_dot"
    _fwd = _as(OWN[kernel])

    def __post_init__(self) -> None:
        if self.vjp is None:

            def again(*args: Any, **kwargs: Any) -> Any:
                return PrebuiltRaggedDot()(*args, **kwargs)

            vjp = partial(ragged_dot.vjp, dlhs_ragged_dot=again, drhs_ragged_dot=again)
            object.__setattr__(self, "vjp", vjp)
