"""The script of `examples/tokamax` that writes specs and tables from Tokamax's tables."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from consoles import fits, shown
from tokamax_package import (
    ATTENTION,
    GLU,
    H100,
    RAGGED_DOT,
    Entries,
    glu,
    tiles,
    times,
    write_package,
)

from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.tuned_table import read_table
from pallasc.specs.loading.yaml_loader import load_yaml

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "tokamax" / "import_tables.py"

Import = Callable[..., "subprocess.CompletedProcess[str]"]
Tables = dict[tuple[str, str], Entries]


def attention(**changed: Any) -> dict[str, Any]:
    missing = ("q_start", "q_end", "k_start", "k_end", "bool_mask", "causal_mask")
    nothing = ("bias", "logits_soft_cap", "dropout_mask", "paging_info", "q_indices", "k_indices")
    return {
        **dict.fromkeys("qkv", "f16[2,512,4,64]"),
        "precision": [["DEFAULT", "DEFAULT"], ["DEFAULT", "DEFAULT"]],
        "logits_dtype": "float32",
        "logits_scale": 0.125,
        "mask": dict.fromkeys(missing),
        **dict.fromkeys(nothing),
        "dropout_rate": 0.0,
        "normalize_output": True,
        "return_residuals": False,
        **changed,
    }


def causal(**changed: Any) -> dict[str, Any]:
    own = attention()
    return {**own, "mask": {**own["mask"], "causal_mask": {"offset": 0, "window_size": None}}}


def backward(mask: str | None) -> dict[str, Any]:
    own = attention(bias=mask and "f16[1,4,512,512]")
    arrays = {"residuals": ["f32[2,4,512]"] * 2, "out": own["q"], "dout": own["q"]}
    return {**arrays, **own, "mask": {**own["mask"], "bool_mask": mask}}


def ragged(**changed: Any) -> dict[str, Any]:
    nothing = ("activation", "manual_axis_type", "group_offset", "fuse_gateup_activation")
    return {
        "lhs": "bf16[1024,256]",
        "rhs": "bf16[8,256,512]",
        "group_sizes": {"num_groups": 8, "total_size": 1024},
        "ragged_dot_dimension_numbers": {
            "dot_dimension_numbers": [[[1], [2]], [[], []]],
            "lhs_ragged_dimensions": [0],
            "rhs_group_dimensions": [0],
        },
        "precision": ["DEFAULT", "DEFAULT"],
        "preferred_element_type": "bfloat16",
        "return_residuals": False,
        **dict.fromkeys(nothing),
        "zero_initialize": False,
        **changed,
    }


@pytest.fixture
def import_tables(tmp_path: Path) -> Import:
    """Return a function that writes a package with tables and runs the script on it."""

    def import_tables(tables: Tables) -> subprocess.CompletedProcess[str]:
        write_package(tmp_path / "lib", tables)
        command = [sys.executable, "-P", str(SCRIPT), "--from", "lib", "-o", "out"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    return import_tables


def test_the_fastest_configuration_is_the_row(import_tables: Import, tmp_path: Path) -> None:
    entries: Entries = [
        (glu(), [(tiles(64), times(0.4, 0.5, 0.6)), (tiles(128), times(0.2, 0.3, 0.3))]),
        (glu(512), [(tiles(64), times(0.7))]),
        (glu(x="bf16[100,128]"), []),
    ]
    done = import_tables({(H100, GLU): entries, ("nvidia_x1", GLU): []})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "h100-sxm: 2 rows of gated_linear_unit",
        *(f"wrote out/tokamax-h100{suffix}" for suffix in (".yaml", ".json", ".tuned.yaml")),
    ]
    table = read_table(tmp_path / "out" / "tokamax-h100.tuned.yaml")["gated_linear_unit"]
    first, second = table.rows
    assert (first.use, second.use) == ({"config": "tm128"}, {"config": "tm64"})
    assert first.source == "tokamax 9.8.7"
    assert first.measured is not None
    assert (first.measured.us, first.measured.rounds) == (300.0, 3)
    assert first.measured.spread_percent == 16.7
    assert first.measured.device == "NVIDIA H100 80GB HBM3"


def test_the_specs_expand_to_the_points_of_the_rows(import_tables: Import, tmp_path: Path) -> None:
    mask = "bool[2,1,1,512]"
    two = {"block_q": 64, "num_stages": 2}, {"block_q": 128, "num_stages": 2}
    backward_tiles = {"block_q_dkv": 64, "block_q_dq": 64}
    done = import_tables(
        {
            (H100, ATTENTION): [
                (attention(), [(two[0], times(1.0))]),
                (causal(), [(two[1], times(1.0))]),
            ],
            (H100, f"{ATTENTION}_vjp"): [
                (backward(None), [(backward_tiles, times(1.0))]),
                (backward(mask), [(backward_tiles, times(1.0))]),
            ],
            (H100, GLU): [(glu(), [(tiles(), times(1.0))])],
            (H100, RAGGED_DOT): [(ragged(), [({"block_m": 64, "persistent": True}, times(1.0))])],
        }
    )
    assert done.returncode == 0, done.stderr
    (tmp_path / "out" / "tokamax").symlink_to(tmp_path / "lib" / "tokamax")
    variants = expand(load_yaml(tmp_path / "out" / "tokamax-h100.yaml"))
    assert [(v.name, dict(v.params)["config"]) for v in variants] == [
        ("attention", "bq64"),
        ("attention", "bq128"),
        ("attention_vjp", "bqdkv64-bqdq64"),
        ("attention_vjp_masked", "bqdkv64-bqdq64"),
        ("gated_linear_unit", "tm64-tn64-wd1"),
        ("ragged_dot", "bm64-p1"),
    ]
    assert [v.static["is_causal"] for v in variants if "is_causal" in v.static] == [False, True]
    one: Any = variants[-1]
    assert str(one.args["group_sizes"]) == "i32[8]"
    config = one.static["self"]["config"]
    assert (config["block_m"], config["persistent"]) == (64, True)
    dimensions = one.static["ragged_dot_dimension_numbers"]
    assert dimensions["$ref"].endswith(":TRANS_RHS_RAGGED_DOT_DIM_NUMS")


@pytest.mark.parametrize(
    ("op", "arguments", "reason"),
    [
        (GLU, glu(x={"qvalue": "i8[8]"}), '{"qvalue": "i8[8]"} in place of an array'),
        (GLU, glu(return_residuals=True), "return_residuals is true"),
        (GLU, glu(extra=1), "extra is 1"),
        (GLU, glu(precision=["DEFAULT", "HIGH"]), 'precision is ["DEFAULT", "HIGH"]'),
        (ATTENTION, attention(logits_soft_cap=3.0), "logits_soft_cap is 3.0"),
        (ATTENTION, attention(logits_scale=1.0), "logits_scale is not 1 / sqrt(size of a head)"),
        (RAGGED_DOT, ragged(fuse_gateup_activation="silu"), 'fuse_gateup_activation is "silu"'),
    ],
)
def test_entries_with_other_arguments_are_skipped_and_counted(
    import_tables: Import, op: str, arguments: dict[str, Any], reason: str
) -> None:
    tuned = [(tiles(), times(1.0))]
    rows: Entries = [(glu(1024), tuned)]
    odd: Entries = [(arguments, tuned)]
    tables: Tables = (
        {(H100, GLU): rows + odd} if op == GLU else {(H100, GLU): rows, (H100, op): odd}
    )
    done = import_tables(tables)
    assert done.returncode == 0
    assert f"h100-sxm: 1 skipped, {op.partition('gpu_')[2].removeprefix('flash_')}: {reason}" in (
        done.stdout
    )


def test_the_same_call_twice_is_one_row(import_tables: Import) -> None:
    sizes = ragged(group_sizes=[100] * 8)
    entries: Entries = [(call, [(tiles(), times(1.0))]) for call in (ragged(), sizes)]
    assert "1 rows of ragged_dot" in import_tables({(H100, RAGGED_DOT): entries}).stdout


@pytest.mark.parametrize("text", ["[]", '{"{}": {"{}": {}}}', "{", '{"{}": [1]}'])
def test_a_damaged_table_is_an_error_and_nothing_is_written(
    import_tables: Import, tmp_path: Path, text: str
) -> None:
    table = tmp_path / f"lib/tokamax/data/autotuning/{H100}/{GLU}.json"
    table.parent.mkdir(parents=True)
    table.write_text(text)
    done = import_tables({})
    assert done.returncode == 1
    assert f"lib/tokamax/data/autotuning/{H100}/{GLU}.json is not a table" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_without_tables_is_an_error(import_tables: Import) -> None:
    done = import_tables({})
    assert (done.returncode, done.stderr) == (
        1,
        "lib/tokamax has no tables of Mosaic GPU kernels\n",
    )


def test_the_commands_of_the_page_do_what_it_shows(tmp_path: Path) -> None:
    entries: Entries = [(glu(), [(tiles(64), times(0.5)), (tiles(128), times(0.4))])]
    write_package(tmp_path / "lib", {(H100, GLU): entries})
    text = (ROOT / "docs" / "tokamax.md").read_text().partition("```console\n")[2]
    (tmp_path / "bin").mkdir()
    for name, words in (("pallasc", "-m pallasc"), ("python", "")):
        script = tmp_path / "bin" / name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P {words} "$@"\n')
        script.chmod(0o755)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    own = {
        "PATH": os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]]),
        "PYTHONPATH": str(tmp_path / "lib"),
        "PALLASC_CACHE_DIR": str(tmp_path / "store"),
    }
    for command, wanted in shown(text.partition("```")[0]):
        result = subprocess.run(
            shlex.split(command),
            cwd=tmp_path,
            env={**os.environ, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout
        assert fits(result.stdout, wanted), result.stdout
    built = json.loads((tmp_path / "kernels" / "tokamax-h100.json").read_text())
    assert list(built) == ["gated_linear_unit"]
