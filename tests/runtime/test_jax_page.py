"""What docs/jax.md shows is true: its commands and programs run, on the stand-in driver."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import native_build
import page_programs
import pytest
import standin as control

from pallasc.cache.store import Store

PAGE = page_programs.DOCS / "jax.md"


def test_every_command_and_program_of_the_page_runs(tmp_path: Path, warm_store: Store) -> None:
    if reason := control.why_not():
        pytest.skip(reason)
    commands = list(page_programs.commands(PAGE))
    assert len(commands) == 6
    if importlib.util.find_spec("flatbuffers") is None:  # jax.export writes files with it
        commands = [command for command in commands if "from jax import export" not in command[-1]]
    blocks = page_programs.BLOCK.finditer(PAGE.read_text("utf-8"))
    (spec,) = (block["text"] for block in blocks if block["kind"] == "yaml")
    (tmp_path / "add.yaml").write_text(spec)
    shutil.copytree(warm_store.root, tmp_path / "store")
    given = {**control.environment(devices="9.0"), "PALLASC_NATIVE": str(native_build.build())}
    environment = page_programs.environment(given, tmp_path)
    page_programs.run(commands, tmp_path, environment)
