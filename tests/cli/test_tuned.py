"""Tuned kernels on the command line: built, locked, bundled, and shown."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.loading.lock import read_lock
from pallasc.specs.loading.tuned_table import Table, table_text
from pallasc.specs.tuning import Measured, Row

SPEC = """\
schema: 1
targets: [sm_90a]
kernels:
  - name: add
    entry: pallasc.specs.library.elementwise:add
    args: {x: "{dtype}[{m}, 4096]", y: "{dtype}[{m}, 4096]"}
    static: {block_size: "{block}"}
    matrix: {m: [1024], dtype: [f32, bf16]}
    tune:
      over: {block: [1024, 2048, 4096]}
"""
BF16 = "add[m=1024,dtype=bf16,block=2048]@h100-sxm"
F32 = "add[m=1024,dtype=f32,block=2048]@h100-sxm"
STALE = "5" * 64


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the spec; the points of its rows are those that `built` has."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "kernels.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture
def digests(run: Any, built: Any, tmp_path: Path) -> dict[str, str]:
    """Return the digests of what was built, by dtype."""
    assert run("lock", *built.arguments, "--update", "--lock", tmp_path / "built.lock").code == 0
    lock = read_lock(tmp_path / "built.lock")
    assert lock is not None
    found = lock.variants.items()
    return {name.split("dtype=")[1].split("]")[0]: entry.artifact for name, entry in found}


def write_rows(artifacts: dict[str, str | None], source: str = "") -> None:
    measured = Measured(4.5, 0.5, 31, "NVIDIA H100 80GB HBM3", "580.95.05", 1755, "2026-11-23")
    rows = tuple(
        Row("h100-sxm", (1024, dtype), {"block": 2048}, artifact, source, measured)
        for dtype, artifact in artifacts.items()
    )
    Path("kernels.tuned.yaml").write_text(table_text({"add": Table(("m", "dtype"), rows)}))


def test_only_the_points_of_rows_are_built_unless_all_are_asked_for(
    run: Any, built: Any, spec: Path, digests: dict[str, str]
) -> None:
    write_rows(digests)
    result = run("build", spec, "--store", built.store, "--frozen")
    assert (result.code, result.err.count("2 hits")) == (0, 1), result.err
    listed = json.loads(run("list", spec, "--json", "--all-points").out)["variants"]
    assert len(listed) == 6
    result = run("list", spec, "-k", "block=2048")
    assert [line.split()[0] for line in result.out.splitlines()[1:]] == [F32, BF16]
    selected = run("inspect", spec, "--store", built.store, "-k", "block=2048 and dtype=f32")
    assert (selected.code, F32 in selected.out) == (0, True)


def test_a_row_of_another_artifact_is_a_warning_and_a_bundle_has_it(
    run: Any, built: Any, spec: Path, digests: dict[str, str]
) -> None:
    write_rows({**digests, "f32": STALE})
    lines = Path("kernels.tuned.yaml").read_text().splitlines()
    (line,) = (number for number, text in enumerate(lines, 1) if STALE in text)
    warning = (
        f"kernels.tuned.yaml:{line}: this row was measured with an artifact that differs from the "
        "current one; the times may not hold.\n"
    )
    place = (spec, "--store", built.store)
    for command in ("build", "bundle create -o k.pallasc", "lock --update"):
        result = run(*command.split(), *place)
        assert (result.code, result.err.count(warning)) == (0, 1), result.err
    uses = [line.split("  ")[-1] for line in run("list", "k.pallasc").out.splitlines()]
    assert uses == ["USED FOR", "1 row for h100-sxm", "1 row for h100-sxm"]
    with open_bundle("k.pallasc") as bundle:
        tunings = [entry.tuning for entry in bundle.entries()]
    keys = sorted(row.key for each in tunings if each for row in each.rows)
    assert keys == [(1024, "bf16"), (1024, "f32")]
    assert warning not in run("inspect", *place).err
    assert warning not in run("build", *place, "-k", "dtype=bf16").err
    write_rows({"f32": STALE, "bf16": STALE})
    assert "kernels.tuned.yaml:8: 2 rows were measured with an artifact" in run("build", *place).err
    write_rows(dict.fromkeys(digests))
    assert "measured as another" not in run("build", *place).err


def test_a_lock_names_a_table_that_changed_and_a_kernel_that_is_not_tuned_any_more(
    run: Any, built: Any, spec: Path, digests: dict[str, str]
) -> None:
    place = (spec, "--store", built.store)
    write_rows(digests)
    new = run("lock", *place, "--update")
    assert (new.code, "has changed" in new.err) == (0, False)
    lock = read_lock(Path("pallasc.lock"))
    assert lock is not None
    assert list(lock.tables) == ["add@h100-sxm"]
    assert "schema: 4\n" in Path("pallasc.lock").read_text()
    assert run("build", *place, "--locked").code == 0
    assert run("lock", *place).code == 0
    write_rows(digests, source="elsewhere")
    checked = run("lock", *place)
    assert checked.code == 3
    assert checked.err == (
        "pallasc.lock: the table or tune of add@h100-sxm has changed\n"
        "pallasc.lock is not current: 2 same\n"
        "  If that is intended: pallasc lock SPECS --update\n"
    )
    assert json.loads(run("lock", *place, "--json").out)["tables"] == ["add@h100-sxm"]
    for option in ("--locked", "--frozen"):
        built_again = run("build", *place, option)
        assert built_again.code == 3
        assert f"{F32} is not tuned as in pallasc.lock: its table or tune field" in built_again.err
    assert run("lock", *place, "--update").code == 0
    assert run("build", *place, "--locked").code == 0
    spec.write_text(SPEC + "      buckets: {m: pow2}\n")
    bundled = run("bundle", "create", *place, "--locked", "-o", "k.pallasc")
    assert (bundled.code, Path("k.pallasc").exists()) == (3, False)
    assert f"{F32} is not tuned as in pallasc.lock: its table or tune field" in bundled.err
    assert "the table or tune of add@h100-sxm has changed\n" in run("lock", *place).err
    whole = SPEC.partition("    tune:\n")[0]
    spec.write_text(whole.replace("dtype: [f32, bf16]", "dtype: [f32, bf16], block: [2048]"))
    result = run("build", *place, "--locked")
    assert result.code == 3
    assert f"{F32} is not tuned as in pallasc.lock: its table or" in result.err
    assert run("lock", *place, "--update").code == 0
    assert run("build", *place, "--locked").code == 0
    spec.write_text(SPEC)
    assert f"{F32} is not tuned as in pallasc.lock" in run("build", *place, "--locked").err


def test_a_table_is_shown(run: Any, built: Any, spec: Path, digests: dict[str, str]) -> None:
    said = run("tune", "show", spec, "--store", built.store).err
    assert said.splitlines()[-1] == "The tables of these specs have no rows."
    write_rows(digests)
    lines = run("tune", "show", spec).out.splitlines()
    assert lines[0].split() == [
        "KERNEL", "GPU", "KEY", "USE", "TIME", "SPREAD", "ROUNDS", "DATE", "FROM",
    ]  # fmt: skip
    assert re.split(r"\s{2,}", lines[1]) == [
        "add", "h100-sxm", "m=1024, dtype=bf16", "block=2048", "4.5 µs", "0.5 %", "31",
        "2026-11-23", digests["bf16"][:12],
    ]  # fmt: skip
    chosen = run("tune", "show", spec, "-k", "name=add and dtype=f32 and block=2048")
    assert [line.split()[3] for line in chosen.out.splitlines()[1:]] == ["dtype=f32"]
    assert len(run("tune", "show", spec, "-k", "target=sm_90a").out.splitlines()) == 3
    refused = run("tune", "show", spec, "-k", "block=512")
    assert refused.code == 2
    assert "-k 'block=512' selects none of 2 rows" in refused.err
    assert "Values of block: 2048" in refused.err
    rows = json.loads(run("tune", "show", spec, "--json").out)["rows"]
    assert rows[0]["key"] == {"m": 1024, "dtype": "bf16"}
    assert rows[0]["artifact"] == digests["bf16"]
    assert (rows[0]["file"], rows[0]["line"]) == (str(spec.with_name("kernels.tuned.yaml")), 8)
