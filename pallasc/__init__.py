"""Public names of pallasc, each imported on first use."""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers know this name; importing `typing` takes 3 ms
if TYPE_CHECKING:
    from pallasc.compiler.api import compile
    from pallasc.emulator.emulate import emulate
    from pallasc.errors import (
        ArgumentError,
        BudgetError,
        CheckError,
        CompileError,
        CorruptError,
        DeviceError,
        DriverError,
        Location,
        NotCachedError,
        OutOfMemoryError,
        PallascError,
        SelectionError,
        SpecError,
        ToolError,
        UnsupportedError,
    )
    from pallasc.runtime.adapters.jax_handlers import jax_export_checks, register_jax_handlers
    from pallasc.runtime.kernel import Kernel
    from pallasc.runtime.opening import Kernels, load, open_artifact, open_bundle
    from pallasc.specs.artifacts.artifact import Artifact
    from pallasc.specs.loading.decorator import Call, Ref, declare, kernel, program

    __version__: str

__all__ = [
    "ArgumentError",
    "Artifact",
    "BudgetError",
    "Call",
    "CheckError",
    "CompileError",
    "CorruptError",
    "DeviceError",
    "DriverError",
    "Kernel",
    "Kernels",
    "Location",
    "NotCachedError",
    "OutOfMemoryError",
    "PallascError",
    "Ref",
    "SelectionError",
    "SpecError",
    "ToolError",
    "UnsupportedError",
    "__version__",
    "compile",
    "declare",
    "emulate",
    "jax_export_checks",
    "kernel",
    "load",
    "open_artifact",
    "open_bundle",
    "program",
    "register_jax_handlers",
]

_MODULE_OF = {
    "Artifact": "pallasc.specs.artifacts.artifact",
    "Kernel": "pallasc.runtime.kernel",
    "compile": "pallasc.compiler.api",
    "emulate": "pallasc.emulator.emulate",
    **dict.fromkeys(
        ("jax_export_checks", "register_jax_handlers"), "pallasc.runtime.adapters.jax_handlers"
    ),
    **dict.fromkeys(
        ("Call", "Ref", "declare", "kernel", "program"), "pallasc.specs.loading.decorator"
    ),
    **dict.fromkeys(("Kernels", "load", "open_artifact", "open_bundle"), "pallasc.runtime.opening"),
}
"""Modules of the names that are not in `pallasc.errors`."""


# Hidden from type checkers, which would otherwise accept any misspelled name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from pallasc.version import installed_version

            value = installed_version()
        elif name in __all__:
            from importlib import import_module

            value = getattr(import_module(_MODULE_OF.get(name, "pallasc.errors")), name)
        else:
            raise AttributeError(f"module 'pallasc' has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return list(__all__)
