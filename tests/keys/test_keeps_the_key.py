"""What decides nothing: neither key changes, and the manifest still fits."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from pallasc.compiler.toolchain import identity

Change = Callable[[Any], object]


def turned(value: Any) -> Any:
    """Return data with the keys of all mappings in the opposite order."""
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    return [turned(item) for item in value] if isinstance(value, list) else value


def flip_own(module: str) -> Change:
    return lambda world: world.flip_own(module)


def order_of_keys(world: Any) -> None:
    world.text = json.dumps(turned(world.spec))


def block_style(world: Any) -> None:
    world.text = "# A comment.\n" + yaml.safe_dump(world.spec, default_flow_style=False)


def order_of_kernels(world: Any) -> None:
    world.spec["kernels"].reverse()


def another_kernel(world: Any) -> None:
    world.spec["kernels"].append({**world.kernel, "name": "third"})


def kernel_alone(world: Any) -> None:
    world.spec["kernels"].pop()


def other_folder(world: Any) -> None:
    moved = world.root / "a folder" / "elsewhere ü"
    moved.parent.mkdir()
    world.project.rename(moved)
    world.project = moved


def through_a_link(world: Any) -> None:
    link = world.root / "link"
    link.symlink_to(world.project)
    world.project = link


def parameter(world: Any) -> None:
    world.kernel["args"]["x"] = "f32[{m}, 128]"
    world.kernel["matrix"] = {"m": [8]}


def parameter_of_a_table(world: Any) -> None:
    rows = [{"m": m, "config": {"tile": 64}, "note": "any"} for m in (8, 16)]
    world.add("specs/tuned/rows.json", json.dumps(rows))
    table = {"path": "tuned/rows.json", "where": {"m": 8}, "select": {"m": "m", "c": "config"}}
    world.kernel["args"]["x"] = "f32[{m}, 128]"
    world.kernel["static"]["config"]["tile"] = "{c.tile}"
    world.kernel["matrix"] = {"$file": table}


def named_mapping(world: Any) -> None:
    world.kernel["args"]["x"] = "f32[{tiles.m}, 128]"
    world.kernel["matrix"] = {"tiles": [{"$name": "small", "m": 8}]}


def template_of_an_entry_point(world: Any) -> None:
    world.kernel["static"]["turn"] = {"$ref": "turns.py:{turn}"}
    world.kernel["static"]["config"]["$call"] = "{file}.py:Config"
    world.kernel["matrix"] = {"turn": ["same"], "file": ["made"]}


def own_target(world: Any) -> None:
    world.kernel["targets"] = world.spec["targets"]
    world.spec["targets"] = ["a100-sxm"]
    world.spec["kernels"].pop()


def spelled_out(world: Any) -> None:
    # A model that gives the figures which it would have had anyway.
    world.target.update({"sm_count": 132, "clock_ghz": 1.98, "arch": "sm_90a"})


def field(name: str, value: object) -> Change:
    return lambda world: world.kernel.update({name: value})


def elsewhere(world: Any) -> None:
    folder = world.root / "current"
    folder.mkdir()
    world.patch.chdir(folder)


def touched(world: Any) -> None:
    for path in world.root.rglob("*"):
        if path.is_file():
            os.utime(path, ns=(1, 1))


def modes(world: Any) -> None:
    for path in world.root.rglob("*"):
        if path.is_file():
            path.chmod(0o400)


def written_again(world: Any) -> None:
    for path in sorted(world.root.rglob("*"), reverse=True):
        if path.is_file():
            data = path.read_bytes()
            path.unlink()
            path.write_bytes(data)


def links(world: Any) -> None:
    for name in ("specs/helper.py", "site/thirdparty/core.py", "tools/jax/_src/lax.py"):
        path = world.root / name
        kept = world.root / "kept" / name
        kept.parent.mkdir(parents=True)
        path.rename(kept)
        path.symlink_to(kept)


def bytecode(world: Any) -> None:
    for name in ("specs", "specs/grouped", "site/thirdparty", "site/numpy", "tools/jax"):
        world.add(f"{name}/__pycache__/__init__.cpython-39.pyc", "code")
    world.add("site/thirdparty/core.pyc", "code beside its source")
    world.add("tools/jax/__init__.pyc", "code beside its source")


def with_variables(**variables: str) -> Change:
    def change(world: Any) -> None:
        for name, value in variables.items():
            world.setenv(name, value)

    return change


def no_library(world: Any) -> None:
    world.add("libraries/libpython3.12.so.1.0", "Python itself")
    world.add("libraries/libmine.so", "a library")
    world.setenv("LD_LIBRARY_PATH", f"{world.root / 'libraries'}:/no/such/folder")


def pth_files(world: Any) -> None:
    folder = world.root / "python-site"
    folder.mkdir()
    (folder / "paths.pth").write_text("/some/folder\n# import nothing\n")
    (folder / "__editable__.mine-1.0.pth").write_text("import __editable___mine_1_0_finder; x()\n")
    folders = [*identity.site.getsitepackages(), str(folder)]
    world.patch.setattr(identity.site, "getsitepackages", lambda: folders)


def limits(world: Any) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    world.undo.append(lambda: resource.setrlimit(resource.RLIMIT_STACK, (soft, hard)))
    resource.setrlimit(resource.RLIMIT_STACK, (4 << 20, hard))


def umask(world: Any) -> None:
    before = os.umask(0o077)
    world.undo.append(lambda: os.umask(before))
    written_again(world)


def one_core(world: Any) -> None:
    before = os.sched_getaffinity(0)
    world.undo.append(lambda: os.sched_setaffinity(0, before))
    os.sched_setaffinity(0, {min(before)})


def add(name: str, text: str = "") -> Change:
    return lambda world: world.add(name, text)


KEEPS: dict[str, Change] = {
    # Where things lie, and when they were written.
    "another folder": other_folder,
    "through a link": through_a_link,
    "all of it copied": lambda w: None,
    "current folder": elsewhere,
    "times of files": touched,
    "modes of files": modes,
    "files written again": written_again,
    "files become links": links,
    "umask": umask,
    "name of the spec's file": lambda w: setattr(w, "name", "kernels.yml"),
    # How the spec is written.
    "order of YAML's keys": order_of_keys,
    "style of YAML": block_style,
    "order of kernels": order_of_kernels,
    "another kernel": another_kernel,
    "one kernel less": kernel_alone,
    "name of the kernel": field("name", "renamed"),
    "budget": field("budget", {"registers": 32, "spill_bytes": 0}),
    "tolerance": field("tolerance", {"rtol": 0.5, "atol": 1}),
    "check": field("check", {"$seed": 3, "$tolerance": {"atol": 1.0}}),
    "reference": lambda w: w.kernel.pop("reference"),
    "order of arrays by name": lambda w: w.kernel.update(args=turned(w.kernel["args"])),
    "order of static arguments": lambda w: w.kernel.update(static=turned(w.static)),
    "spaces in an array": lambda w: w.kernel["args"].update(x="f32[8,128]"),
    "a path written the long way": field("files", ["./parts/../table.txt"]),
    "a parameter for a number": parameter,
    "a row of a file for numbers": parameter_of_a_table,
    "a field of a mapping for a number": named_mapping,
    "templates for entry points": template_of_an_entry_point,
    "target of the kernel": own_target,
    "figures that a model has anyway": spelled_out,
    # What lies beside.
    "an unrelated file": add("specs/README.md", "Read me.\n"),
    "a file of another kernel": lambda w: w.replace("specs/unrelated.py", "x\n", "x + x\n"),
    "a submodule that is not used": lambda w: w.flip("specs/grouped/unused.py"),
    "a new module that is not imported": add("specs/brand_new.py"),
    "a plain folder named like a package": add("specs/thirdparty/notes.txt"),
    "a plain folder named like a module of Python": add("specs/colorsys/notes.txt"),
    "a file that no pattern finds": add("specs/parts2/two.part"),
    "bytecode": bytecode,
    "an unrelated package": add("site/bystander/more.py", "ONE = 1\n"),
    "how a package was installed": add("site/thirdparty-1.0.dist-info/INSTALLER", "uv\n"),
    "tests of numpy": add("site/numpy/tests/test_core.py", "ONE = 1\n"),
    "headers of jaxlib": add("tools/jaxlib/include/header.h", "int one;\n"),
    "stubs of jax": add("tools/jax/__init__.pyi", "ONE: int\n"),
    ".pth files that only name folders": pth_files,
    # What pallasc knows of GPUs.
    "a row for another architecture": lambda w: w.set_row(
        (13, 0), {"name": "sm_130a", "driver": (13, 0), "reserved_smem_bytes": 4096}),
    "another value in the row of another architecture": lambda w: w.set_row(
        (10, 0), {"features": frozenset()}),
    "blocks that a multiprocessor holds": lambda w: w.set_row((9, 0), {"blocks_per_sm": 16}),
    # Who builds, and in which surroundings.
    "hash seed": with_variables(PYTHONHASHSEED="77"),
    "user": with_variables(HOME="/home/other", USER="other", LOGNAME="other", UID="1234"),
    "time zone": with_variables(TZ="Pacific/Auckland"),
    "locale": with_variables(LANG="de_DE.UTF-8", LC_ALL="tr_TR.UTF-8", LANGUAGE="de"),
    "terminal": with_variables(
        TERM="dumb", COLUMNS="40", LINES="7", COLORTERM="truecolor", NO_COLOR="1"),
    "shell": with_variables(SHELL="/bin/zsh", SHLVL="9", PWD="/", OLDPWD="/tmp", EDITOR="ed"),
    "temporary folder": with_variables(TMPDIR="/var/tmp", TEMP="/var/tmp", TMP="/var/tmp"),
    "where the store lies": with_variables(
        PALLASC_CACHE_DIR="/store", XDG_CACHE_HOME="/caches"),
    "JAX's own cache": with_variables(
        JAX_COMPILATION_CACHE_DIR="/c", JAX_ENABLE_COMPILATION_CACHE="false"),
    "continuous integration": with_variables(
        CI="true", GITHUB_ACTIONS="true", BUILD_ID="7", RUN_ID="8", _="/usr/bin/nice"),
    "the folder that it is started in": lambda w: w.patch.chdir(w.root),
    "arguments": lambda w: w.patch.setattr(sys, "argv", ["other", "--flag"]),
    "what another project declares": add("site/pyproject.toml", "[tool.pallasc]\nenv=['USER']\n"),
    "what the project declares twice": add(
        "specs/pyproject.toml", "[tool.pallasc]\nenv = ['KERNEL_TILE']\n"),
    "Terraform": with_variables(
        TF_VAR_region="eu", TF_CLI_CONFIG_FILE="/terraform.rc", TF_LOG="TRACE", TF_WORKSPACE="b"),
    "called by make": with_variables(MAKEFLAGS=" -j --jobserver-auth=3,4", MAKELEVEL="1"),
    "GPUs": with_variables(CUDA_VISIBLE_DEVICES="1", CUDA_LAUNCH_BLOCKING="1"),
    "a toolkit on the machine": with_variables(
        CUDA_HOME="/usr/local/cuda", CUDA_PATH="/opt/cuda", CUDA_ROOT="/opt/cuda"),
    "what JAX sets itself": with_variables(
        MOSAIC_GPU_CUDA_ROOT="/opt/cuda", TF_CPP_MIN_LOG_LEVEL="3", JAX_PLATFORMS="cuda",
        TPU_SKIP_MDS_QUERY="1", MOSAIC_GPU_NVSHMEM_BC_PATH="/opt/nvshmem.bc"),
    "threads": with_variables(OMP_NUM_THREADS="7", OPENBLAS_NUM_THREADS="7", NPROC="7"),
    "options of Python": with_variables(
        PYTHONOPTIMIZE="2", PYTHONWARNINGS="error", PYTHONDONTWRITEBYTECODE="1",
        PYTHONUNBUFFERED="1", PYTHONIOENCODING="latin-1"),
    "an environment of another name": with_variables(
        VIRTUAL_ENV="/venvs/other", CONDA_PREFIX="/conda"),
    "programs on PATH": with_variables(PATH="/usr/local/cuda/bin:/usr/bin:/bin"),
    "network": with_variables(https_proxy="http://proxy:3128", SSH_AUTH_SOCK="/tmp/agent"),
    "libraries that nothing here loads": no_library,
    "limits": limits,
    "number of cores": one_core,
    **{
        f"pallasc's {module}": flip_own(module)
        for module in (
            "compiler/workers/pool.py", "compiler/builds/bundling.py",
            "compiler/builds/report.py",
            "compiler/inputs/lookup.py", "specs/bundle/verify.py", "specs/loading/matrix.py",
            "specs/library/elementwise.py", "cli/build.py", "errors.py",
            "specs/gpus.py", "specs/spelling.py",
        )
    },
}  # fmt: skip


@pytest.fixture
def undone(world: Any) -> Iterator[Any]:
    """Return the world; what a case did to this process is undone after it."""
    world.undo = []
    yield world
    for step in reversed(world.undo):
        step()


@pytest.mark.parametrize("name", KEEPS)
def test_this_changes_nothing(undone: Any, baseline: Any, name: str) -> None:
    KEEPS[name](undone)
    assert undone.ask(baseline.manifest) == baseline.answers


def test_all_of_it_at_once_changes_nothing(undone: Any, baseline: Any) -> None:
    together = (
        "order of YAML's keys", "bytecode", "times of files", "hash seed", "user", "locale",
        "options of Python", "threads", "a toolkit on the machine", "another folder",
    )  # fmt: skip
    for name in together:
        KEEPS[name](undone)
    assert undone.ask(baseline.manifest) == baseline.answers
