"""Tokamax with kernels from a wheel: its own functions launch them under `jit`, or do not.

All but the first test need Tokamax, which brings a quarter of a gigabyte and is not installed with
the other tools of the tests.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

import pytest
from environments import (
    EXAMPLES,
    NOT_SOURCES,
    PROGRAMS,
    Environment,
    linked_folders,
    make_environment,
    wheel_in,
)
from launching import run

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.compiler.toolchain.setup import prepare
from pallasc.compiler.workers.pool import find_ptx
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml

EXAMPLE = EXAMPLES / "tokamax"
SPECS = ("tokamax-h100.yaml", "tokamax-b200.yaml", "forward.yaml")


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


def called(user: Environment, standin: Any, devices: str, program: str, *words: Any) -> Any:
    """Run a program on such a GPU, with two devices for JAX; return what it prints."""
    flags = "--xla_force_host_platform_device_count=2"
    own = {"devices": devices, "program": program, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    done = run(user, standin, *map(str, words), **own)
    assert done.returncode == 0, done.stdout
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def report(built: Path, user_of_tokamax: Environment, standin: Any) -> Any:
    return called(user_of_tokamax, standin, "9.0", "tokamax_calls.py", built / "ptx.json")


def project_of(folder: Path) -> str:
    return (folder / "pyproject.toml").read_text()


def test_kernels_are_of_the_version_of_tokamax_that_the_wheel_asks_for() -> None:
    project = tomllib.loads(project_of(EXAMPLE))
    module = (EXAMPLE / "tokamax_prebuilt" / "imported.py").read_text()
    (version,) = re.findall(r'^COMPILED_FROM = "(.*)"$', module, re.M)
    assert f"tokamax=={version}" in project["build-system"]["requires"]
    assert f"tokamax=={version}" in project["project"]["dependencies"]


@pytest.mark.parametrize(
    ("what", "launches", "error"),
    [
        ("attention", 1, 0.01),
        ("gradient", 4, 0.05),
        ("masked gradient", 6, 0.05),
        ("gated", 1, 0.01),
        ("ragged", 3, 0.01),
        ("same: scale", 1, 0.01),
        ("same: precision", 1, 0.01),
        ("same: algorithm", 1, 0.01),
        ("in parts", 2, 0.01),
        ("sharded", 2, 0.01),
    ],
)
def test_under_jit_tokamax_launches_prebuilt_kernels_which_give_the_right_numbers(
    what: str, launches: int, error: float, report: Any
) -> None:
    found = report[what]
    assert (found["launches"], found["warnings"]) == (launches, [])
    assert found["error"] < error


def test_calls_that_differ_in_anything_are_left_to_tokamax(report: Any) -> None:
    other = {what for what in report if what.startswith("other: ") and "again" not in what}
    assert len(other) == 19
    for what in other:
        assert (what, report[what]["launches"], report[what]["error"]) == (what, 0, 0.0)
        (told,) = report[what]["warnings"]
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
    found = called(user_of_tokamax, standin, "10.0", *words)
    for what in ("attention", "gradient", "gated"):
        assert (found[what]["launches"], found[what]["error"]) == (0, 0.0)
    assert "sm_90a runs on exactly sm_90, and this GPU is" in found["attention"]["warnings"][0]
    assert found["ragged"]["launches"] > 0
    assert found["ragged"]["error"] < 0.01
