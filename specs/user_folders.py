"""Where this user's settings lie."""

from __future__ import annotations

import os
from pathlib import Path


def config_folder() -> Path:
    """Return `pallasc` below `$XDG_CONFIG_HOME`, else below `~/.config`.

    A relative `$XDG_CONFIG_HOME` is ignored, as the XDG base directory specification asks.

    Raises:
        RuntimeError: it is not set, and this user has no home folder.
    """
    named = os.environ.get("XDG_CONFIG_HOME", "")
    base = Path(named) if os.path.isabs(named) else Path.home() / ".config"
    return base / "pallasc"
