"""Kernels over several devices on the command line: built and shown, and not launched on GPUs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pallasc.cli.main import main

SPEC = """\
schema: 1
targets: [sm_90a]
kernels:
  - name: all_gather
    entry: jax.experimental.pallas.ops.gpu.all_gather_mgpu:all_gather
    args: {x: "bf16[256, 256]"}
    static: {axis_name: x, num_blocks: 8}
    mesh: {x: 4}
"""

REFUSED = "it runs on 4 devices together, which this runtime cannot launch"


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a spec with a mesh, and the store that it was built into."""
    folder = tmp_path_factory.mktemp("meshes")
    (folder / "kernels.yaml").write_text(SPEC)
    assert main(["build", str(folder / "kernels.yaml"), "--store", str(folder / "store")]) == 0
    return SimpleNamespace(spec=folder / "kernels.yaml", store=folder / "store")


def test_the_plan_says_what_a_launch_needs_to_know_of_its_peers(run: Any, gathered: Any) -> None:
    result = run("inspect", gathered.spec, "--store", gathered.store, "--plan")
    (listed,) = json.loads(run("list", gathered.spec, "--json").out)["variants"]
    assert listed["mesh"] == {"x": 4}
    lines = result.out.splitlines()
    assert lines[0] == "mesh: x=4 (4 devices, each with these buffers)"
    assert "      param 1: pointer to the table of peers" in lines
    (peers,) = [line.strip() for line in lines if line.strip().startswith("peers: ")]
    # Where XLA puts them differs: up to JAX 0.10 it copies the operand first.
    place = r"buffer \d(\+\d+)?"
    assert re.fullmatch(
        rf"peers: 24 words for 4 ranks of {place}, {place}, {place}, {place}; "
        rf"symmetric {place}, {place}; multicast",
        peers,
    )


@pytest.mark.parametrize("command", ["run", "bench"])
def test_a_launch_is_refused_in_one_sentence(
    gpu: Any, run: Any, gathered: Any, command: str
) -> None:
    result = run(command, gathered.spec, "--store", gathered.store)
    assert result.code != 0
    assert REFUSED in result.err
    assert len(result.err.splitlines()) <= 3
    assert (result.out, gpu.launches) == ("", [])


def test_a_bundle_carries_it_and_does_not_launch_it(
    gpu: Any, run: Any, gathered: Any, tmp_path: Path
) -> None:
    from pallasc.errors import SelectionError
    from pallasc.runtime.opening import open_bundle

    file = tmp_path / "kernels.pallasc"
    created = run("bundle", "create", gathered.spec, "-o", file, "--store", gathered.store)
    assert created.code == 0
    with open_bundle(file) as kernels, pytest.raises(SelectionError, match=REFUSED):
        kernels["all_gather"].preload()
    assert gpu.launches == []
