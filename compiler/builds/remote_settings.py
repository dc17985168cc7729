"""Which remote store a build has: command line before environment before the project."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pallasc.errors import SpecError
from pallasc.specs.settings.build_settings import build_settings

if TYPE_CHECKING:
    from pallasc.cache.remote.settings import RemoteSettings

URL = "PALLASC_REMOTE"
NONE = ("none", "off", "0")
"""Values of that variable, and of `--remote`, that switch the project's remote off."""


def remote_settings(
    environ: Mapping[str, str],
    *,
    url: str | None = None,
    write: bool | None = None,
    folder: str | Path = ".",
    timeout_s: float = 60.0,
) -> RemoteSettings | None:
    """Return the remote store of a build, None if it has none; imports little if there is none.

    Args:
        environ: environment variables.
        url: the URL of the command line.
        write: whether to write there, as the command line says.
        folder: the folder whose project is asked.
        timeout_s: as in `RemoteSettings`.

    Raises:
        SpecError: a setting is wrong; the message says which, and shows no credentials.
    """
    named = url or environ.get(URL, "")
    if named.lower() in NONE:
        return None
    project = build_settings(folder)
    if not (named or project.remote):
        return None
    from pallasc.cache.remote.settings import read_settings

    table = {
        "remote": project.remote or None,
        "remote-write": project.remote_write or False,
        "remote-signed": project.remote_signed or "optional",
    }
    try:
        return read_settings(environ, url=url, write=write, project=table, timeout_s=timeout_s)
    except SpecError as error:
        if not named and error.location is None:
            error.location = project.where.get("remote")
        raise
