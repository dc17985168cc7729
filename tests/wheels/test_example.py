"""The example's wheel, built from a fresh copy, launches kernels where there is no JAX."""

import re
import tomllib
import zipfile
from pathlib import Path
from typing import Any

from environments import EXAMPLES, Environment, bundles_in
from launching import check_launched, launch

from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.bundle.verify import verify

PLACE = "fused_ops/kernels.pallasc"
KERNELS = ["add_rms_norm", "bias_gelu", "linear_gelu"]


def test_the_wheel_launches_every_kernel_where_there_is_no_jax(
    example_wheel: Path, user: Environment, standin: Any
) -> None:
    user.install(example_wheel)
    check_launched(launch(user, standin, "fused_ops", "sm_90a", "9.0"), KERNELS, "h100-sxm")


def test_a_spec_that_imports_jax_says_what_to_install_where_there_is_no_jax(
    user: Environment, tmp_path: Path
) -> None:
    (tmp_path / "spec.py").write_text("import pallasc\nimport jax.numpy as jnp\n")
    built = user.run("-P", "-m", "pallasc", "build", "spec.py", cwd=tmp_path)
    assert built.returncode == 4
    assert built.stdout.endswith(  # a slow machine says that it reads the spec
        "error: spec.py:2: No CUDA plugin for JAX is installed, so nothing can be compiled.\n"
        '  Install it with: pip install "pallasc[cuda13]"\n'
    )


def test_the_wheel_is_pure_and_has_the_whole_bundle_and_no_sources_of_kernels(
    example_wheel: Path,
) -> None:
    assert example_wheel.name == "fused_ops-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(example_wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == {"fused_ops/__init__.py", PLACE}
    (data,) = bundles_in(example_wheel).values()
    with open_bundle(data) as bundle:
        verify(bundle)
        assert len(bundle) == 12


def test_kernels_for_tokamax_are_of_the_version_that_the_wheel_asks_for() -> None:
    folder = EXAMPLES / "tokamax"
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    module = (folder / "tokamax_prebuilt" / "imported.py").read_text()
    (version,) = re.findall(r'^COMPILED_FROM = "(.*)"$', module, re.MULTILINE)
    assert f"tokamax=={version}" in project["build-system"]["requires"]
    assert f"tokamax=={version}" in project["project"]["dependencies"]
