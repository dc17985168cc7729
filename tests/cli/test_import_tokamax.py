"""`pallasc import tokamax`."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from consoles import fits, shown
from tokamax_package import GLU, H100, Entries, glu, tiles, times, write_package

RunCommand = Callable[..., Any]

ENTRIES: Entries = [
    (glu(), [(tiles(64), times(0.5)), (tiles(128), times(0.4, 0.4, 0.4))]),
    (glu(512), [(tiles(64), times(0.7))]),
    (glu(x="bf16[100,128]"), []),
    (glu(x={"qvalue": "i8[8]"}), []),
]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder with a package of Tokamax's structure."""
    write_package(tmp_path / "lib", {(H100, GLU): ENTRIES, ("nvidia_x1", GLU): []})
    return tmp_path / "lib"


def test_import_writes_a_spec_its_points_and_its_table(
    run: RunCommand, site: Path, tmp_path: Path
) -> None:
    result = run("import", "tokamax", "--from", site, "-o", tmp_path / "out")
    names = ["tokamax-h100.json", "tokamax-h100.tuned.yaml", "tokamax-h100.yaml"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    assert result.code == 0
    assert [line.split() for line in result.out.splitlines()][1:] == [
        ["h100-sxm", "gated_linear_unit", "2", "2", "1", "1"]
    ]
    assert result.err.splitlines() == [
        "gated_linear_unit: 1 entry left out: an array that is quantised",
        "gated_linear_unit: of several configurations the fastest, 1 time",
        "no model of these GPUs: nvidia_x1",
        f"wrote {tmp_path}/out/tokamax-h100.yaml",
        f"wrote {tmp_path}/out/tokamax-h100.json",
        f"wrote {tmp_path}/out/tokamax-h100.tuned.yaml",
    ]


def test_an_import_replaces_its_own_files_and_no_others(
    run: RunCommand, site: Path, tmp_path: Path
) -> None:
    command = ("import", "tokamax", "--from", site, "-o", tmp_path)
    assert run(*command).code == 0
    before = (tmp_path / "tokamax-h100.yaml").read_bytes()
    assert run(*command, "--untuned").code == 0
    assert (tmp_path / "tokamax-h100.yaml").read_bytes() != before
    assert run(*command).code == 0
    assert (tmp_path / "tokamax-h100.yaml").read_bytes() == before
    (tmp_path / "tokamax-h100.yaml").write_text("mine")
    refused = run(*command)
    assert refused.code == 2
    assert "already exists, and no import wrote it." in refused.err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"x": {"qvalue": "i8[8]"}}, "every entry is left out: no file is written"),
        ({}, "no configuration worked for any entry: no file is written; --untuned declares"),
    ],
)
def test_a_model_without_kernels_gets_no_files(
    run: RunCommand, tmp_path: Path, arguments: dict[str, Any], why: str
) -> None:
    write_package(tmp_path / "lib", {(H100, GLU): [(glu(**arguments), [])]})
    result = run("import", "tokamax", "--from", tmp_path / "lib", "-o", tmp_path / "out")
    assert result.code == 0
    assert f"h100-sxm: {why}" in result.err
    assert not (tmp_path / "out").exists()


def test_json_says_what_was_taken(run: RunCommand, site: Path, tmp_path: Path) -> None:
    result = run("import", "tokamax", "--from", site, "-o", tmp_path, "--device", "h100", "--json")
    assert json.loads(result.out) == {
        "schema": 1,
        "source": "tokamax 9.8.7",
        "kernels": [
            {
                "model": "h100-sxm",
                "name": "gated_linear_unit",
                "entries": 2,
                "configurations": 2,
                "several": 1,
                "untuned": 1,
                "left": {"an array that is quantised": 1},
            }
        ],
        "unknown": ["nvidia_x1"],
        "files": [
            f"{tmp_path}/tokamax-h100{suffix}" for suffix in (".yaml", ".json", ".tuned.yaml")
        ],
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "nowhere"], "nowhere holds no tables of Tokamax"),
        (["--from", "lib", "--device", "b200"], "Tokamax has no tables for 'b200'."),
    ],
)
def test_what_cannot_be_imported_is_an_error(
    run: RunCommand,
    site: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("import", "tokamax", *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_what_is_imported_compiles_as_its_table_says(
    run: RunCommand, site: Path, tmp_path: Path
) -> None:
    run("import", "tokamax", "--from", site, "-o", site, "--untuned")
    result = run("build", site / "tokamax-h100.yaml", "--store", tmp_path / "store", "--json")
    built = {v["id"]: v for v in json.loads(result.out)["variants"]}
    assert [(name.rpartition("=")[2], v["status"]) for name, v in built.items()] == [
        ("tm128]@h100-sxm", "compiled"),
        ("tm64]@h100-sxm", "compiled"),
        ("BF16_BF16_F32]@h100-sxm", "failed"),
    ]
    assert "NotImplementedError: 100 rows are not supported." in json.dumps(built)


def test_the_commands_of_the_page_do_what_it_shows(site: Path, tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "tokamax.md").read_text()
    text = page.partition("```console\n")[2].partition("```")[0]
    script = tmp_path / "bin" / "pallasc"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m pallasc "$@"\n')
    script.chmod(0o755)
    path = os.pathsep.join([str(script.parent), os.environ["PATH"]])
    own = {"PATH": path, "PYTHONPATH": str(site), "PALLASC_CACHE_DIR": str(tmp_path / "store")}
    for command, wanted in shown(text):
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


def test_a_kernel_of_the_installed_tokamax_compiles(run: RunCommand, tmp_path: Path) -> None:
    pytest.importorskip("tokamax", reason="Tokamax is not installed")
    result = run("import", "tokamax", "-o", tmp_path, "--device", "h100", "--json")
    assert json.loads(result.out)["source"] == f"tokamax {metadata.version('tokamax')}"
    first = json.loads((tmp_path / "tokamax-h100.json").read_text())["gated_linear_unit"][0]
    choice = f"name=gated_linear_unit and x={first['x']} and weights={first['weights']}"
    store = ("--store", tmp_path / "store")
    built = run("build", tmp_path / "tokamax-h100.yaml", "-k", choice, *store)
    assert built.code == 0, built.err
