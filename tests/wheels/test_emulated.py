"""From a spec to numbers: compiled, bundled, in a wheel, installed, chosen, launched, executed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from environments import ROOT, Environment, wheel_in
from launching import run

SPEC = ROOT / "tests" / "runtime" / "emulated.yaml"
HOPPER = ("add", "softmax", "row_sum", "hopper_matmul")
PROJECT = """
[build-system]
requires = ["setuptools>=77", "pallasc"]
build-backend = "setuptools.build_meta"

[project]
name = "row-math"
version = "0.1.0"

[tool.pallasc.bundles."row_math/kernels.pallasc"]
bundle = "kernels.pallasc"
"""
PACKAGE = """
import pallasc

def kernels():
    return pallasc.load(__name__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, builder: Environment) -> Path:
    """Build kernels of the library, and a wheel with their bundle, PTX included."""
    folder = tmp_path_factory.mktemp("emulated")
    (folder / "row_math").mkdir()
    (folder / "row_math" / "__init__.py").write_text(PACKAGE)
    (folder / "pyproject.toml").write_text(PROJECT)
    shutil.copy(SPEC, folder / "kernels.yaml")
    chosen = " or ".join(f"name={name}" for name in (*HOPPER, "blackwell_matmul"))
    create = ["-m", "pallasc", "bundle", "create", "kernels.yaml", "-k", chosen, "--keep-ptx"]
    builder.succeed("-P", *create, "-o", "kernels.pallasc", cwd=folder)
    done = builder.build(folder, folder / "dist", "--wheel")
    assert done.returncode == 0, done.stdout
    return wheel_in(folder / "dist")


@pytest.mark.parametrize(
    ("devices", "names", "model"),
    [("9.0", HOPPER, "h100-sxm"), ("10.0", ("blackwell_matmul",), "b200")],
)
def test_an_installed_wheel_gives_the_right_numbers(
    wheel: Path, user: Environment, standin: Any, devices: str, names: Any, model: str
) -> None:
    user.install(wheel)
    done = run(user, standin, "row_math", *names, devices=devices, program="execute.py")
    assert done.returncode == 0, done.stdout
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.keys() == set(names)
    for name, variants in found.items():
        # Both dtypes of `add` are chosen by those of the arrays.
        assert len(variants) == (2 if name == "add" else 1)
        for each in variants:
            assert each["id"].endswith(f"@{model}")
            assert each["launches"] == 1
            assert each["error"] < (1e-4 if name in ("softmax", "row_sum") else 0.1), each
