"""The address of a cluster: the text of `--executor`."""

from __future__ import annotations

import re
from typing import NamedTuple

from pallasc.errors import SpecError

LOCAL = "dask:"
"""A cluster in the process of the build."""

_SCHEMES = {"dask": "tcp", "dask+tls": "tls"}
_ADDRESS = re.compile(
    r"(?P<scheme>dask(?:\+tls)?)://"
    r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?/?"
)
_PORT = 8786
"""The default port of dask's scheduler."""


class Address(NamedTuple):
    """A scheduler.

    Attributes:
        text: as the user wrote it.
        url: as dask writes it, "" for a cluster in the process of the build.
    """

    text: str
    url: str


def parse_address(text: str) -> Address:
    """Return the scheduler that `--executor` names.

    Raises:
        SpecError: it names none; the message shows no password.
    """
    if text.strip() == LOCAL:
        return Address(LOCAL, "")
    match = _ADDRESS.fullmatch(text.strip())
    port = int(match["port"] or _PORT) if match else 0
    if match is None or not 0 < port < 65536:
        shown = "a text with a user or a password" if "@" in text else repr(text)
        raise SpecError(
            f"--executor: {shown} is not the address of a scheduler.",
            hint="Write dask://HOST:8786, dask+tls://HOST:8786, or dask: for a cluster on this "
            "machine.",
        )
    return Address(text.strip(), f"{_SCHEMES[match['scheme']]}://{match['host']}:{port}")
