"""Every single change that must be noticed, and by what.

* ``request``: the request key differs, and what was lowered says whether the action key does
* ``both``: the request key and the action key differ, though the same was lowered
* ``action``: the action key alone differs
* ``manifest``: the request key is the same, and the manifest it leads to no longer fits
* ``twice``: the request key differs, and a manifest under the old one would not fit either
"""

import shutil
import sys
from collections.abc import Callable
from typing import Any

import pytest

from pallasc.compiler.inputs import lookup as request
from pallasc.compiler.lowering import compile as compile_module
from pallasc.specs import canonical

Change = Callable[[Any], object]
CHANGES: dict[str, tuple[str, Change]] = {}


def add(kind: str, changes: dict[str, Change]) -> None:
    assert not CHANGES.keys() & changes.keys()
    CHANGES.update({name: (kind, change) for name, change in changes.items()})


def put(place: Callable[[Any], Any], *path: str, value: object) -> Change:
    """Return a change of one field of the spec."""

    def change(world: Any) -> None:
        inside = place(world)
        for name in path[:-1]:
            inside = inside[name]
        assert inside.get(path[-1]) != value or type(inside[path[-1]]) is not type(value)
        inside[path[-1]] = value

    return change


def kernel(world: Any) -> Any:
    return world.kernel


def static(world: Any) -> Any:
    return world.static


def target(world: Any) -> Any:
    return world.target


def as_of_world(name: str, value: object) -> Change:
    return lambda world: setattr(world, name, value)


# What is asked for: arrays, static arguments, entry point, data files.


def by_position(world: Any) -> None:
    world.kernel["args"] = list(world.kernel["args"].values())


def rename_argument(world: Any) -> None:
    world.kernel["args"]["z"] = world.kernel["args"].pop("y")


def through_module(world: Any) -> None:
    world.patch.syspath_prepend(world.site)
    world.kernel["entry"] = "thirdparty.kernels:run"


def moved_entry(world: Any) -> None:
    world.add("specs/kernels/kernel.py", (world.project / "kernel.py").read_text())
    world.kernel["entry"] = "kernels/kernel.py:run"


def copy_made(world: Any) -> None:
    shutil.copy(world.project / "made.py", world.project / "made_again.py")
    world.static["config"]["$call"] = "made_again.py:Config"


add("request", {
    "dtype": put(kernel, "args", "x", value="bf16[8, 128]"),
    "first dimension": put(kernel, "args", "x", value="f32[16, 128]"),
    "a dimension of one": put(kernel, "args", "x", value="f32[8, 128, 1]"),
    "an array becomes null": put(kernel, "args", "y", value=None),
    "an array becomes a list of one": put(kernel, "args", "y", value=["f32[8, 128]"]),
    "an array becomes a mapping of one": put(kernel, "args", "y", value={"a": "f32[8, 128]"}),
    "arrays by position": by_position,
    "an argument of another name": rename_argument,
    "a number becomes a fraction": put(static, "count", value=1.0),
    "a number becomes true": put(static, "count", value=True),
    "the last bit of a fraction": put(static, "factor", value=2.5000000000000004),
    "the sign of zero": put(static, "factor", value=-0.0),
    "order of a list": put(static, "nested", "sizes", value=[2, 1]),
    "an argument less": lambda w: w.static.pop("nested"),
    "an argument more": put(static, "more", value=0),
    "an argument of $call": put(static, "config", "tile", value=128),
    "target of $call": put(static, "config", "$call", value="made.py:Wider"),
    "file of $call": copy_made,
    "plain data for $call": put(static, "config", value={"tile": 64, "depth": 2}),
    "target of $ref": put(static, "turn", "$ref", value="turns.py:negated"),
    "$call for $ref": put(static, "turn", value={"$call": "turns.py:same", "x": 1}),
    "function of the entry point": put(kernel, "entry", value="kernel.py:other"),
    "a module for a file": through_module,
    "folder of the entry point": moved_entry,
    "a data file more": put(kernel, "files", value=["table.txt", "notes.txt"]),
    "a data file less": lambda w: w.kernel.pop("files"),
    "another data file": put(kernel, "files", value=["tuning.json"]),
})  # fmt: skip

add("twice", {
    "content of a declared data file": lambda w: w.flip("specs/table.txt"),
})  # fmt: skip


