"""`pallasc check` over the whole library finds nothing, and its sizes are small.

The first point of each spec is checked, on one architecture. Together these are Ampere, Hopper,
and Blackwell. JAX's interpreter runs the library in `tests/library`.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml
from pallasc.specs.spec import Variant

LIBRARY = Path(__file__).parents[2] / "specs" / "library"
SPECS = sorted(LIBRARY.glob("*.yaml"))
OWN = [file for file in SPECS if file.stem != "jax_kernels"]
MOST_ELEMENTS = 1 << 19
"""Of all arrays of a kernel: the artifact level executes them in seconds."""

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a", "sm_120a")
ONLY_ON = {
    "blackwell_matmul": "sm_100a",
    "dequant_matmul": "sm_90a",
    "fused_matmul": "sm_90a",
    "hopper_matmul": "sm_90a",
}
"""The architecture of a kernel whose instructions none of the others has."""
CHECKED_ON = ONLY_ON | {
    "elementwise": "sm_80",
    "reduction": "sm_90a",
    "rms_norm": "sm_100a",
    "softmax": "sm_100a",
}
"""The architecture that a kernel is checked on."""


def _runs_on(spec: str) -> tuple[str, ...]:
    """Return on which architectures a kernel compiles."""
    return (ONLY_ON[spec],) if spec in ONLY_ON else ARCHITECTURES


CHECKED = [(file.stem, CHECKED_ON[file.stem]) for file in OWN]


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


@pytest.mark.parametrize("file", OWN, ids=lambda file: file.stem)
def test_a_kernel_is_offered_wherever_it_compiles(file: Path) -> None:
    offered = {variant.target.arch for variant in _variants(file)}
    assert tuple(arch for arch in ARCHITECTURES if arch in offered) == _runs_on(file.stem)


def _first_point(file: Path, *targets: str) -> str:
    """Return a condition for the first point of a spec, on some targets."""
    first = _variants(file)[0]
    point = [f"name={first.name}", *(f"{name}={value}" for name, value in first.params)]
    where = " or ".join(f"target={target}" for target in targets)
    return f"({' and '.join(point)} and ({where}))"


@pytest.fixture(scope="module")
def report(
    tmp_path_factory: pytest.TempPathFactory, checking: Any
) -> dict[tuple[str, str], dict[str, Any]]:
    """Check a variant of each kernel; return them by spec and architecture."""
    points = [_first_point(LIBRARY / f"{spec}.yaml", arch) for spec, arch in CHECKED]
    ran = checking.check(
        tmp_path_factory.mktemp("library"), *OWN, "-k", " or ".join(points),
        "--level", "artifact", "--json", "--schedules", "1", "--jobs", "1",
    )  # fmt: skip
    assert ran.code == 0, ran.out + ran.err
    specs = {_variants(file)[0].name: file.stem for file in OWN}
    arch = {v.target.name: v.target.arch for file in OWN for v in _variants(file)}
    return {(specs[row["name"]], arch[row["target"]]): row for row in ran.report["variants"]}


def test_each_kernel_is_checked(report: dict[Any, Any]) -> None:
    assert sorted(report) == sorted(CHECKED)


@pytest.mark.parametrize(("spec", "arch"), CHECKED, ids=lambda part: part)
def test_nothing_is_found_in_a_kernel_of_the_library(
    spec: str, arch: str, report: dict[Any, Any]
) -> None:
    (result,) = report[spec, arch]["results"]
    assert (result["status"], result["findings"]) == ("passed", [])
    assert "numbers are not compared" not in json.dumps(result["notes"])
