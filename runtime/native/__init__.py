"""Launching from C: sources and header of the library, the extension, and what loads them."""

from __future__ import annotations

from pathlib import Path


def is_clone(folder: Path) -> bool:
    """Tell whether C sources in a folder of an installation are a clone's, which may change."""
    return (folder.resolve().parents[1] / "setup.py").is_file()
