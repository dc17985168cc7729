"""The functions of this folder, which its tests import by name."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import whole_functions  # noqa: F401

sys.path.pop(0)
