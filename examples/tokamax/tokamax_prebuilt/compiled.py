"""What is compiled for the wheel: one of Tokamax's ops, called as a row of `kernels.yaml` says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from tokamax_prebuilt.calls import OWN, TOKAMAX, call_key, join, parse, split


def run(arrays: Sequence[jax.Array], *, op: str, key: str, text: str) -> Any:
    """Call an op; return its result and its residuals, None where it has none.

    Tile sizes are those that Tokamax chooses for the GPU that is compiled for: from its tables.

    Args:
        arrays: the arrays of the call, in the order of `calls.split`.
        op: a name in `calls.OWN`.
        key: the key of the call, which is what the kernel is found by.
        text: its arguments, as Tokamax's tables have them.

    Raises:
        ValueError: this is not the call that the key is of.
    """
    own = OWN[op]
    arguments = parse(op, text)
    if call_key(op, arguments) != key:
        raise ValueError(
            f"Tokamax {TOKAMAX} has another key than {key} for this call. Run select_calls.py, "
            "which writes kernels.yaml anew."
        )
    _, structure = split(arguments)
    bound = own.bind(**join(structure, arrays))
    return own._fwd(*bound.args, config=bound.default_config, **bound.kwargs)
