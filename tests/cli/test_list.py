"""`pallasc list`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

RunCommand = Callable[..., Any]

ENTRY = "pallasc.specs.library.elementwise:add"


def test_list_prints_a_table(run: RunCommand, spec: Path, tmp_path: Path) -> None:
    result = run("list", spec, "--store", tmp_path / "store")
    arrays = "x: {0}[1024, 4096], y: {0}[1024, 4096]"
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        "VARIANT                          ARCH    ENTRY                                  ARRAYS\n"
        f"add[m=1024,dtype=f32]@h100-sxm   sm_90a  {ENTRY}  {arrays.format('f32')}\n"
        f"add[m=1024,dtype=bf16]@h100-sxm  sm_90a  {ENTRY}  {arrays.format('bf16')}\n"
    )


def test_list_takes_targets_and_an_expression(run: RunCommand, spec: Path, tmp_path: Path) -> None:
    result = run(
        "list", spec, "--store", tmp_path, "--target", "b200", "--target", "sm_80", "-k", "dtype=f*"
    )
    assert [line.split()[0] for line in result.out.splitlines()[1:]] == [
        "add[m=1024,dtype=f32]@b200",
        "add[m=1024,dtype=f32]@a100-sxm",
    ]


def test_list_prints_json(run: RunCommand, spec: Path, tmp_path: Path) -> None:
    result = run("list", spec, "--store", tmp_path, "--json", "-k", "dtype=f32")
    arrays = {"x": "f32[1024, 4096]", "y": "f32[1024, 4096]"}
    assert json.loads(result.out) == {
        "schema": 1,
        "variants": [
            {
                "id": "add[m=1024,dtype=f32]@h100-sxm",
                "name": "add",
                "params": {"m": 1024, "dtype": "f32"},
                "target": "h100-sxm",
                "arch": "sm_90a",
                "entry": ENTRY,
                "args": arrays,
                "arrays": arrays,
                "static": {"block_size": 2048},
                "mesh": {},
                "reference": None,
                "file": str(spec),
                "line": 4,
            }
        ],
    }


def test_an_expression_that_means_nothing_is_a_mistake(
    run: RunCommand, spec: Path, tmp_path: Path
) -> None:
    result = run("list", spec, "--store", tmp_path, "-k", "dtype=bf17")
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        "error: -k 'dtype=bf17' selects none of 2 variants.\n  Did you mean 'dtype=bf16'? "
        "Values of dtype: bf16, f32.\n"
    )


def test_an_architecture_without_its_suffix_is_refused_with_the_right_name(
    run: RunCommand, spec: Path, tmp_path: Path
) -> None:
    result = run("list", spec, "--store", tmp_path, "--target", "sm_90")
    assert (result.code, result.out) == (2, "")
    assert result.err == ("error: unknown target 'sm_90'.\n  Did you mean 'sm_90a'?\n")


def test_a_python_spec_is_listed_like_one_in_yaml(run: RunCommand, tmp_path: Path) -> None:
    file = tmp_path / "kernels.py"
    file.write_text(
        "import pallasc\n\n\n"
        '@pallasc.kernel(args={"x": "f32[{n}]"}, matrix={"n": [1, 2]}, targets=["sm_90a"])\n'
        "def twice(x):\n    return x + x\n"
    )
    result = run("list", file, "--store", tmp_path / "store")
    assert (result.code, result.err) == (0, "")
    assert [line.split()[0] for line in result.out.splitlines()[1:]] == [
        "twice[n=1]@h100-sxm",
        "twice[n=2]@h100-sxm",
    ]
