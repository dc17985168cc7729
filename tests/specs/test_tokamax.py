"""The script of `examples/tokamax` that writes specs and tables from Tokamax's tables."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import captured
from consoles import fits, shown

from pallasc.specs.loading.tuned_table import read_table

sys.path.insert(0, str(Path(__file__).parent))
from tokamax_package import GLU, H100, Entries, glu, tiles, times, write_package

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "tokamax" / "import_tables.py"

Import = Callable[..., "subprocess.CompletedProcess[str]"]
Tables = dict[tuple[str, str], Entries]


@pytest.fixture
def import_tables(tmp_path: Path) -> Import:
    """Return a function that writes a package with tables and runs the script on it."""

    def import_tables(tables: Tables) -> subprocess.CompletedProcess[str]:
        write_package(tmp_path / "lib", tables)
        command = [sys.executable, "-P", str(SCRIPT), "--from", "lib", "-o", "out"]
        return captured(command, cwd=tmp_path)

    return import_tables


def test_the_fastest_configuration_is_the_row(import_tables: Import, tmp_path: Path) -> None:
    entries: Entries = [
        (glu(), [(tiles(64), times(0.4, 0.5, 0.6)), (tiles(128), times(0.2, 0.3, 0.3))]),
        (glu(512), [(tiles(64), times(0.7))]),
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
        **os.environ,
        "PATH": os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]]),
        "PYTHONPATH": str(tmp_path / "lib"),
        "PALLASC_CACHE_DIR": str(tmp_path / "store"),
    }
    out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    for command, wanted in shown(text.partition("```")[0]):
        result = subprocess.run(shlex.split(command), cwd=tmp_path, env=own, check=False, **out)  # type: ignore[call-overload]
        assert result.returncode == 0, result.stdout
        assert fits(result.stdout, wanted), result.stdout
    assert [*json.loads((tmp_path / "kernels" / "tokamax-h100.json").read_text())] == [
        "gated_linear_unit"
    ]