# The target: each figure reaches the compiler.


def rename_model(world: Any) -> None:
    world.spec["models"] = {"yours": world.target}
    world.spec["targets"] = ["yours"]


add("both", {
    "architecture": put(target, "arch", value="sm_100a"),
    "model that a model is like": put(target, "like", value="h200"),
    "name of the model": rename_model,
    "description of the model": put(target, "description", value="Another GPU"),
    "smem_optin_bytes": put(target, "smem_optin_bytes", value=232449),
    "memory_bandwidth_bytes_per_s": put(
        target, "memory_bandwidth_bytes_per_s", value=3_352_320_000_001),
    "clock_ghz": put(target, "clock_ghz", value=1.9800000000000002),
})  # fmt: skip


# What compiles, by content under unchanged versions.


def renamed_file_of_jax(world: Any) -> None:
    (world.tools / "jax/_src/lax.py").rename(world.tools / "jax/_src/lux.py")


def flip_own(module: str) -> Change:
    return lambda world: world.flip_own(module)


add("both", {
    "features of the architecture": lambda w: w.set_row((9, 0), {"features": frozenset({"tma"})}),
    "driver of the architecture": lambda w: w.set_row((9, 0), {"driver": (12, 8)}),
    "shared memory that the architecture reserves": lambda w: w.set_row(
        (9, 0), {"reserved_smem_bytes": 2048}),
    "PALLASC_PTXAS another file": as_of_world("ptxas", "other-ptxas"),
    "bytes of ptxas": lambda w: w.flip("tools/bin/ptxas"),
    "bytes of nvlink": lambda w: w.flip("tools/bin/nvlink"),
    "bytes of libdevice": lambda w: w.flip("tools/nvvm/libdevice/libdevice.10.bc"),
    "bytes of the plugin": lambda w: w.flip("tools/jax_plugins/xla_cuda13/xla_cuda_plugin.so"),
    "bytes of jaxlib": lambda w: w.flip("tools/jaxlib/libjax_common.so"),
    "bytes of jax": lambda w: w.flip("tools/jax/_src/lax.py"),
    "a file more in jax": lambda w: w.add("tools/jax/_src/new.py"),
    "a file of jax under another name": renamed_file_of_jax,
    "bytecode without a source in jax": lambda w: w.add("tools/jax/_src/fast.pyc", "code"),
    "bytes of llvmlite": lambda w: w.flip("site/llvmlite/__init__.py"),
    "bytes of protobuf": lambda w: w.add("site/google/protobuf/__init__.py", "ONE = 1\n"),
    "bytes of cramjam": lambda w: w.flip("site/cramjam/__init__.py"),
    "version of Python": lambda w: w.patch.setattr(sys, "version", "3.99.0 (main)"),
    "ABI of Python": lambda w: w.patch.setattr(sys, "abiflags", "d"),
    "sitecustomize": lambda w: w.add("site/sitecustomize.py", "import atexit\n"),
    "usercustomize": lambda w: w.add("site/usercustomize/__init__.py", "ONE = 1\n"),
    **{
        f"pallasc's {module}": flip_own(module)
        for module in (
            "compiler/lowering/lower.py", "specs/canonical.py",
        )
    },
    "version of keys": lambda w: w.patch.setattr(canonical, "KEY_SCHEMA", b"pallasc key 99\n"),
})  # fmt: skip

# What they do to a module is in the module.
add("request", {
    "bytes of numpy": lambda w: w.flip("site/numpy/core.so"),
    "bytes of numpy's libraries": lambda w: w.flip("site/numpy.libs/libopenblas.so"),
    "bytes of ml_dtypes": lambda w: w.flip("site/ml_dtypes/__init__.py"),
    "version of manifests": lambda w: w.patch.setattr(request, "MANIFEST_SCHEMA", 99),
})  # fmt: skip


# The environment.


def variable(name: str, value: str = "1") -> Change:
    return lambda world: world.setenv(name, value)


add("both", {
    "XLA_FLAGS": variable("XLA_FLAGS", "--xla_gpu_autotune_level=0"),
    "an empty XLA_FLAGS": variable("XLA_FLAGS", ""),
    "JAX_ENABLE_X64": variable("JAX_ENABLE_X64"),
    "a salt": variable("PALLASC_CACHE_SALT", "2026-03"),
})  # fmt: skip


