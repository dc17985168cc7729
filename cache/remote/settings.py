"""What a user sets about a remote store: command line over environment over pyproject.toml.

--remote URL                      PALLASC_REMOTE        [tool.pallasc] remote
--remote-write/--no-remote-write  PALLASC_REMOTE_WRITE  [tool.pallasc] remote-write
                      PALLASC_REQUIRE_SIGNED_REMOTE     [tool.pallasc] remote-signed = "required"
--no-remote
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pallasc.cache.remote.address import Address, parse_address
from pallasc.errors import SpecError

URL, WRITE, SIGNED = "PALLASC_REMOTE", "PALLASC_REMOTE_WRITE", "PALLASC_REQUIRE_SIGNED_REMOTE"
_SWITCH = {
    **dict.fromkeys(("", "0", "false", "no", "off"), False),
    **dict.fromkeys(("1", "true", "yes", "on"), True),
}


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """A remote store and what may be done with it.

    Attributes:
        address: where it is.
        write: new artifacts are written there.
        signed: what comes from there counts only with a trusted signature.
        timeout_s: how long one request of a command about the remote may take; builds have a rule
            of their own, see `cache/remote/guard.py`.
    """

    address: Address
    write: bool = False
    signed: bool = False
    timeout_s: float = 60.0


def read_settings(
    environ: Mapping[str, str],
    *,
    url: str | None = None,
    write: bool | None = None,
    project: Mapping[str, object] | None = None,
    timeout_s: float = 60.0,
) -> RemoteSettings | None:
    """Return the settings of the remote store, None where none is named.

    Args:
        environ: the environment's variables.
        url: of the command line.
        write: of the command line.
        project: the table `[tool.pallasc]` of pyproject.toml.
        timeout_s: see `RemoteSettings`.

    Raises:
        SpecError: a setting is invalid; the message says which and shows no credentials.
    """
    table = project or {}
    named = _first(
        ("--remote", url), (URL, environ.get(URL) or None), ("remote", table.get("remote"))
    )
    if named is None or named[1] == "":
        return None
    label, address = named
    if not isinstance(address, str):
        raise SpecError(f"[tool.pallasc] {label} must be the text of a URL.")
    try:
        parsed = parse_address(address)
    except SpecError as error:
        raise SpecError(f"{label}: {error.message}", hint=error.hint) from None
    writes = _switch(environ, WRITE)
    if writes is None:
        writes = _boolean(table, "remote-write")
    signed = _switch(environ, SIGNED)
    if signed is None:
        signed = _signed(table)
    return RemoteSettings(parsed, writes if write is None else write, signed, timeout_s)


def _first(*choices: tuple[str, object]) -> tuple[str, object] | None:
    return next((choice for choice in choices if choice[1] is not None), None)


def _switch(environ: Mapping[str, str], name: str) -> bool | None:
    """Return what a variable says, None where it is not set.

    Raises:
        SpecError: it is not understood.
    """
    if name not in environ:
        return None
    value = _SWITCH.get(environ[name].strip().lower())
    if value is None:
        raise SpecError(f"{name} is {environ[name]!r}.", hint="Set it to 1 or to 0.")
    return value


def _boolean(table: Mapping[str, object], name: str) -> bool:
    value = table.get(name, False)
    if not isinstance(value, bool):
        raise SpecError(f"[tool.pallasc] {name} must be true or false, got {value!r}.")
    return value


def _signed(table: Mapping[str, object]) -> bool:
    value = table.get("remote-signed", "optional")
    if value not in ("required", "optional"):
        raise SpecError(
            f'[tool.pallasc] remote-signed must be "required" or "optional", got {value!r}.'
        )
    return value == "required"
