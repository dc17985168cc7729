"""What decides nothing: neither key changes, and the manifest still fits."""

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

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
            path.chmod(0o400)


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


def add(name: str, text: str = "") -> Change:
    return lambda world: world.add(name, text)


KEEPS: dict[str, Change] = {
    # Where things lie, and when they were written.
    "another folder": other_folder,
    "through a link": through_a_link,
    "all of it copied": lambda w: None,
    "current folder": elsewhere,
    "times and modes of files": touched,
    "files become links": links,
    "name of the spec's file": lambda w: setattr(w, "name", "kernels.yml"),
    # How the spec is written.
    "order of YAML's keys": order_of_keys,
    "order of kernels": lambda w: w.spec["kernels"].reverse(),
    "another kernel": lambda w: w.spec["kernels"].append({**w.kernel, "name": "third"}),
    "name of the kernel": field("name", "renamed"),
    "budget": field("budget", {"registers": 32, "spill_bytes": 0}),
    "tolerance": field("tolerance", {"rtol": 0.5, "atol": 1}),
    "check": field("check", {"$seed": 3}),
    "reference": lambda w: w.kernel.pop("reference"),
    "order of arrays by name": lambda w: w.kernel.update(args=turned(w.kernel["args"])),
    "spaces in an array": lambda w: w.kernel["args"].update(x="f32[8,128]"),
    "a path written the long way": field("files", ["./parts/../table.txt"]),
    "a parameter for a number": parameter,
    "target of the kernel": own_target,
    "figures that a model has anyway": spelled_out,
    # What lies beside.
    "an unrelated file": add("specs/README.md", "Read me.\n"),
    "a file of another kernel": lambda w: w.replace("specs/unrelated.py", "x\n", "x + x\n"),
    "a submodule that is not used": lambda w: w.flip("specs/grouped/unused.py"),
    "a plain folder named like a package": add("specs/thirdparty/notes.txt"),
    "a file that no pattern finds": add("specs/parts2/two.part"),
    "bytecode": bytecode,
    "an unrelated package": add("site/bystander/more.py", "ONE = 1\n"),
    "how a package was installed": add("site/thirdparty-1.0.dist-info/INSTALLER", "uv\n"),
    "tests of numpy": add("site/numpy/tests/test_core.py", "ONE = 1\n"),
    "headers of jaxlib": add("tools/jaxlib/include/header.h", "int one;\n"),
    "stubs of jax": add("tools/jax/__init__.pyi", "ONE: int\n"),
    # What pallasc knows of GPUs.
    "a row for another architecture": lambda w: w.set_row(
        (13, 0), {"name": "sm_130a", "driver": (13, 0), "reserved_smem_bytes": 4096}),
    "another value in the row of another architecture": lambda w: w.set_row(
        (10, 0), {"features": frozenset()}),
    "blocks that a multiprocessor holds": lambda w: w.set_row((9, 0), {"blocks_per_sm": 16}),
    # Who builds, and in which surroundings.
    "user, locale and surroundings": with_variables(
        HOME="/home/other", USER="other", LC_ALL="tr_TR.UTF-8", TMPDIR="/var/tmp",
        PYTHONHASHSEED="77", PYTHONOPTIMIZE="2", OMP_NUM_THREADS="7", CI="true",
        PALLASC_CACHE_DIR="/store", CUDA_HOME="/usr/local/cuda", PATH="/usr/local/cuda/bin:/bin"),
    "what another project declares": add("site/pyproject.toml", "[tool.pallasc]\nenv=['USER']\n"),
    "what the project declares twice": add(
        "specs/pyproject.toml", "[tool.pallasc]\nenv = ['KERNEL_TILE']\n"),
    "what JAX sets itself": with_variables(
        MOSAIC_GPU_CUDA_ROOT="/opt/cuda", TF_CPP_MIN_LOG_LEVEL="3", JAX_PLATFORMS="cuda",
        TPU_SKIP_MDS_QUERY="1", MOSAIC_GPU_NVSHMEM_BC_PATH="/opt/nvshmem.bc"),
    **{
        f"pallasc's {module}": flip_own(module)
        for module in (
            "compiler/workers/pool.py", "compiler/inputs/lookup.py", "specs/loading/matrix.py",
            "specs/library/elementwise.py", "cli/build.py", "errors.py",
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", KEEPS)
def test_this_changes_nothing(world: Any, baseline: Any, name: str) -> None:
    KEEPS[name](world)
    assert world.ask(baseline.manifest) == baseline.answers


def test_all_of_it_at_once_changes_nothing(world: Any, baseline: Any) -> None:
    for name in ("order of YAML's keys", "bytecode", "times and modes of files",
                 "user, locale and surroundings", "another folder"):  # fmt: skip
        KEEPS[name](world)
    assert world.ask(baseline.manifest) == baseline.answers
