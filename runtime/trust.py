"""Who must have signed a bundle before anything of it is used.

Signatures are demanded by the program (arguments) or by the machine (environment), and what both
demand both get: a program may ask for more than the machine, not for less. Keys of the machine are
those that `PALLASC_TRUSTED_KEYS` names, files or folders with `*.pub`, else those in the folder
`pallasc/trusted_keys` below `XDG_CONFIG_HOME` or `~/.config`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pallasc.errors import CorruptError, SpecError
from pallasc.specs.bundle.bundle import Bundle
from pallasc.specs.bundle.signature import PublicKey, parse_public_keys

REQUIRE = "PALLASC_REQUIRE_SIGNATURE"
TRUSTED = "PALLASC_TRUSTED_KEYS"

Keys = PublicKey | str | os.PathLike[str]
"""A key, its text `ed25519:…`, or the path of a file of keys or of a folder with `*.pub`."""

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
    """What program and machine demand; nothing where nobody does."""

    demands: tuple[Demand, ...] = ()

    def check(self, bundle: Bundle) -> None:
        """Check a bundle against all demands; errors as of `Demand.check`."""
        for demand in self.demands:
            demand.check(bundle)


def read_policy(
    trusted: Keys | Iterable[Keys] | None = None, require_signature: bool | None = None
) -> Policy:
    """Return what is demanded.

    Args:
        trusted: keys that the program trusts; a signature by one of them is demanded then.
        require_signature: demand a signature by a key of the machine, or by one of `trusted`. False
            switches the demand of the program off, never that of the machine.

    Raises:
        SpecError: a file of keys cannot be read or is none, or the environment is not understood.
    """
    demands = []
    if _machine_requires() or (require_signature and trusted is None):
        demands.append(_machine_demand())
    if trusted is not None and require_signature is not False:
        demands.append(Demand(read_keys(trusted), "the argument trusted"))
    return Policy(tuple(demands))


def read_keys(trusted: Keys | Iterable[Keys]) -> tuple[PublicKey, ...]:
    """Return keys, those in files and folders among them.

    Raises:
        SpecError: a file cannot be read, or what it holds is no key.
    """
    if isinstance(trusted, PublicKey):
        return (trusted,)
    if isinstance(trusted, str) and trusted.startswith("ed25519:"):
        return parse_public_keys(trusted, "the trusted key")
    if isinstance(trusted, str | os.PathLike):
        return tuple(key for file in _key_files(Path(trusted)) for key in _read_file(file))
    return tuple(key for one in trusted for key in read_keys(one))


def machine_keys() -> tuple[PublicKey, ...]:
    """Return the keys that this machine trusts; errors as of `read_keys`."""
    return _machine_demand().keys


def _machine_requires() -> bool:
    text = os.environ.get(REQUIRE, "")
    required = _SWITCH.get(text.strip().lower())
    if required is None:
        raise SpecError(f"{REQUIRE} is {text!r}.", hint="Set it to 1 or to 0.")
    return required


def _machine_demand() -> Demand:
    named = [item for item in os.environ.get(TRUSTED, "").split(os.pathsep) if item]
    if named:
        return Demand(read_keys(named), TRUSTED)
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join("~", ".config")
    folder = Path(base).expanduser() / "pallasc" / "trusted_keys"
    return Demand(read_keys(folder) if folder.is_dir() else (), str(folder))


def _key_files(path: Path) -> list[Path]:
    try:
        if path.is_dir():
            return sorted(one for one in path.iterdir() if one.suffix == ".pub")
    except OSError as error:
        raise _unreadable(path, error.strerror) from error
    return [path]


def _read_file(path: Path) -> tuple[PublicKey, ...]:
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise _unreadable(path, error.strerror) from error
    except UnicodeDecodeError as error:
        raise _unreadable(path, "it is not text") from error
    return parse_public_keys(text, str(path))


def _unreadable(path: Path, reason: str | None) -> SpecError:
    return SpecError(
        f"the trusted keys in {path} cannot be read: {reason}.",
        hint="Give files that pallasc bundle keygen made, or a folder of them.",
    )
