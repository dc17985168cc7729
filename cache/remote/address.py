"""Where a remote store lies: its URL, taken apart, without credentials from the first moment.

    url    = "file://" path
           | "s3://" bucket [ "/" prefix ] | "gs://" bucket [ "/" prefix ]
           | "az://" container [ "/" prefix ]
           | [ "bazel+" ] ( "http" | "https" ) "://" [ user [ ":" password ] "@" ] host [ ":" port ]
             [ "/" prefix ]

A user and password go into a `Login`, which shows neither; `text` is what is shown, written to logs
and records, and it never had them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

from pallasc.errors import SpecError

CLOUDS = ("s3", "gs", "az")
_SCHEMES = ("file", *CLOUDS, "http", "https", "bazel+http", "bazel+https")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}", re.ASCII)
_PATH = re.compile(r"[A-Za-z0-9/._~@+=,-]*", re.ASCII)
_HINT = (
    "Give file:///folder, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, "
    "https://host/path, or bazel+https://host for a cache of Bazel."
)


@dataclass(frozen=True, slots=True)
class Login:
    """A user and a password, which are shown nowhere."""

    user: str = field(repr=False)
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Address:
    """A remote store's place.

    Attributes:
        text: the URL without credentials.
        scheme: `file`, `s3`, `gs`, `az`, `http`, `https`, `bazel+http` or `bazel+https`.
        place: the bucket or container, or `host:port`; empty for a folder.
        path: the prefix without slashes around it; for a folder, its absolute path.
        login: user and password of the URL.
    """

    text: str
    scheme: str
    place: str
    path: str
    login: Login | None = field(default=None, repr=False, compare=False)

    @property
    def is_bazel(self) -> bool:
        """Tell whether this is one of Bazel's HTTP caches."""
        return self.scheme.startswith("bazel+")

    @property
    def web_url(self) -> str:
        """Return the URL that HTTP requests begin with, without credentials."""
        path = f"/{self.path}" if self.path else ""
        return f"{self.scheme.removeprefix('bazel+')}://{self.place}{path}"

    def __str__(self) -> str:
        return self.text


def parse_address(url: str) -> Address:
    """Take the URL of a remote store apart.

    Raises:
        SpecError: it is not one; the message shows no part that could be a password.
    """
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise _wrong("is not a URL") from None
    scheme = parts.scheme.lower()
    if scheme not in _SCHEMES:
        known = ", ".join(f"{name}://" for name in _SCHEMES)
        shown = scheme if re.fullmatch(r"[a-z0-9+.-]{1,20}", scheme) else "something else"
        raise _wrong(f"begins with {shown}:// instead of {known}" if scheme else "has no scheme")
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise _wrong("has a query or a fragment", "Give credentials by the environment.")
    if scheme == "file":
        return _folder(parts)
    if scheme in CLOUDS:
        return _bucket(scheme, parts)
    return _web(scheme, parts, port)


def _wrong(fault: str, hint: str = _HINT) -> SpecError:
    return SpecError(f"the address of the remote store {fault}", hint=hint)


def _folder(parts: SplitResult) -> Address:
    if parts.netloc not in ("", "localhost"):
        raise _wrong("is file:// with a host", "Give file:///absolute/folder, with three slashes.")
    path = unquote(parts.path)
    if not path.startswith("/") or "\0" in path:
        raise _wrong("is file:// without an absolute folder", "Give file:///absolute/folder.")
    path = "/" + path.strip("/")
    return Address(f"file://{path}", "file", "", path)


def _prefix(path: str) -> str:
    """Return a path without slashes around it.

    Raises:
        SpecError: it has `..`, an empty part or a character that servers disagree about.
    """
    prefix = unquote(path).strip("/")
    names = prefix.split("/") if prefix else []
    if not _PATH.fullmatch(prefix) or any(name in ("", ".", "..") for name in names):
        raise _wrong(
            "has a path with '..', an empty part or an unusual character",
            "Use letters, digits and any of . _ ~ @ + = , - in its path.",
        )
    return prefix


def _bucket(scheme: str, parts: SplitResult) -> Address:
    if "@" in parts.netloc:
        raise _wrong(
            "has credentials before its bucket",
            "Give credentials by the environment, as the cloud's own tools take them.",
        )
    if not _BUCKET.fullmatch(parts.netloc):
        problem = "has an unusual name" if parts.netloc else f"is {scheme}:// without the name"
        raise _wrong(f"{problem} of a bucket or container")
    prefix = _prefix(parts.path)
    text = f"{scheme}://{parts.netloc}" + (f"/{prefix}" if prefix else "")
    return Address(text, scheme, parts.netloc, prefix)


def _web(scheme: str, parts: SplitResult, port: int | None) -> Address:
    host = parts.hostname or ""
    if not _HOST.fullmatch(host):
        raise _wrong(f"is {scheme}:// without a host")
    login = None
    if "@" in parts.netloc:
        login = Login(unquote(parts.username or ""), unquote(parts.password or ""))
    place = (f"[{host}]" if ":" in host else host) + (f":{port}" if port is not None else "")
    prefix = _prefix(parts.path)
    text = f"{scheme}://{place}" + (f"/{prefix}" if prefix else "")
    return Address(text, scheme, place, prefix, login)
