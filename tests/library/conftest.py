"""The module `digests`, which tests of this folder import by name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import digests  # noqa: F401

sys.path.pop(0)
