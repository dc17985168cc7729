"""The address of a remote store, its settings, and statistics of its use.

    url    = "file://" path
           | "s3://" bucket [ "/" prefix ] | "gs://" bucket [ "/" prefix ]
           | "az://" container [ "/" prefix ]
           | ( "http" | "https" ) "://" [ user [ ":" password ] "@" ] host [ ":" port ]
             [ "/" prefix ]

A user and password are removed from the URL immediately; `Address.text` never contains them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from pallasc.cache.format import size
from pallasc.errors import SpecError
from pallasc.specs.settings import NOTHING_SET, BuildSettings
from pallasc.specs.user_files import read_switch

URL, WRITE, SIGNED = "PALLASC_REMOTE", "PALLASC_REMOTE_WRITE", "PALLASC_REQUIRE_SIGNED_REMOTE"
CLOUDS = ("s3", "gs", "az")
_SCHEMES = ("file", *CLOUDS, "http", "https")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}", re.ASCII)
_PATH = re.compile(r"[A-Za-z0-9/._~@+=,-]*", re.ASCII)
_HINT = (
    "Give file:///folder, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, "
    "or https://host/path."
)
_MOST_REASONS = 20


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of a remote store's URL.

    Attributes:
        text: the URL without credentials.
        scheme: `file`, `s3`, `gs`, `az`, `http`, or `https`.
        place: the bucket or container, or `host:port`; empty for a folder.
        path: the prefix without leading and trailing slashes; for a folder, its absolute path.
        login: user and password of the URL; never shown.
    """

    text: str
    scheme: str
    place: str
    path: str
    login: tuple[str, str] | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """Settings of a remote store.

    Attributes:
        address: its address.
        write: whether new artifacts are written to it.
        signed: whether an entry from it needs a trusted signature.
        timeout_s: time limit for one request of a command; builds have their own limit.
    """

    address: Address
    write: bool = False
    signed: bool = False
    timeout_s: float = 60.0


@dataclass(slots=True)
class RemoteStats:
    """Statistics of a build's or command's use of a remote store.

    Attributes:
        url: URL of the remote, without credentials.
        requests: number of requests.
        hits: variants that came from the remote.
        offered: variants that were written to it.
        bytes_read: size of received bodies.
        bytes_written: size of sent bodies.
        waited_s: time spent waiting for it, including decompressing and verifying.
        lost_s: part of that time that gave no result.
        saved_s: recorded compile time of the hits.
        refused: entries and objects that were rejected, with the reason; the first 20.
        refusals: number of all rejected entries and objects.
        conflicts: action keys for which remote and local store have different artifacts.
        tripped: why the remote was disabled, "" if it was not.
    """

    url: str = ""
    requests: int = 0
    hits: int = 0
    offered: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    waited_s: float = 0.0
    lost_s: float = 0.0
    saved_s: float = 0.0
    refused: list[str] = field(default_factory=list)
    refusals: int = 0
    conflicts: list[str] = field(default_factory=list)
    tripped: str = ""

    def refuse(self, reason: str) -> None:
        """Count an entry or object that was rejected."""
        self.refusals += 1
        if len(self.refused) < _MOST_REASONS:
            self.refused.append(reason)

    def to_json(self) -> dict[str, Any]:
        """Return the object under `remote` in the output of `--json`."""
        data: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        return data | {name: round(data[name], 3) for name in ("waited_s", "lost_s", "saved_s")}

    def __str__(self) -> str:
        """Return one line for the summary of a build."""
        parts = [f"{self.hits:,} {'hit' if self.hits == 1 else 'hits'}"]
        if self.offered:
            parts.append(f"{self.offered:,} {'offered' if self.tripped else 'written'}")
        parts.append(f"{size(self.bytes_read)} read")
        if self.bytes_written:
            parts.append(f"{size(self.bytes_written)} sent")
        parts.append(f"{self.requests:,} {'request' if self.requests == 1 else 'requests'}")
        parts.append(f"waited {self.waited_s:.1f} s")
        if self.saved_s:
            parts.append(f"{self.saved_s:.1f} s of compiling saved")
        if self.refusals:
            parts.append(f"{self.refusals} refused ({self.refused[0]})")
        if self.tripped:
            parts.append("disabled")
        return f"remote {self.url}: {', '.join(parts)}"


