"""Commands and programs of the documentation run, on the stand-in driver.

tests/test_docs.py runs the commands of other pages, native/test_page.py those of docs/native.md.
"""

import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import made
import native_build
import page_programs
import pytest
import standin as control
import standin_torch as torch_control
from page_programs import DOCS
from processes import captured

from pallasc import errors
from pallasc.cache.store import Store
from pallasc.runtime.matching import arrays
from pallasc.runtime.matching.arrays import Adapter

HERE = Path(__file__).parent
ON_CPU = "import host_jax; host_jax.register()\n"
RUNTIME, FRAMEWORKS, JAX = (DOCS / f"{name}.md" for name in ("runtime", "frameworks", "jax"))


@pytest.fixture
def environment(tmp_path: Path, warm_store: Store) -> dict[str, str]:
    """Give the environment of the commands; their store is warm."""
    if reason := control.why_not():
        pytest.skip(reason)
    shutil.copytree(warm_store.root, tmp_path / "store")
    given = {**control.environment(devices="9.0"), "PALLASC_NATIVE": str(native_build.build())}
    return page_programs.environment(given, tmp_path)


def test_every_command_and_program_about_the_runtime_runs(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    commands = [*page_programs.commands(RUNTIME)]
    assert len(commands) == 10
    page_programs.run(commands, tmp_path, environment)


def test_every_command_and_program_about_jax_runs(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    commands = [*page_programs.commands(JAX)]
    assert len(commands) == 6
    if importlib.util.find_spec("flatbuffers") is None:  # jax.export writes files with it
        commands = [command for command in commands if "from jax import export" not in command[-1]]
    (spec,) = page_programs.blocks(JAX, "yaml")
    (tmp_path / "add.yaml").write_text(spec)
    for command in commands:
        if command[-2] == "-c" and "import jax" in command[-1]:  # there is no GPU here
            command[-1] = ON_CPU + command[-1].replace('platforms=["cuda"]', 'platforms=["cpu"]')
    page_programs.run(commands, tmp_path, {**environment, "PYTHONPATH": str(HERE)})


def test_every_program_with_torch_runs(tmp_path: Path, environment: dict[str, str]) -> None:
    if reason := torch_control.why_not():
        pytest.skip(f"no CUDA tensors here: {reason}")
    programs = [one for one in page_programs.commands(FRAMEWORKS) if "import torch\n" in one[-1]]
    assert len(programs) == 2
    makes_bundle = [one for one in page_programs.commands(RUNTIME) if one[0] == "bash"]
    page_programs.run(makes_bundle, tmp_path, environment)
    (tmp_path / "libraries").mkdir()
    with_torch = torch_control.environment(tmp_path / "libraries", devices="9.0")
    changed = {name: with_torch[name] for name in ("LD_LIBRARY_PATH", "LD_PRELOAD")}
    page_programs.run(programs, tmp_path, {**environment, **changed})


def test_the_program_of_the_tutorial_launches_its_kernel(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    for block in page_programs.BLOCK.finditer((DOCS / "tutorial.md").read_text("utf-8")):
        if named := re.match(r"# ([\w./-]+)\n", block["text"]):
            file = tmp_path / named[1]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block["text"])
    bundle = "pallasc bundle create kernels --target h100-sxm -o src/gated/kernels.pallasc"
    page_programs.run([["bash", "-c", bundle]], tmp_path, environment)
    program = f"{ON_CPU}import runpy; runpy.run_path('use.py', run_name='__main__')"
    paths = os.pathsep.join(["src", str(HERE)])
    done = captured(
        [sys.executable, "-c", program], cwd=tmp_path, env={**environment, "PYTHONPATH": paths}
    )
    assert re.match(r"with_jax [-\d.e]+\nwith_torch ", done.stdout), done.stdout + done.stderr


def test_every_error_of_the_runtime_is_on_the_page() -> None:
    named = set(re.findall(r"^\| `(\w+Error)` \|", RUNTIME.read_text("utf-8"), re.MULTILINE))
    kinds = (errors.ArgumentError, errors.DeviceError, errors.CorruptError)
    classes = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
    assert named == {name for name, kind in classes.items() if issubclass(kind, kinds)}


class Array:
    """What a made-up framework has: memory of the stand-in under attributes of its own."""

    __module__ = "toybox.core"

    def __init__(self, tensor: made.Tensor) -> None:
        self.tensor = tensor
        self.address, self.dtype, self.shape = tensor.pointer, tensor.dtype, tensor.shape
        self.gpu, self.is_contiguous = tensor.device_number, True


def test_a_framework_that_follows_the_page_is_one_whose_arrays_kernels_take_and_give(
    adds: Any, framework: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    toybox: Any = ModuleType("toybox")
    toybox.current_stream = lambda device: framework.current_stream
    toybox.empty = lambda shape, dtype, device, stream: Array(framework.empty(shape, dtype, device))
    (source,) = (
        text for text in page_programs.blocks(FRAMEWORKS, "python") if "Arrays of toybox" in text
    )
    adapter = ModuleType("pallasc.runtime.adapters.toybox_arrays")
    exec(compile(source, str(FRAMEWORKS), "exec"), adapter.__dict__)
    monkeypatch.setitem(sys.modules, "toybox", toybox)
    monkeypatch.setitem(sys.modules, adapter.__name__, adapter)
    monkeypatch.setitem(arrays.MODULES, "toybox", "toybox_arrays.ToyboxAdapter")
    monkeypatch.setattr(arrays, "_by_type", {})
    arrays._adapter.cache_clear()
    a, b = (framework.tensor("f32[4, 64]", values=value) for value in (2.0, 3.0))
    for _ in range(3):
        result = adds(Array(a), Array(b))
        assert type(result) is Array
        assert (result.tensor.numpy() == 5).all()
    public = {name for name in vars(Adapter) if not name.startswith("_")}
    named = set(re.findall(r"`(\w+)[(`]", FRAMEWORKS.read_text()))
    assert public | {"name"} <= named
