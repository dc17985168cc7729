"""Requirements of a wheel build, with a compiler only if something must be compiled.

A build frontend creates an environment for each build and asks the backend what else to install. If
the store has every variant, nothing is required, so JAX and the CUDA tools are not installed. The
`sign` extra is required if the environment makes or checks signatures, the `remote` extra if a
remote store is configured.
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
    """Return the pallasc requirement with the extras that the build needs, or an empty list.

    Args:
        root: project folder.
        environ: environment variables.

    Raises:
        SpecError: the project's settings or an environment variable are invalid.
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
    """Return True if the build makes or checks signatures."""
    if environ.get(SIGN_KEY) or environ.get(manifests.KEY):
        return True
    if machine_requires() and any(setting.bundle is not None for setting in settings):
        return True
    return manifests.is_required(environ) and bool(machine_keys())


def _needs_package(remote: RemoteSettings | None) -> bool:
    return remote is not None and find_package("obstore") is None


def _is_in_store(setting: Setting, root: Path, remote: RemoteSettings | None) -> bool:
    """Return True if the store has every variant of a bundle; False after an error."""
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
        return False  # the build itself reports the error
    return len(report.hits) == len(report.results)
