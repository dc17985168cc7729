"""`pallasc check` over the whole library finds nothing, at every level, and its sizes are small.

Of each spec the first point is checked: on an architecture from before Hopper, on Hopper, on
Blackwell, or on consumer Blackwell.
"""

from __future__ import annotations

import json
import math
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml
from pallasc.specs.spec import Variant

LIBRARY = Path(__file__).parents[2] / "specs" / "library"
NEW = metadata.version("jax") >= "0.12"
SPECS = sorted(LIBRARY.glob("*.yaml"))
OWN = [file for file in SPECS if file.stem != "jax_kernels"]
MOST_ELEMENTS = 1 << 19
"""Of all arrays of a kernel: the artifact level executes them in seconds."""


def _variants(file: Path) -> list[Variant]:
    return expand(load_yaml(file))


@pytest.mark.parametrize("file", SPECS, ids=lambda file: file.stem)
def test_every_kernel_has_a_reference_and_small_sizes(file: Path) -> None:
    for variant in _variants(file):
        assert variant.reference
        assert variant.tolerance
        assert variant.check is not None
        small = [array for _, array in variant.for_check().arrays()]
        assert sum(math.prod(array.shape) for array in small) <= MOST_ELEMENTS, variant.id


TARGETS = {
    "blackwell_matmul": ("sm_100a",),
    "elementwise": ("sm_80", "sm_100a", "sm_120a"),
    "reduction": ("sm_80", "sm_90a"),
    "rms_norm": ("sm_90a", "sm_120a"),
}
"""Targets by spec, Hopper for others: each architecture and each kernel at least once."""


def _targets(file: Path) -> tuple[str, ...]:
    return TARGETS.get(file.stem, ("sm_90a",))


def _condition(file: Path) -> str:
    """Return a condition for the first point of a spec, on its targets."""
    first = _variants(file)[0]
    point = [f"name={first.name}", *(f"{name}={value}" for name, value in first.params)]
    targets = " or ".join(f"target={target}" for target in _targets(file))
    return f"({' and '.join(point)} and ({targets}))"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, checking: Any) -> dict[str, Any]:
    """Check a variant of each kernel at all levels; return the variants by id."""
    ran = checking.check(
        tmp_path_factory.mktemp("library"), *OWN, "-k", " or ".join(map(_condition, OWN)),
        "--level", "all", "--json", "--schedules", "2", "--jobs", "1",
    )  # fmt: skip
    assert ran.code == 0, ran.out + ran.err
    return {check["id"]: check for check in ran.report["variants"]}


@pytest.mark.parametrize("level", ["static", "interpreter", "artifact"])
def test_nothing_is_found_in_a_kernel_of_the_library(level: str, report: dict[str, Any]) -> None:
    assert len(report) == sum(len(_targets(file)) for file in OWN)
    for name, check in report.items():
        (result,) = [result for result in check["results"] if result["level"] == level]
        if level == "interpreter" and not NEW:
            assert result["status"] in ("passed", "not checked"), (name, result)
        else:
            assert (result["status"], result["findings"]) == ("passed", []), name
        if level != "static" and result["status"] == "passed":
            assert "numbers are not compared" not in json.dumps(result["notes"])
