"""Make a bundle for a wheel, from specs or from an existing bundle, and sign it if requested.

The output file is replaced atomically once the bundle is complete and signed. After an error it is
unchanged.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pallasc.errors import Location, PallascError, SpecError
from pallasc.hooks.settings import Setting
from pallasc.hooks.sources import lock_file
from pallasc.specs.spelling import printable

if TYPE_CHECKING:
    from pallasc.compiler.builds.bundling import BundleResult
    from pallasc.compiler.builds.report import Event, Tick

Say = Callable[[str], None]
"""Prints a line of progress."""

SIGN_KEY = "PALLASC_SIGN_KEY"
"""Environment variable with the path of a private key file."""

_PASSWORD = "PALLASC_KEY_PASSWORD"
_SHOWN = 10


class BundleError(PallascError):
    """A bundle for a wheel could not be made because variants failed.

    Args:
        message: which variants failed, and why.
        location: location of the setting.
        exit_code: exit code of the build.
    """

    def __init__(self, message: str, *, location: Location, exit_code: int) -> None:
        super().__init__(message, location=location)
        self.exit_code = exit_code


def say_on_stderr(text: str) -> None:
    """Print a progress line to stderr, where build backends write their output."""
    print(printable(f"pallasc: {text}"), file=sys.stderr, flush=True)


def make(
    setting: Setting,
    output: Path,
    *,
    root: Path,
    environ: Mapping[str, str],
    say: Say = say_on_stderr,
) -> None:
    """Write a bundle.

    Args:
        setting: settings of the bundle.
        output: file to write.
        root: project folder.
        environ: environment variables. PALLASC_SIGN_KEY is the path of the key to sign with.
        say: prints progress lines.

    Raises:
        PallascError: the bundle could not be made; `output` is unchanged.
    """
    from pallasc.specs.bundle.bundle import open_bundle
    from pallasc.specs.user_files import replace_file

    try:
        data = _data(setting, root, environ, say)
        data = _signed(data, environ)
        replace_file(output, data)
    except PallascError as error:
        error.location = error.location or setting.at.location
        raise
    with open_bundle(data) as bundle:
        archs = sorted({entry.arch for entry in bundle.entries()})
        count = _variants(len(bundle))
        say(f"{setting.place}: {count} for {', '.join(archs)}, {len(data):,} bytes")


def _variants(number: int) -> str:
    return "1 variant" if number == 1 else f"{number:,} variants"


def _data(setting: Setting, root: Path, environ: Mapping[str, str], say: Say) -> bytes:
    """Return the bundle's bytes before signing."""
    if setting.bundle is not None:
        return _ready(root / setting.bundle)
    # make_bundle writes a file. A partial file must not end up in a folder that is packed into a
    # wheel.
    with tempfile.TemporaryDirectory(prefix="pallasc-") as folder:
        file = Path(folder) / setting.name
        _build(setting, file, root, environ, say)
        return file.read_bytes()


def _ready(file: Path) -> bytes:
    """Read and verify an existing bundle.

    If this machine requires signatures, the bundle must have a valid one before ours is added: our
    signature states that the bundle was made here, or by someone whom this machine trusts.
    """
    from pallasc.specs.bundle.bundle import open_bundle
    from pallasc.specs.bundle.signature import read_policy
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


def _build(setting: Setting, file: Path, root: Path, environ: Mapping[str, str], say: Say) -> None:
    from pallasc.cache.store import Store
    from pallasc.compiler.builds.bundling import BundleOptions, make_bundle
    from pallasc.compiler.builds.collect import SpecReader
    from pallasc.compiler.builds.options import Options, remote_settings

    remote = remote_settings(environ, folder=root)
    store = Store(warn=lambda text: say(f"warning: {text}"))
    reader = SpecReader(store=store, frozen=setting.source == "frozen", frozen_by=setting.frozen_by)
    specs = [str(root / path) for path in setting.specs]
    selection = reader.select(specs, setting.targets, setting.select)
    say(f"{setting.place}: {_variants(len(selection.variants))}")
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
        on_event=_teller(say),
    )
    if made.report.remote is not None and made.report.remote.requests:
        say(str(made.report.remote))
    for note in made.report.notes:
        if note not in store.warnings:
            say(f"warning: {note}")
    _check(made, setting)


def _teller(say: Say) -> Callable[[Event | Tick], None]:
    """Return a callback that prints compiled and failed variants, and their warnings."""

    def tell(event: Event | Tick) -> None:
        kind = getattr(event, "kind", None)
        if kind in ("compiled", "failed"):
            say(f"[{event.done}/{event.total}] {kind} {event.variant.id}")  # type: ignore[union-attr]
        result = getattr(event, "result", None)
        if result is not None:
            for diagnostic in result.diagnostics[:_SHOWN]:
                say(f"warning: {printable(f'{result.variant.id}: {diagnostic}')}")

    return tell


def _check(made: BundleResult, setting: Setting) -> None:
    report = made.report
    if not report.exit_code:
        return
    named = [f"{result.variant.id}: {result.error}" for result in report.failed]
    failures = [*named, *map(str, report.errors)]
    shown = "".join(f"\n  {text}" for text in failures[:_SHOWN])
    more = f"\n  and {len(failures) - _SHOWN} more" if len(failures) > _SHOWN else ""
    failed = len(report.results) - len(report.hits) - len(report.compiled)
    place = setting.at
    raise BundleError(
        f"{place.label}: {failed} of {len(report.results)} variants failed:{shown}{more}",
        location=place.location,
        exit_code=report.exit_code,
    )


def _signed(data: bytes, environ: Mapping[str, str]) -> bytes:
    """Sign a bundle if the environment names a key; otherwise return it unchanged."""
    from pallasc.specs.bundle.signature import parse_private_key
    from pallasc.specs.bundle.verify import signed

    name = environ.get(SIGN_KEY)
    if not name:
        return data
    try:
        text = Path(name).read_bytes()
    except OSError as error:
        raise SpecError(f"{SIGN_KEY}: {name} cannot be read: {error.strerror}.") from error
    password = environ.get(_PASSWORD)
    key = parse_private_key(text, name, os.fsencode(password) if password else None)
    return signed(data, key)