add("request", {
    "a variable that the kernel declares": variable("KERNEL_TILE", "128"),
    "such a variable, empty": variable("KERNEL_TILE", ""),
    "one more that it declares": lambda w: w.kernel["env"].append("OTHER"),
    "one fewer": lambda w: w.kernel.pop("env"),
    "one that its project declares": lambda w: w.add(
        "pyproject.toml", "[tool.pallasc]\nenv = ['OTHER']\n"),
})  # fmt: skip


# What was read.


def replace(name: str, old: str, new: str) -> Change:
    return lambda world: world.replace(name, old, new)


def shadow(name: str) -> Change:
    return lambda world: world.add(f"specs/{name}")


def another_thirdparty(world: Any) -> None:
    shutil.copytree(world.site / "thirdparty", world.project / "thirdparty")
    world.add("specs/thirdparty/core.py", "ONE = 2\n")


add("manifest", {
    "body of the kernel": replace("specs/kernel.py", "y * scale", "y * scale * 2"),
    "a comment above the kernel": replace("specs/kernel.py", "def run", "# Fast.\ndef run"),
    "a helper": lambda w: w.flip("specs/helper.py"),
    "the helper of a helper": lambda w: w.flip("specs/second.py"),
    "a helper imported in the function": lambda w: w.flip("specs/lazy.py"),
    "a helper through importlib": lambda w: w.flip("specs/dynamic.py"),
    "a package": lambda w: w.add("specs/grouped/__init__.py", "ONE = 1\n"),
    "a submodule": lambda w: w.flip("specs/grouped/inner.py"),
    "file of a $call": lambda w: w.flip("specs/made.py"),
    "a helper of a $call": lambda w: w.flip("specs/made_of.py"),
    "file of a $ref": lambda w: w.flip("specs/turns.py"),
    "a helper is gone": lambda w: (w.project / "helper.py").unlink(),
    "a package hides a helper": shadow("helper/__init__.py"),
    "an installed package": lambda w: w.flip("site/thirdparty/core.py"),
    "an installed package's extension": lambda w: w.flip("site/thirdparty/_native.so"),
    "a library that a wheel brings": lambda w: w.flip("site/thirdparty.libs/libinner-1.so"),
    "bytecode without a source": lambda w: w.add("site/thirdparty/fast.pyc", "code"),
    "a file more in a package": lambda w: w.add("site/thirdparty/new.py"),
    "a package is gone": lambda w: shutil.rmtree(w.site / "thirdparty"),
    "a file hides a package": shadow("thirdparty.py"),
    "another package of the name": another_thirdparty,
    "a file hides a module of Python": shadow("colorsys.py"),
    "a package hides a module of Python": shadow("statistics/__init__.py"),
    "a missing module is installed": lambda w: w.add("site/optional_fast.py"),
    "a missing module beside the spec": shadow("optional_fast.py"),
    "a module that was looked for": lambda w: w.add("site/speedup/__init__.py"),
    "a submodule that was missing": shadow("grouped/faster.py"),
    "a file nobody declared": lambda w: w.flip("specs/tuning.json"),
    "such a file is gone": lambda w: (w.project / "tuning.json").unlink(),
    "a file that was not there": lambda w: w.add("specs/override.json", "{}"),
    "a file that a pattern found": lambda w: w.flip("specs/parts/one.part"),
    "one more for a pattern": lambda w: w.add("specs/parts/two.part", "2\n"),
})  # fmt: skip


# What was lowered.


def other_paths(world: Any) -> None:
    first, second = world.inputs
    world.inputs = (second, first)


add("action", {
    "one letter of the module": as_of_world("module", "module {} "),
    "names of the inputs": other_paths,
    "version of artifacts": lambda w: w.patch.setattr(compile_module, "ARTIFACT_SCHEMA", 99),
    "an input less": lambda w: setattr(w, "inputs", w.inputs[:1]),
})  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_this_change_is_noticed(world: Any, baseline: Any, name: str) -> None:
    kind, change = CHANGES[name]
    change(world)
    now, before = world.ask(baseline.manifest), baseline.answers
    assert (now.request != before.request) == (kind in ("request", "both", "twice"))
    assert bool(now.changed) == (kind in ("manifest", "twice")), now.changed
    assert (now.action != before.action) == (kind in ("both", "action"))
