"""The example's wheel, built from a fresh copy, launches kernels where there is no JAX."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
from environments import Environment, bundles_in
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


def test_the_wheel_from_the_sdist_has_the_same_bundle_and_launches_it(
    wheel_from_sdist: Path, example_wheel: Path, user: Environment, standin: Any
) -> None:
    assert bundles_in(wheel_from_sdist) == bundles_in(example_wheel)
    user.install(wheel_from_sdist)
    check_launched(launch(user, standin, "fused_ops", "sm_90a", "9.0"), KERNELS, "h100-sxm")


def test_the_bundle_is_whole_and_stripped(example_wheel: Path) -> None:
    (data,) = bundles_in(example_wheel).values()
    with open_bundle(data) as bundle:
        verify(bundle)
        assert len(bundle) == 12
