"""Who must have signed a bundle before anything of it is used.

Signatures are demanded by the program (arguments) or by the machine (environment), and what both
demand both get: a program may ask for more than the machine, not for less. Keys of the machine are
those that `PALLASC_TRUSTED_KEYS` names, files or folders with `*.pub`, else those in the folder
`pallasc/trusted_keys` below `XDG_CONFIG_HOME` or `~/.config`.

No key is ever looked for in the current folder, where anybody's file may lie: the paths of a
program are relative to its package or absolute, those of the machine are absolute.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from pallasc.errors import CorruptError, SpecError
from pallasc.specs.bundle.bundle import Bundle
from pallasc.specs.bundle.signature import PublicKey, parse_public_keys
from pallasc.specs.user_files import config_folder

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

REQUIRE = "PALLASC_REQUIRE_SIGNATURE"
TRUSTED = "PALLASC_TRUSTED_KEYS"

Keys = PublicKey | str | os.PathLike[str]
"""A key, its text `ed25519:…`, or the path of a file of keys or of a folder with `*.pub`."""

Folders = Sequence["Traversable"]
"""The folders of a package, in a zip file perhaps: relative paths of keys are looked for there."""

_SWITCH = {
    **dict.fromkeys(("", "0", "false", "no", "off"), False),
    **dict.fromkeys(("1", "true", "yes", "on"), True),
}


@dataclass(frozen=True, slots=True)
class Demand:
    """Keys of which one must have signed, and where they were taken from."""

    keys: tuple[PublicKey, ...]
    place: str

    def check(self, bundle: Bundle) -> None:
        """Check that one of the keys signed a bundle.

        Raises:
            CorruptError: none did, or a signature is wrong.
            ToolError: the cryptography package is missing.
        """
        try:
            bundle.check_signatures(self.keys)
        except CorruptError as error:
            hint = f"{error.hint or ''} Trusted keys were taken from {self.place}.".lstrip()
            raise CorruptError(error.message, hint=hint) from error


@dataclass(frozen=True, slots=True)
class Policy:
    """What program and machine demand together; nothing by default."""

    demands: tuple[Demand, ...] = ()

    def check(self, bundle: Bundle) -> None:
        """Check a bundle against all demands; errors as of `Demand.check`."""
        for demand in self.demands:
            demand.check(bundle)


def read_policy(
    trusted: Keys | Iterable[Keys] | None = None,
    require_signature: bool | None = None,
    *,
    beside: Folders = (),
) -> Policy:
    """Return what is demanded.

    Args:
        trusted: keys that the program trusts; a signature by one of them is demanded then.
        beside: the folders of the program's package, for relative paths among `trusted`.
        require_signature: demand a signature by a key of the machine, or by one of `trusted`. False
            switches the demand of the program off, never that of the machine.

    Raises:
        SpecError: a file of keys cannot be read or holds something else, a path is neither
            absolute nor in the package, or the environment is not understood.
    """
    demands = []
    if machine_requires() or (require_signature and trusted is None):
        demands.append(_machine_demand())
    if trusted is not None and require_signature is not False:
        keys = read_keys(trusted, beside=beside, source="the argument trusted")
        demands.append(Demand(keys, "the argument trusted"))
    return Policy(tuple(demands))


def read_keys(
    trusted: Keys | Iterable[Keys], *, beside: Folders = (), source: str = "a trusted key"
) -> tuple[PublicKey, ...]:
    """Return keys, those in files and folders among them.

    Args:
        trusted: keys, their texts, and paths.
        beside: the folders that relative paths are looked for in.
        source: what named the paths, for messages.

    Raises:
        SpecError: a file cannot be read or holds something else than keys, or a relative path is
            in none of the folders.
    """
    if isinstance(trusted, PublicKey):
        return (trusted,)
    if isinstance(trusted, str) and trusted.startswith("ed25519:"):
        return parse_public_keys(trusted, "the trusted key")
    if isinstance(trusted, str | os.PathLike):
        place = _place(os.fspath(trusted), beside, source)
        return tuple(key for file in _key_files(place) for key in _read_file(file))
    return tuple(key for item in trusted for key in read_keys(item, beside=beside, source=source))


def machine_keys() -> tuple[PublicKey, ...]:
    """Return the keys that this machine trusts; errors as of `read_keys`."""
    return _machine_demand().keys


def machine_requires() -> bool:
    """Tell whether this machine demands signatures of bundles.

    Raises:
        SpecError: the environment is not understood.
    """
    text = os.environ.get(REQUIRE, "")
    # A misspelt value must not switch the demand off.
    required = _SWITCH.get(text.strip().lower())
    if required is None:
        raise SpecError(f"{REQUIRE} is {text!r}.", hint="Set it to 1 or to 0.")
    return required


def _machine_demand() -> Demand:
    named = [item for item in os.environ.get(TRUSTED, "").split(os.pathsep) if item]
    if named:
        return Demand(read_keys(named, source=TRUSTED), TRUSTED)
    folder = _trusted_folder()
    return Demand(read_keys(folder) if folder.is_dir() else (), str(folder))


def _trusted_folder() -> Path:
    """Return the folder of the machine's keys.

    Raises:
        SpecError: this user has no folder for settings.
    """
    try:
        return config_folder() / "trusted_keys"
    except RuntimeError as error:
        raise SpecError(
            f"there is no folder of trusted keys: {error}",
            hint=f"Set {TRUSTED} to the absolute path of a file of keys.",
        ) from error


def _place(path: str, beside: Folders, source: str) -> Traversable:
    """Return the file or folder of keys that a path names."""
    pure = PurePath(path)
    if pure.is_absolute():
        return Path(path)
    if not pure.parts or ".." in pure.parts or not beside:
        where = "Give a file or folder inside the package" if beside else "Give an absolute path"
        raise SpecError(
            f"{source} is {path!r}, but keys are never read from the current folder.",
            hint=f"{where}, or the text of the key, ed25519:….",
        )
    places = [place for folder in beside if (place := folder.joinpath(*pure.parts)).is_file()]
    places += [place for folder in beside if (place := folder.joinpath(*pure.parts)).is_dir()]
    if not places:
        raise SpecError(
            f"{source} is {path!r}, and there is no such file in {', '.join(map(str, beside))}.",
            hint="Ship the file of keys in the package, or give an absolute path.",
        )
    return places[0]


def _key_files(place: Traversable) -> list[Traversable]:
    try:
        if place.is_dir():
            files = [file for file in place.iterdir() if file.name.endswith(".pub")]
            return sorted(files, key=lambda file: file.name)
    except OSError as error:
        raise _unreadable(place, error.strerror) from error
    return [place]


def _read_file(place: Traversable) -> tuple[PublicKey, ...]:
    try:
        text = place.read_text("utf-8")
    except OSError as error:
        raise _unreadable(place, error.strerror) from error
    except UnicodeDecodeError as error:
        raise _unreadable(place, "it is not text") from error
    return parse_public_keys(text, str(place))


def _unreadable(place: Traversable, reason: str | None) -> SpecError:
    return SpecError(
        f"the trusted keys in {place} cannot be read: {reason}.",
        hint="Give files that pallasc bundle keygen made, or a folder of them.",
    )
