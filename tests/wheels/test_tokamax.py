"""Tokamax with kernels from a wheel: its own functions launch them under `jit`, or do not.

All but the first test need Tokamax, which brings a quarter of a gigabyte and is not installed with
the other tools of the tests.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sysconfig
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from environments import (
    EXAMPLES,
    NOT_SOURCES,
    PROGRAMS,
    ROOT,
    Environment,
    linked_folders,
    make_environment,
    wheel_in,
)

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.compiler.toolchain.setup import prepare
from pallasc.compiler.workers.pool import find_ptx
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml

EXAMPLE = EXAMPLES / "tokamax"
SPECS = ("tokamax-h100.yaml", "tokamax-b200.yaml", "forward.yaml")
OTHER = (
    "scale", "mask", "window", "lengths", "soft cap", "precision", "bias", "array mask",
    "both masks", "shape", "dtype", "vmap", "activation, none", "activation, other",
    "activation, lambda", "activation, named", "result", "activation of products",
    "version",
)  # fmt: skip
"""What is changed in calls that prebuilt kernels would give wrong results for."""


def ptx_of(folder: Path, store: Store) -> dict[str, str]:
    """Return the PTX of what specs were compiled to, by the digests of the cubins."""
    specs = [spec for file in SPECS for spec in load_yaml(folder / file)]
    report = build(expand(specs), store=store, options=Options(jobs=1))
    compiled = [(result.variant, result.artifact) for result in report.results]
    assert all(artifact is not None for _, artifact in compiled)
    with prepare() as setup:
        of_xla = find_ptx(compiled, setup, store)
    texts = {cubin: text for found in of_xla for cubin, text in dict(found).items()}
    for _, artifact in compiled:
        for kernel in artifact.kernels:
            if kernel.ptx is not None:
                texts[kernel.cubin] = artifact.blob(kernel.ptx).decode()
    return texts


@pytest.fixture(scope="module")
def tokamax() -> None:
    if importlib.util.find_spec("tokamax") is None:
        pytest.skip("Tokamax is not installed")


@pytest.fixture(scope="module")
def built(tokamax: None, tmp_path_factory: pytest.TempPathFactory, builder: Environment) -> Path:
    """Build the example with calls that can be executed here; give the folder of it all."""
    folder = tmp_path_factory.mktemp("tokamax")
    clone = shutil.copytree(EXAMPLE, folder / "clone", ignore=NOT_SOURCES)
    builder.succeed("-P", PROGRAMS / "tokamax_tables.py", folder / "tables", cwd=folder)
    builder.succeed("-P", "import_tables.py", "--from", folder / "tables", cwd=clone)
    text, replaced = re.subn("^select = .*$", "keep-debug = true", project_of(clone), flags=re.M)
    assert replaced == 1
    # The PTX is known by cubins as they were compiled.
    (clone / "pyproject.toml").write_text(text)
    done = builder.build(clone, folder / "dist", "--wheel")
    assert done.returncode == 0, done.stdout
    store = Store(Path(builder.variables["PALLASC_CACHE_DIR"]))
    (folder / "ptx.json").write_text(json.dumps(ptx_of(clone / "kernels", store)))
    return folder


@pytest.fixture(scope="module")
def user_of_tokamax(built: Path, builder: Environment) -> Environment:
    """Give an environment with JAX and Tokamax, into which the wheel was installed."""
    made = make_environment(built / "user", built / "store")
    folders = [builder.packages, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    lines = dict.fromkeys(map(str, [*folders, *sorted(linked_folders())]))
    (made.packages / "builder.pth").write_text("".join(f"{line}\n" for line in lines))
    made.install(wheel_in(built / "dist"))
    return made


def run(user: Environment, standin: Any, devices: str, program: str, *words: str | Path) -> Any:
    """Run a program on such a GPU; return what it prints."""
    runtime = ROOT / "tests" / "runtime"
    path = os.pathsep.join([str(runtime), str(runtime / "programs")])
    driver = standin.environment(devices=devices)
    steering = {k: v for k, v in driver.items() if k.startswith(("STANDIN_", "LD_"))}
    two = "--xla_force_host_platform_device_count=2"
    places = {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": two}
    command = ["-P", PROGRAMS / program, *words]
    printed = user.succeed(*command, cwd=user.folder, **places, **steering)
    return json.loads(printed.splitlines()[-1])


@pytest.fixture(scope="module")
def report(built: Path, user_of_tokamax: Environment, standin: Any) -> Any:
    return run(user_of_tokamax, standin, "9.0", "tokamax_calls.py", built / "ptx.json")


def project_of(folder: Path) -> str:
    return (folder / "pyproject.toml").read_text()


def test_kernels_are_of_the_version_of_tokamax_that_the_wheel_asks_for() -> None:
    project = tomllib.loads(project_of(EXAMPLE))
    module = (EXAMPLE / "tokamax_prebuilt" / "imported.py").read_text()
    (version,) = re.findall(r'^COMPILED_FROM = "(.*)"$', module, re.M)
    assert f"tokamax=={version}" in project["build-system"]["requires"]
    assert f"tokamax=={version}" in project["project"]["dependencies"]


@pytest.fixture(scope="module")
def whole(built: Path, builder: Environment) -> Path:
    """Give a copy of the example with what is imported from the Tokamax that is installed."""
    clone = shutil.copytree(EXAMPLE, built / "whole", ignore=NOT_SOURCES)
    builder.succeed("-P", "import_tables.py", cwd=clone)
    listed = builder.succeed("-P", "-m", "pallasc", "list", "kernels", "--json", cwd=clone)
    (clone / "list.json").write_text(listed)
    return clone


def test_by_default_a_few_of_the_calls_that_tokamax_has_tuned_are_compiled(
    whole: Path, builder: Environment
) -> None:
    project = tomllib.loads(project_of(whole))
    (bundle,) = project["tool"]["pallasc"]["bundles"].values()
    words = ["-m", "pallasc", "list", "kernels", "--json", "-k", bundle["select"]]
    few = json.loads(builder.succeed("-P", *words, cwd=whole))
    assert Counter((one["name"], one["target"]) for one in few["variants"]) == {
        ("attention", "h100-sxm"): 2,
        ("attention_vjp", "h100-sxm"): 1,
        ("gated_linear_unit", "h100-sxm"): 2,
        ("gated_linear_unit", "a100-sxm-40gb"): 2,
        ("ragged_dot", "h100-sxm"): 8,
        ("ragged_dot", "b200"): 6,
    }


def test_the_python_of_the_readme_runs_as_it_stands_and_launches_prebuilt_kernels(
    user_of_tokamax: Environment, standin: Any
) -> None:
    found = run(user_of_tokamax, standin, "9.0", "tokamax_page.py", EXAMPLE / "README.md")
    assert found["blocks"] == [
        {"launches": 4, "warnings": []},
        {"launches": 1, "warnings": []},
    ]
    arrays = [[8, 2048, 16, 128]]
    assert (found["value"], found["gradients"], found["y"]) == ([[]], 3 * arrays, arrays)


def test_the_key_of_every_kernel_is_that_of_the_call_that_its_spec_makes(
    whole: Path, builder: Environment
) -> None:
    program = PROGRAMS / "tokamax_keys.py"
    printed = builder.succeed("-P", program, "list.json", cwd=whole, JAX_PLATFORMS="cpu")
    assert json.loads(printed.splitlines()[-1]) == {"same": 800, "other": []}


@pytest.mark.parametrize(
    ("what", "launches", "error"),
    [
        ("attention", 1, 0.01),
        ("gradient", 4, 0.05),
        ("masked gradient", 6, 0.05),
        ("gated", 1, 0.01),
        ("ragged", 3, 0.01),
    ],
)
def test_under_jit_tokamax_launches_prebuilt_kernels_which_give_the_right_numbers(
    what: str, launches: int, error: float, report: Any
) -> None:
    found = report[what]
    assert (found["launches"], found["warnings"]) == (launches, [])
    assert found["error"] < error


@pytest.mark.parametrize("what", ["scale", "precision", "algorithm"])
def test_a_call_that_says_the_same_in_other_words_has_the_kernel(what: str, report: Any) -> None:
    assert report[f"same: {what}"]["launches"] == 1


@pytest.mark.parametrize("what", ["in parts", "sharded"])
def test_on_several_devices_each_launches_the_kernel_for_its_part(what: str, report: Any) -> None:
    found = report[what]
    assert (found["launches"], found["warnings"]) == (2, [])
    assert found["error"] < 0.01


@pytest.mark.parametrize("what", OTHER)
def test_a_call_that_differs_in_anything_is_left_to_tokamax(what: str, report: Any) -> None:
    found = report[f"other: {what}"]
    assert (found["launches"], found["error"]) == (0, 0.0)
    (told,) = found["warnings"]
    assert told.startswith("a call is left to Tokamax: ")


def test_the_warning_says_why_and_of_what_once(report: Any) -> None:
    (told,) = report["other: scale"]["warnings"]
    start = "a call is left to Tokamax: no kernel was compiled for it. It is attention("
    assert told.startswith(f"{start}q=bf16[1, 128, 2, 64], k=bf16[1, 128, 1, 64], ")
    assert "logits_scale=0.25" in told
    assert report["other: scale, again"]["warnings"] == []
    (told,) = report["other: activation, named"]["warnings"]
    assert "is neither data nor a function that can be imported." in told
    (told,) = report["other: vmap"]["warnings"]
    assert "jax.vmap makes 2 of it." in told
    (told,) = report["other: version"]["warnings"]
    assert "kernels are of Tokamax 0.0.17, and this is 0.0.1. It is attention(" in told


def test_on_another_gpu_what_was_not_compiled_for_it_is_left_to_tokamax(
    built: Path, user_of_tokamax: Environment, standin: Any
) -> None:
    words = ["tokamax_calls.py", built / "ptx.json", "few"]
    found = run(user_of_tokamax, standin, "10.0", *words)
    for what in ("attention", "gradient", "gated"):
        assert (found[what]["launches"], found[what]["error"]) == (0, 0.0)
    assert "sm_90a runs on exactly sm_90, and this GPU is" in found["attention"]["warnings"][0]
    assert found["ragged"]["launches"] > 0
    assert found["ragged"]["error"] < 0.01
