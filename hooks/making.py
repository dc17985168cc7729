"""Make a bundle of a wheel, from specs or from an existing bundle, and sign it if requested.

A file is written in one step, when all of it is there and signed; an error leaves what was there.
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
from pallasc.specs.plain_text import printable

if TYPE_CHECKING:
    from pallasc.compiler.builds.bundling import BundleResult
    from pallasc.compiler.builds.report import Event, Tick

Say = Callable[[str], None]
"""Prints a line of progress."""

SIGN_KEY = "PALLASC_SIGN_KEY"
"""The variable that names the file of a private key."""

_PASSWORD = "PALLASC_KEY_PASSWORD"
_SHOWN = 10


class BundleError(PallascError):
    """A bundle of a wheel could not be made, because variants failed.

    Args:
        message: which, and why.
        location: of the setting.
        exit_code: that of the build of its variants.
    """

    def __init__(self, message: str, *, location: Location, exit_code: int) -> None:
        super().__init__(message, location=location)
        self.exit_code = exit_code


def say_on_stderr(text: str) -> None:
    """Print a line where the output of a build backend goes."""
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
        setting: what goes in.
        output: the file to write.
        root: the folder of the project.
        environ: environment variables: PALLASC_SIGN_KEY names the file of a key to sign with.
        say: prints lines of progress.

    Raises:
        PallascError: it could not be made; `output` is as it was.
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
    """Return the bytes of a bundle, not signed by us."""
    if setting.bundle is not None:
        return _ready(root / setting.bundle)
    # make_bundle writes a file; what is unfinished must not lie where a wheel is made from.
    with tempfile.TemporaryDirectory(prefix="pallasc-") as folder:
        file = Path(folder) / setting.name
        _build(setting, file, root, environ, say)
        return file.read_bytes()


def _ready(file: Path) -> bytes:
    """Return the bytes of a bundle that was made before, read as a whole and verified.

    Where the machine demands signatures, it must have one before ours is added: signing says that
    the bundle was made here, or by somebody who is trusted here.
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
    # Without being asked to, only a frozen build minds the lock file.
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
    """Return a callback that prints each variant that was compiled or failed."""

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
    """Raise an error if variants failed."""
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
    """Return a bundle with a signature by the key of the environment, where there is one."""
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