def read_settings(
    environ: Mapping[str, str],
    project: BuildSettings = NOTHING_SET,
    *,
    url: str | None = None,
    write: bool | None = None,
    timeout_s: float = 60.0,
) -> RemoteSettings | None:
    """Return the settings of the remote store, None if none is configured.

    Args:
        environ: the environment's variables.
        project: the settings of the project.
        url: the URL from the command line.
        write: whether to write, from the command line.
        timeout_s: see `RemoteSettings`.

    Raises:
        SpecError: a setting is invalid; the message names it and shows no credentials.
    """
    choices = (("--remote", url), (URL, environ.get(URL) or None), ("remote", project.remote))
    label, named = next(each for each in choices if each[1] is not None)
    if not named:
        return None
    try:
        address = parse_address(named)
    except SpecError as error:
        place = project.where.get(label)
        raise SpecError(f"{label}: {error.message}", location=place, hint=error.hint) from None
    if write is None:
        write = read_switch(environ, WRITE, bool(project.remote_write))
    signed = read_switch(environ, SIGNED, project.remote_signed == "required")
    return RemoteSettings(address, write, signed, timeout_s)


def parse_address(url: str) -> Address:
    """Parse the URL of a remote store.

    Raises:
        SpecError: the URL is invalid; the message shows no part that could be a password.
    """
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise _wrong("is not a URL") from None
    scheme, path = parts.scheme, unquote(parts.path).strip("/")
    if scheme not in _SCHEMES:
        known = ", ".join(f"{name}://" for name in _SCHEMES)
        shown = scheme if re.fullmatch(r"[a-z0-9+.-]{1,20}", scheme) else "something else"
        raise _wrong(f"begins with {shown}:// instead of {known}" if scheme else "has no scheme")
    if "?" in url or "#" in url:
        raise _wrong("has a query or a fragment", "Give credentials by the environment.")
    if scheme == "file":
        is_absolute = parts.netloc in ("", "localhost") and parts.path.startswith("/")
        if not is_absolute or "\0" in path:
            raise _wrong("names no absolute folder", "Give file:///absolute/folder.")
        return Address(f"file:///{path}", "file", "", f"/{path}")
    names = path.split("/") if path else []
    if not _PATH.fullmatch(path) or any(name in ("", ".", "..") for name in names):
        raise _wrong(
            "has a path with '..', an empty part or an unusual character",
            "Use letters, digits and any of . _ ~ @ + = , - in its path.",
        )
    place, login = _place(parts, port)
    return Address(f"{scheme}://{place}{'/' * bool(path)}{path}", scheme, place, path, login)


def _wrong(fault: str, hint: str = _HINT) -> SpecError:
    return SpecError(f"the address of the remote store {fault}", hint=hint)


def _place(parts: SplitResult, port: int | None) -> tuple[str, tuple[str, str] | None]:
    """Return the bucket, or host and port, and the login."""
    has_login, host = "@" in parts.netloc, parts.hostname or ""
    if parts.scheme in CLOUDS:
        if has_login:
            raise _wrong(
                "has credentials before its bucket",
                "Give credentials in environment variables, as for the cloud's own tools.",
            )
        if not _BUCKET.fullmatch(parts.netloc):
            raise _wrong("has no name, or an unusual name of a bucket or container")
        return parts.netloc, None
    if not _HOST.fullmatch(host):
        raise _wrong("has no host, or an unusual one")
    login = (unquote(parts.username or ""), unquote(parts.password or "")) if has_login else None
    return (f"[{host}]" if ":" in host else host) + (f":{port}" if port is not None else ""), login
