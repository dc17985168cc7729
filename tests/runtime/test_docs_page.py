"""Commands and programs of docs/runtime.md and docs/frameworks.md run, on the stand-in driver."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import page_programs
import pytest
import standin as control
import standin_torch as torch_control

from pallasc import errors
from pallasc.cache.store import Store

PAGE = page_programs.DOCS / "runtime.md"
FRAMEWORKS = page_programs.DOCS / "frameworks.md"


def _needs_torch(command: list[str]) -> bool:
    return "import torch\n" in command[-1]


def test_every_command_and_program_of_the_page_runs(tmp_path: Path, warm_store: Store) -> None:
    if reason := control.why_not():
        pytest.skip(reason)
    commands = [*page_programs.commands(PAGE)]
    assert len(commands) == 10
    shutil.copytree(warm_store.root, tmp_path / "store")
    page_programs.run(
        commands, tmp_path, page_programs.environment(control.environment(devices="9.0"), tmp_path)
    )


def test_every_program_with_torch_runs(tmp_path: Path) -> None:
    if reason := torch_control.why_not():
        pytest.skip(f"no CUDA tensors here: {reason}")
    programs = [command for command in page_programs.commands(FRAMEWORKS) if _needs_torch(command)]
    assert len(programs) == 2
    makes_bundle = [command for command in page_programs.commands(PAGE) if command[0] == "bash"]
    plain = page_programs.environment(control.environment(devices="9.0"), tmp_path)
    page_programs.run(makes_bundle, tmp_path, plain)
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    with_torch = torch_control.environment(libraries, devices="9.0")
    changed = {name: with_torch[name] for name in ("LD_LIBRARY_PATH", "LD_PRELOAD")}
    page_programs.run(programs, tmp_path, {**plain, **changed})


def test_every_error_of_the_runtime_is_on_the_page() -> None:
    text = PAGE.read_text("utf-8")
    named = set(re.findall(r"^\| `(\w+Error)` \|", text, re.MULTILINE))
    kinds = (errors.ArgumentError, errors.DeviceError, errors.CorruptError)
    own = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, kinds)
    }
    assert named == own
