"""`pallasc targets`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pallasc.specs.gpus import DEFAULT_MODELS, MODELS

RunCommand = Callable[..., Any]

MODEL_SPEC = """\
schema: 1
models:
  small-h100: {like: h100-sxm, sm_count: 7}
targets: [small-h100]
kernels:
  - {name: add, entry: "pallasc.specs.library.elementwise:add", args: ["f32[2048]", "f32[2048]"]}
"""


def test_targets_prints_every_model_and_marks_the_default_ones(run: RunCommand) -> None:
    result = run("targets")
    rows = [line.split() for line in result.out.splitlines()[1:]]
    assert (result.code, result.err) == (0, "")
    assert [row[0] for row in rows] == list(MODELS)
    assert {row[1][:-1]: row[0] for row in rows if row[1].endswith("*")} == DEFAULT_MODELS


def test_a_line_of_the_table_is_exact(run: RunCommand) -> None:
    lines = run("targets").out.splitlines()
    assert lines[0] == "MODEL          ARCH      SMS  SMEM PER BLOCK       L2   MEMORY  DEVICE"
    assert "h100-sxm       sm_90a*   132         232,448   50 MiB   79 GiB  NVIDIA H100" in "".join(
        lines
    )


def test_targets_adds_the_models_of_a_spec(run: RunCommand, tmp_path: Path) -> None:
    spec = tmp_path / "kernels.yaml"
    spec.write_text(MODEL_SPEC)
    result = run("targets", spec, "--store", tmp_path / "store")
    assert result.out.splitlines()[-1].split()[:3] == ["small-h100", "sm_90a", "7"]


def test_targets_prints_json_with_all_figures(run: RunCommand) -> None:
    data = json.loads(run("targets", "--json").out)
    assert data["schema"] == 1
    assert data["architectures"] == dict(DEFAULT_MODELS)
    assert [model["name"] for model in data["models"]] == list(MODELS)
    assert data["models"][0]["smem_optin_bytes"] == 166912
