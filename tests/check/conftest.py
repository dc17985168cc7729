"""Modules that the tests of mutants share."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import equivalent_mutants  # noqa: F401  (tests import it by its bare name, and the others)
import kernel_mutants  # noqa: F401
import kernel_mutations  # noqa: F401
import mutant_references  # noqa: F401
import mutated_kernels  # noqa: F401

sys.path.pop(0)
