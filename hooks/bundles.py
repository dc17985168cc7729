"""Bundles of a wheel: finds their build requirements and the files for an sdist, and makes them.

A build frontend creates an environment for each build and asks the backend what else to install. If
the store has every variant, nothing is required, so JAX and the CUDA tools are not installed. The
`sign` extra is required if the environment makes or checks signatures, the `remote` extra if a
remote store is configured.

An sdist must contain the specs, lock files and existing bundles, and a record of the commit for the
bundle's provenance (`compiler/builds/bundling.py`). A folder of specs is included as a whole. The
folder of a single spec file is included as a whole, too, because kernels import neighboring
modules; but if it is the project's root folder, only its Python and YAML files are included.

A bundle is made from specs or from an existing bundle, and signed if requested. The output file is
replaced atomically once the bundle is complete and signed. After an error it is unchanged.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pallasc.cache import manifests
from pallasc.compiler.builds.options import Options, remote_settings
from pallasc.compiler.toolchain.toolchain import find_package, is_compiler_installed
from pallasc.errors import CompileError, PallascError, SpecError
from pallasc.hooks.settings import SUFFIX, Setting, compiler_extra, read_settings
from pallasc.specs.bundle.signature import (
    machine_keys,
    machine_requires,
    read_policy,
    read_private_key,
)
from pallasc.specs.spelling import listed, nearest, printable, show

if TYPE_CHECKING:
    from pallasc.cache.remote.settings import RemoteSettings
    from pallasc.compiler.builds.bundling import BundleResult
    from pallasc.compiler.builds.report import Event, Tick

SIGN_KEY = "PALLASC_SIGN_KEY"
"""Environment variable with the path of a private key file."""

_SHOWN = 10
_LOCK = "pallasc.lock"
_SUFFIXES = (".py", ".yaml", ".yml")


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
    needs_package = remote is not None and find_package("obstore") is None
    if needs_package and any(s.specs for s in settings):
        extras.append("remote")
    return [f"pallasc[{','.join(extras)}]"] if extras else []


def _has_signatures(settings: Iterable[Setting], environ: Mapping[str, str]) -> bool:
    """Return True if the build makes or checks signatures."""
    if environ.get(SIGN_KEY) or environ.get(manifests.KEY):
        return True
    if machine_requires() and any(setting.bundle is not None for setting in settings):
        return True
    return manifests.is_required(environ) and bool(machine_keys())


def _is_in_store(setting: Setting, root: Path, remote: RemoteSettings | None) -> bool:
    """Return True if the store has every variant of a bundle; False after an error."""
    if find_package("obstore") is None:
        remote = None
    from pallasc.cache.store import Store
    from pallasc.compiler.builds.build import build
    from pallasc.compiler.builds.collect import SpecReader

    store = Store()
    try:
        reader = SpecReader(store=store, frozen=True)
        specs = [str(root / path) for path in setting.specs]
        variants = reader.select(specs, setting.targets, setting.select).variants
        report = build(variants, store=store, options=Options(compile=False, remote=remote))
    except PallascError:
        return False  # The build itself reports the error.
    return len(report.hits) == len(report.results)


def source_files(settings: Iterable[Setting], root: Path) -> list[str]:
    """Return the files that bundles are made from, relative to the project, sorted.

    Raises:
        SpecError: a file named in the settings does not exist.
    """
    files: set[Path] = set()
    for setting in settings:
        lock = lock_file(setting, root)
        if lock is not None:
            files.add(_existing(lock, setting, root))
        if setting.bundle is not None:
            files.add(_existing(setting.bundle, setting, root))
        for name in setting.specs:
            files.update(_around(_existing(name, setting, root), root))
    return sorted(path.relative_to(root).as_posix() for path in files)


def lock_file(setting: Setting, root: Path) -> str | None:
    """Return the lock file in a bundle's settings; by default, specs use the project's, if any."""
    if setting.lock is not None or not setting.specs:
        return setting.lock
    return _LOCK if (root / _LOCK).exists() else None


def _existing(name: str, setting: Setting, root: Path) -> Path:
    path = root / name
    if not path.exists():
        near = [child.name for child in path.parent.iterdir()] if path.parent.is_dir() else []
        other = nearest(path.name, near)
        hint = f"Did you mean {show(str(Path(name).with_name(other)))}?" if other else None
        raise setting.at.error(f"{show(name)} does not exist.", hint)
    return path


def _around(path: Path, root: Path) -> Iterator[Path]:
    folder = path if path.is_dir() else path.parent
    if folder == root:
        yield from (file for file in folder.iterdir() if file.suffix in _SUFFIXES)
        return
    for file in folder.rglob("*"):
        inside = file.relative_to(folder).parts
        hidden = any(part.startswith(".") or part == "__pycache__" for part in inside)
        if file.is_file() and not hidden and file.suffix not in (".pyc", SUFFIX):
            yield file


def _say(text: str) -> None:
    """Print a progress line to stderr, where build backends write their output."""
    print(printable(f"pallasc: {text}"), file=sys.stderr, flush=True)


def make(setting: Setting, output: Path, *, root: Path, environ: Mapping[str, str]) -> None:
    """Write a bundle.

    Args:
        setting: settings of the bundle.
        output: file to write.
        root: project folder.
        environ: environment variables. PALLASC_SIGN_KEY is the path of the key to sign with.

    Raises:
        PallascError: the bundle could not be made; `output` is unchanged.
    """
    from pallasc.specs.bundle.bundle import open_bundle
    from pallasc.specs.user_files import replace_file

    try:
        data = _signed(_data(setting, root, environ), environ)
        replace_file(output, data)
    except PallascError as error:
        error.location = error.location or setting.at.location
        raise
    with open_bundle(data) as bundle:
        archs = sorted({entry.arch for entry in bundle.entries()})
        count = _variants(len(bundle))
        _say(f"{setting.place}: {count} for {', '.join(archs)}, {len(data):,} bytes")


def _variants(number: int) -> str:
    return "1 variant" if number == 1 else f"{number:,} variants"


def _data(setting: Setting, root: Path, environ: Mapping[str, str]) -> bytes:
    """Return the bundle's bytes before signing."""
    if setting.bundle is not None:
        return _ready(root / setting.bundle)
    # make_bundle writes a file. A partial file must not end up in a folder that is packed into a
    # wheel.
    with tempfile.TemporaryDirectory(prefix="pallasc-") as folder:
        file = Path(folder) / setting.name
        _build(setting, file, root, environ)
        return file.read_bytes()


