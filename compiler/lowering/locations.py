"""Keep source locations out of what is compiled, or in it to explain an error.

With them the kernel's hash and the cubin change with the checkout's folder and with every line
above the kernel. `jax_traceback_in_locations_limit=0` is enough for XLA's module and for Mosaic's
up to JAX 0.10; from 0.11 on, Mosaic asks for the innermost frame of the user's in any case
(`jax/_src/pallas/mosaic_gpu/lowering.py`), so that function answers with none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

_MOST_FRAMES = 10


@contextlib.contextmanager
def source_locations(*, kept: bool) -> Iterator[None]:
    """Lower with or without source locations while the context lasts."""
    import jax
    from jax._src import source_info_util

    config: Any = jax.config
    frames: Any = source_info_util
    limit, user_frame = config.jax_traceback_in_locations_limit, frames.user_frame
    config.update("jax_traceback_in_locations_limit", _MOST_FRAMES if kept else 0)
    if not kept:
        frames.user_frame = lambda _: None
    try:
        yield
    finally:
        frames.user_frame = user_frame
        config.update("jax_traceback_in_locations_limit", limit)
