"""Library kernels end to end on the stand-in, with their references as the device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import standin as control

HERE = Path(__file__).parent
KERNELS = ("add", "add_bf16", "hopper_matmul", "jax_ragged_dot", "jax_hopper_mixed_type_matmul")
"""One for each type of arrays, with pointers and with tensor maps; test_emulated.py has all."""
EXECUTED = ("add", "hopper_matmul")


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Compile and run everything once; return the folder of artifacts and the report."""
    if reason := control.why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("numbers")
    return folder, _run("library.py", folder)


def _run(program: str, *arguments: Path | str) -> dict[str, Any]:
    """Run a program of programs/ with JAX on the CPU; return what it prints."""
    folders = map(str, (HERE, HERE / "programs"))
    path = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-P", HERE / "programs" / program, *arguments],
        env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


@pytest.mark.parametrize("name", KERNELS)
def test_the_numbers_are_right_from_numpy_jax_and_views(
    name: str, saved: tuple[Path, dict[str, Any]]
) -> None:
    assert saved[1][name] == {
        "numpy": True,
        "numpy into": True,
        "cuda array interface": True,
        "dlpack": True,
        "offsets": True,
        "jax inside jit": True,
        "jax outside jit": True,
    }


@pytest.mark.parametrize("name", EXECUTED)
def test_ptx_that_is_executed_gives_the_right_numbers_from_jax(
    name: str, saved: tuple[Path, dict[str, Any]]
) -> None:
    assert saved[1][f"{name}, executed"] == {"jax inside jit": True, "jax outside jit": True}


def test_the_numbers_are_right_from_torch(
    saved: tuple[Path, dict[str, Any]], torch_process: Any
) -> None:
    ways = ("call", "into", "view", "stream", "unchecked", "operator", "compiled", "graph")
    assert torch_process("library_torch.py", saved[0], devices="9.0") == {
        **{name: dict.fromkeys(ways, True) for name in KERNELS},
        **{f"{name}, executed": {"call": True, "into": True} for name in EXECUTED},
    }


@pytest.fixture(scope="module")
def steps() -> dict[str, Any]:
    """Compile and run functions with several steps."""
    if reason := control.why_not():
        pytest.skip(reason)
    return _run("steps.py")


@pytest.mark.parametrize("name", ["filled", "constant", "around", "in_place", "both"])
def test_plans_of_several_steps_give_the_right_numbers(name: str, steps: dict[str, Any]) -> None:
    assert steps[name]["right"]


def test_the_plans_have_steps_of_mosaic_and_of_xla(steps: dict[str, Any]) -> None:
    assert steps["filled"]["origins"] == ["xla", "mosaic"]
    assert steps["both"]["steps"] == ["launch", "launch"]
    assert steps["in_place"]["steps"] == ["copy", "launch", "launch"]
    assert steps["around"]["origins"] == ["mosaic", "xla", "mosaic", "xla"]
