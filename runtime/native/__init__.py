"""Launching from C: sources and header of the library, the extension, and the loaders of both."""

from __future__ import annotations

from pathlib import Path


def is_clone(folder: Path) -> bool:
    """Return True if a folder with the C sources is in a clone, where they may change."""
    return (folder.resolve().parents[1] / "setup.py").is_file()