def _ready(file: Path) -> bytes:
    """Read and verify an existing bundle.

    If this machine requires signatures, the bundle must have a trusted signature before this build
    adds another: the new signature states that the bundle was made here, or by someone whom this
    machine trusts.
    """
    from pallasc.specs.bundle.bundle import open_bundle
    from pallasc.specs.bundle.verify import verify

    try:
        data = file.read_bytes()
    except OSError as error:
        raise SpecError(
            f"{file} cannot be read: {error.strerror}.",
            hint="Make it first: pallasc bundle create writes it.",
        ) from error
    with open_bundle(data) as bundle:
        bundle.check_policy(read_policy())
        verify(bundle)
    return data


def _build(setting: Setting, file: Path, root: Path, environ: Mapping[str, str]) -> None:
    from pallasc.cache.store import Store
    from pallasc.compiler.builds.bundling import BundleOptions, make_bundle
    from pallasc.compiler.builds.collect import SpecReader

    remote = remote_settings(environ, folder=root)
    store = Store(warn=lambda text: _say(f"warning: {text}"))
    reader = SpecReader(store=store, frozen=setting.source == "frozen", frozen_by=setting.frozen_by)
    specs = [str(root / path) for path in setting.specs]
    selection = reader.select(specs, setting.targets, setting.select)
    _say(f"{setting.place}: {_variants(len(selection.variants))}")
    # By default, only a frozen build checks the lock file.
    minds = setting.lock is not None or setting.source == "frozen"
    lock = lock_file(setting, root) if minds else None
    made = make_bundle(
        selection,
        file,
        store=store,
        options=BundleOptions(
            source=setting.source,
            lock=None if lock is None else root / lock,
            locked=setting.lock is not None,
            keep_debug=setting.keep_debug,
            build=Options(frozen_by=setting.frozen_by, remote=remote),
        ),
        on_event=_tell,
    )
    if made.report.remote is not None and made.report.remote.requests:
        _say(str(made.report.remote))
    for note in made.report.notes:
        if note not in store.warnings:
            _say(f"warning: {note}")
    _check(made, setting)


def _tell(event: Event | Tick) -> None:
    """Print a compiled or failed variant, and its warnings."""
    result = getattr(event, "result", None)
    if result is None:
        return
    if result.status in ("compiled", "failed"):
        _say(f"[{event.done}/{event.total}] {result.status} {result.variant.id}")
    for diagnostic in result.diagnostics[:_SHOWN]:
        _say(f"warning: {result.variant.id}: {diagnostic}")


def _check(made: BundleResult, setting: Setting) -> None:
    report = made.report
    if not report.exit_code:
        return
    named = [f"{result.variant.id}: {result.error}" for result in report.failed]
    shown = "".join(f"\n  {text}" for text in listed([*named, *map(str, report.errors)], _SHOWN))
    failed = len(report.results) - len(report.hits) - len(report.compiled)
    place = setting.at
    raise CompileError(
        f"{place.label}: {failed} of {len(report.results)} variants failed:{shown}",
        location=place.location,
    )


def _signed(data: bytes, environ: Mapping[str, str]) -> bytes:
    """Sign a bundle if the environment names a key; otherwise return it unchanged."""
    from pallasc.specs.bundle.verify import signed

    name = environ.get(SIGN_KEY)
    return signed(data, read_private_key(name, environ, SIGN_KEY)) if name else data
