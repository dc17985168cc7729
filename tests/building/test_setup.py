"""Getting ready to compile."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pallasc.cache.store import Store
from pallasc.compiler.toolchain.setup import prepare
from pallasc.compiler.workers.messages import Introduction
from pallasc.errors import ToolError


def test_the_wheels_assembler_or_a_named_one_comes_first_on_the_workers_path(
    tmp_path: Path,
) -> None:
    with prepare() as setup:
        first = Path(setup.environment["PATH"].split(os.pathsep)[0])
        assert (first / "ptxas").samefile(setup.toolchain.ptxas)
        assert setup.environment["JAX_PLATFORMS"] == "cpu"
        named = tmp_path / "my-ptxas"
        shutil.copyfile(setup.toolchain.ptxas, named)
    with prepare(named) as setup:
        first = Path(setup.environment["PATH"].split(os.pathsep)[0])
        assert (first / "ptxas").samefile(named)
        assert (first / "nvlink").samefile(setup.toolchain.nvlink)
    assert not first.exists()
    with pytest.raises(ToolError, match="There is no assembler"):
        prepare(tmp_path / "none")


def test_what_jax_sets_itself_is_in_no_key(
    warm_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=0")
    with prepare() as setup:
        before = setup.context(warm_store).variables
    assert before["XLA_FLAGS"] == "--xla_gpu_autotune_level=0"
    found = set_by_jax()
    assert {"MOSAIC_GPU_CUDA_ROOT", "TPU_SKIP_MDS_QUERY"} <= found.keys()
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    with prepare() as setup:
        assert setup.context(warm_store).variables == before


def set_by_jax() -> dict[str, str]:
    """Return the variables that JAX sets when it and Mosaic GPU are imported."""
    program = (
        "import json, os; before = dict(os.environ)\n"
        "from jax.experimental.mosaic import gpu\n"
        "print(json.dumps(dict(os.environ.items() - before.items())))"
    )
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    ran = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, str] = json.loads(ran.stdout)
    return found


def test_workers_are_told_all_that_they_need(warm_store: Store) -> None:
    with prepare() as setup:
        context = setup.context(warm_store)
        told = Introduction.of(setup, context, warm_store)
    assert told.identity == context.for_actions()
    assert (told.ptxas.is_file(), told.store) == (True, warm_store.root)
    assert Introduction.from_json(json.loads(json.dumps(told.to_json()))) == told
