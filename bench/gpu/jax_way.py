"""A carried kernel as JAX compiles and runs it, where JAX is installed and has a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from carried import Carried


def why_not() -> str | None:
    """Return why JAX cannot be asked here, None where it can."""
    try:
        import jax

        platform = jax.default_backend()
    except Exception as error:  # noqa: BLE001 - it belongs into the report
        return f"{type(error).__name__}: {error}"
    return None if platform == "gpu" else f"JAX runs on {platform} here"


def jitted(variant: Carried) -> Callable[..., Any]:
    """Return the function that a variant was compiled from, to be compiled by JAX when called."""
    import jax

    from pallasc.compiler.entry import import_function, static_value

    function = import_function(variant.entry, "")
    static = {name: static_value(value, "") for name, value in variant.static.items()}
    static |= {name: None for name, text in variant.args.items() if text is None}

    def call(**arrays: Any) -> Any:
        return function(**arrays, **static)

    return jax.jit(call)
