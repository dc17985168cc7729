"""The example's wheel, built from a fresh copy, launches kernels where there is no JAX."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from environments import Environment, bundles_in, tree
from launching import check_launched, launch

from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.bundle.verify import verify

PLACE = "fused_ops/kernels.pallasc"
KERNELS = ["add_rms_norm", "bias_gelu", "linear_gelu"]


@pytest.mark.parametrize(
    ("arch", "devices", "model"), [("sm_90a", "9.0", "h100-sxm"), ("sm_100a", "10.0", "b200")]
)
def test_the_wheel_launches_every_kernel_where_there_is_no_jax(
    example_wheel: Path, user: Environment, standin: Any, arch: str, devices: str, model: str
) -> None:
    user.install(example_wheel)
    check_launched(launch(user, standin, "fused_ops", arch, devices), KERNELS, model)


def test_the_wheel_is_pure_and_has_the_bundle_and_no_sources_of_kernels(
    example_wheel: Path,
) -> None:
    assert example_wheel.name == "fused_ops-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(example_wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == {"fused_ops/__init__.py", PLACE}


def test_building_a_wheel_writes_into_the_build_folder_alone(
    example_wheel: Path, copy_example: Callable[..., Path]
) -> None:
    left = (example_wheel.parent / "left").read_text().splitlines()
    new = set(left) - tree(copy_example("fused_ops"))
    assert {name.split("/")[0] for name in new} <= {"build", "src"}
    assert {name.split("/")[1] for name in new if name.startswith("src/")} == {"fused_ops.egg-info"}


def test_the_build_says_what_it_made(example_wheel: Path) -> None:
    output = (example_wheel.parent / "output").read_text()
    assert f"pallasc: {PLACE}: 12 variants for sm_100a, sm_90a, " in output


def test_the_wheel_from_the_sdist_has_the_same_bundle_and_launches_it(
    wheel_from_sdist: Path, example_wheel: Path, user: Environment, standin: Any
) -> None:
    assert bundles_in(wheel_from_sdist) == bundles_in(example_wheel)
    user.install(wheel_from_sdist)
    check_launched(launch(user, standin, "fused_ops", "sm_90a", "9.0"), KERNELS, "h100-sxm")


def test_the_sdist_has_kernels_and_specs_and_no_bundle(wheel_from_sdist: Path) -> None:
    (sdist,) = wheel_from_sdist.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"kernels/{name}" for name in ("kernels.yaml", "rows.py", "linear.py")} <= names
    assert not [name for name in names if name.endswith((".pallasc", ".pyc"))]


def test_the_bundle_is_whole_and_stripped(example_wheel: Path) -> None:
    (data,) = bundles_in(example_wheel).values()
    with open_bundle(data) as bundle:
        verify(bundle)
        assert len(bundle) == 12
