"""Files as CI services name them: relative to the folder with the repository."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_ROOTS = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR", "WORKSPACE")
"""Where GitHub, GitLab and Jenkins say which folder that is."""

_NO = ("", "0", "false")


def workspace_root(environment: Mapping[str, str]) -> Path:
    """Return the folder of the repository: the CI service's, else the current one."""
    named = next((environment[name] for name in _ROOTS if environment.get(name)), ".")
    return Path(named).resolve()


def is_ci(environment: Mapping[str, str]) -> bool:
    """Tell whether a CI service started this process: they all set `CI`."""
    return environment.get("CI", "").lower() not in _NO


def relative_file(file: str, root: Path) -> str | None:
    """Return a file's path from `root`, with `/`; None if it is not below it."""
    # A link inside the repository may lead out of it, and the root may itself be a link.
    for path in (Path(os.path.abspath(file)), Path(file).resolve()):
        if path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return None
