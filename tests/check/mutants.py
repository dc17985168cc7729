"""Find out which mutants of kernels the levels of `pallasc check` see.

    python tests/check/mutants.py --json found.json            # the artifact level
    python tests/check/mutants.py --interpreter --json i.json  # JAX's interpreter alone

Mutants are built once: their artifacts are kept in the store of `--folder`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import references
from mutations import Mutant, mutants, sample
from subjects import SUBJECTS, Subject

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.emulator.machine.faults import Fault
from pallasc.emulator.machine.machine import Machine, Policy
from pallasc.emulator.run_plan import PlanRun
from pallasc.errors import PallascError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml
from pallasc.specs.spec import Variant

POLICIES = (
    Policy(seconds=30),
    Policy(eagerness=1, seconds=30),
    Policy(seed=1, shuffle=True, eagerness=0.3, seconds=30),
    Policy(seed=2, shuffle=True, eagerness=0.02, seconds=30),
)
"""As late as can be, at once, and at random times in random order."""
