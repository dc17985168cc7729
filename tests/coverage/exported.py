"""What the installed JAX has of Pallas: names, fields and keywords."""

from __future__ import annotations

import warnings
from importlib import metadata


def jax_version() -> str:
    """Return JAX's version in full."""
    return metadata.version("jax")


def version() -> str:
    """Return JAX's version as results are kept: "0.12"."""
    return ".".join(jax_version().split(".")[:2])


def exports() -> dict[str, list[str]]:
    """Return the public names by where they are: modules, fields of a class, keywords."""
    import dataclasses
    import inspect

    from jax.experimental import pallas as pl
    from jax.experimental.pallas import mosaic_gpu as plgpu

    return {
        "pl": _public(pl),
        "plgpu": _public(plgpu),
        "plgpu.CompilerParams": sorted(f.name for f in dataclasses.fields(plgpu.CompilerParams)),
        "plgpu.kernel": sorted(inspect.signature(plgpu.kernel).parameters),
        "pl.kernel": sorted(inspect.signature(pl.kernel).parameters),
    }


def _public(module: object) -> list[str]:
    """Return a module's names, with those that it still has and calls deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        deprecated = [
            name for name in vars(module).get("_deprecations", ()) if hasattr(module, name)
        ]
    return sorted({name for name in (*dir(module), *deprecated) if not name.startswith("_")})
