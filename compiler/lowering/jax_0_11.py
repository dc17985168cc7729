"""What JAX 0.11's Mosaic writes into a module that depends on the process, and how it is kept out.

Mosaic 0.11 numbers the kernels of a process and puts the number into each module, as the name of
the files that it would dump (`get_or_set_dump_options`). The kernel's hash, and with it the key of
a compilation, would depend on what was compiled before. JAX 0.12 leaves it out of the hash.
"""

from __future__ import annotations

from functools import cache
from typing import Any

_ATTRIBUTE = "mosaic_gpu.dump_basename"


@cache
def name_dumps_alike() -> None:
    """Give every module of this process the same name for its dumps."""
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
