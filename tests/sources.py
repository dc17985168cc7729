"""Copies of this project as in a clone: without files that are built or installed here."""

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOT_SOURCES = shutil.ignore_patterns(
    *(".git", ".venv*", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis"),
    "*.so",
)


def copy_sources(to: Path) -> Path:
    """Return a new copy of this project."""
    return Path(shutil.copytree(ROOT, to, ignore=NOT_SOURCES, symlinks=True))
