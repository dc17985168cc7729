"""A library without kernels, and wheels that bring them for one architecture each."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from environments import EXAMPLES, Environment, bundles_in, wheel_in
from launching import check_launched, launch, run
from sources import NOT_SOURCES

from pallasc.specs.bundle.bundle import open_bundle

GPUS = {"sm90": ("sm_90a", "9.0", "h100-sxm"), "sm100": ("sm_100a", "10.0", "b200")}


@pytest.fixture(scope="session")
def wheels(shared: Any, builder: Environment, example_wheel: Path) -> dict[str, Path]:
    """Build what the example's README says: one bundle for each architecture, three wheels."""

    def fill(folder: Path) -> None:
        clone = shutil.copytree(EXAMPLES / "provider_wheels", folder / "clone", ignore=NOT_SOURCES)
        create = ["-m", "pallasc", "bundle", "create", "kernels.yaml", "--split-by", "arch"]
        builder.succeed("-P", *create, "-o", "kernels.pallasc", cwd=clone)
        for name, (arch, _, _) in GPUS.items():
            shutil.move(clone / f"kernels-{arch}.pallasc", clone / name)
        for name in ("library", *GPUS):
            flags = [] if name == "sm90" else ["--wheel"]
            done = builder.build(clone / name, folder / name, *flags)
            assert done.returncode == 0, done.stdout

    folder = shared("providers", fill)
    return {name: wheel_in(folder / name) for name in ("library", *GPUS)}


def test_each_wheel_is_pure_and_has_its_own_bundle(wheels: dict[str, Path]) -> None:
    assert [path.name for path in wheels.values()] == [
        "row_ops-0.1.0-py3-none-any.whl",
        "row_ops_sm90-0.1.0-py3-none-any.whl",
        "row_ops_sm100-0.1.0-py3-none-any.whl",
    ]
    assert bundles_in(wheels["library"]) == {}
    for name, (arch, _, _) in GPUS.items():
        ((place, data),) = bundles_in(wheels[name]).items()
        assert place == f"row_ops_{name}/kernels.pallasc"
        with open_bundle(data) as bundle:
            assert {entry.arch for entry in bundle.entries()} == {arch}


@pytest.mark.parametrize("name", list(GPUS))
def test_a_library_launches_what_its_providers_bring(
    name: str, wheels: dict[str, Path], user: Environment, standin: Any
) -> None:
    arch, devices, model = GPUS[name]
    user.install(*wheels.values())
    check_launched(launch(user, standin, "row_ops", arch, devices), ["rms_norm"], model)


def test_without_the_provider_of_this_gpu_the_refusal_says_what_there_is(
    wheels: dict[str, Path], user: Environment, standin: Any
) -> None:
    user.install(wheels["library"], wheels["sm90"])
    arch, _, _ = GPUS["sm90"]
    done = run(user, standin, "row_ops", arch, devices="10.0")
    assert done.returncode != 0
    assert "sm_90a runs on exactly sm_90, and this GPU is sm_100" in done.stdout
    assert "row-ops-sm90" in done.stdout
    assert "provider" in done.stdout
