"""Say what a build needs to be installed: a compiler only where something has to be compiled.

Build front ends make an environment for each build, and ask the backend what else to install there.
With everything in the store that is nothing, so JAX and the tools of CUDA stay out of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pallasc.compiler.toolchain import is_compiler_installed
from pallasc.errors import PallascError
from pallasc.hooks.settings import Setting, compiler_extra, read_settings


def compiler_requirements(root: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the requirement that brings a compiler, none where nothing is to be compiled.

    Args:
        root: the folder of the project.
        environ: environment variables.

    Raises:
        SpecError: something is wrong in the project's settings.
    """
    settings = read_settings(root, environ)
    extra = compiler_extra(root)
    compiling = [one for one in settings if one.specs and one.source == "compile"]
    if is_compiler_installed() or all(_is_in_store(one, root) for one in compiling):
        return []
    return [f"pallasc[{extra}]"]


def _is_in_store(setting: Setting, root: Path) -> bool:
    """Tell whether a bundle can be made without compiling; if that cannot be told, it cannot."""
    from pallasc.cache.store import Store
    from pallasc.compiler.build import build
    from pallasc.compiler.wanted import read_wanted

    store = Store()
    try:
        wanted = read_wanted(
            [str(root / path) for path in setting.specs],
            store=store,
            targets=setting.targets,
            expression=setting.select,
            frozen=True,
        )
        report = build(wanted.variants, store=store, compile=False)
    except PallascError:
        return False  # the build itself says what is wrong
    return len(report.hits) == len(report.results)
