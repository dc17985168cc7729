"""What a build needs to be installed: a compiler only if something must be compiled.

Build front ends make an environment for each build, and ask the backend what else to install there.
Nothing is needed when the store has everything, so JAX and the CUDA tools are not installed then.
The package for signatures is needed where the environment has some made or checked, and those for
a remote store where one is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pallasc.cache import manifests
from pallasc.compiler.builds.options import remote_settings
from pallasc.compiler.toolchain.toolchain import find_package, is_compiler_installed
from pallasc.errors import PallascError
from pallasc.hooks.making import SIGN_KEY
from pallasc.hooks.settings import Setting, compiler_extra, read_settings
from pallasc.specs.bundle.signature import machine_keys, machine_requires

if TYPE_CHECKING:
    from pallasc.cache.remote.settings import RemoteSettings


def build_requirements(root: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the requirement that brings a compiler and what signs, none where neither is needed.

    Args:
        root: the folder of the project.
        environ: environment variables.

    Raises:
        SpecError: something is wrong in the project's settings or in the environment.
    """
    settings = read_settings(root, environ)
    compiler = compiler_extra(root)
    remote = remote_settings(environ, folder=root)
    extras = []
    compiling = [s for s in settings if s.specs and s.source == "compile"]
    if not is_compiler_installed() and not all(_is_in_store(s, root, remote) for s in compiling):
        extras.append(compiler)
    if find_package("cryptography") is None and _has_signatures(settings, environ):
        extras.append("sign")
    if any(s.specs for s in settings) and _needs_package(remote):
        extras.append("remote")
    return [f"pallasc[{','.join(extras)}]"] if extras else []


def _has_signatures(settings: Iterable[Setting], environ: Mapping[str, str]) -> bool:
    """Tell whether a build makes or checks signatures."""
    if environ.get(SIGN_KEY) or environ.get(manifests.KEY):
        return True
    if machine_requires() and any(setting.bundle is not None for setting in settings):
        return True
    return manifests.is_required(environ) and bool(machine_keys())


def _needs_package(remote: RemoteSettings | None) -> bool:
    return remote is not None and find_package("obstore") is None


def _is_in_store(setting: Setting, root: Path, remote: RemoteSettings | None) -> bool:
    """Tell whether a bundle can be made without compiling; an error counts as no."""
    if _needs_package(remote):
        remote = None
    from pallasc.cache.store import Store
    from pallasc.compiler.builds.build import build
    from pallasc.compiler.builds.collect import SpecReader
    from pallasc.compiler.builds.options import Options

    store = Store()
    try:
        reader = SpecReader(store=store, frozen=True)
        specs = [str(root / path) for path in setting.specs]
        variants = reader.select(specs, setting.targets, setting.select).variants
        report = build(variants, store=store, options=Options(compile=False, remote=remote))
    except PallascError:
        return False  # the build itself says what is wrong
    return len(report.hits) == len(report.results)
