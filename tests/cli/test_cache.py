"""`pallasc cache`, on a copy of a store that was really built."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest


def _blob(store: Path) -> Path:
    return max((store / "v1" / "cas").glob("*/*"), key=lambda path: path.stat().st_size)


def test_a_salt_disowns_what_a_store_has(
    run: Any, own: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, store = own
    (tmp_path / "pyproject.toml").write_text('[tool.pallasc]\ncache-salt = "of the project"\n')
    monkeypatch.chdir(tmp_path)
    one = (spec, "--store", store, "-k", "dtype=f32")
    why = run("build", *one, "--dry-run", "--explain")
    told = "another toolchain: variable PALLASC_CACHE_SALT: only here"
    assert f"missing   add[m=1024,dtype=f32]@h100-sxm  compiled with {told}\n" in why.err
    (item,) = (line for line in run("doctor").out.splitlines() if line.startswith("cache salt"))
    words = ["cache", "salt", "of", "the", "project", "ok", f"{tmp_path}/pyproject.toml:2"]
    assert item.split() == words
    assert "1 compiled" in run("build", *one).err.splitlines()[-1]
    assert "1 hit" in run("build", *one).err.splitlines()[-1]
    monkeypatch.setenv("PALLASC_CACHE_SALT", "another")
    assert run("build", *one, "--frozen").code == 3
    (item,) = (line for line in run("doctor").out.splitlines() if line.startswith("cache salt"))
    assert item.split() == ["cache", "salt", "another", "ok", "PALLASC_CACHE_SALT"]
    monkeypatch.delenv("PALLASC_CACHE_SALT")
    monkeypatch.chdir(spec.parent)
    assert "1 hit" in run("build", *one).err.splitlines()[-1]


def test_a_build_says_once_why_a_variant_is_missing(
    run: Any, own: tuple[Path, Path], tmp_path: Path
) -> None:
    spec, store = own
    other = tmp_path / "other.yaml"
    other.write_text(spec.read_text().replace("block_size: 2048", "block_size: 1024"))
    one = (other, "--store", store, "-k", "dtype=f32")
    dry = run("build", *one, "--dry-run", "--explain")
    assert dry.err.splitlines()[:-1] == [
        "[1/1] missing   add[m=1024,dtype=f32]@h100-sxm  its key differs in: static"
    ]


def test_why_names_the_source_file_that_changed(run: Any, tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text("from helper import add\n")
    helper = tmp_path / "helper.py"
    helper.write_text("from pallasc.specs.library.elementwise import add\n")
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "schema: 1\ntargets: [sm_90a]\nkernels:\n  - name: own\n    entry: kernels.py:add\n"
        '    args: {x: "f32[4096]", y: "f32[4096]"}\n'
    )
    store = tmp_path / "store"
    assert run("build", spec, "--store", store).code == 0
    helper.write_text("from pallasc.specs.library.elementwise import add  # changed\n")
    result = run("build", spec, "--store", store, "--dry-run", "--explain")
    said = "[1/1] missing   own@h100-sxm  helper (helper.py) has changed\n"
    assert result.err.startswith(said)
    assert "1 lowered" in run("build", spec, "--store", store, "--explain").err
    told = json.loads(run("cache", "stats", "--store", store, "--json").out)
    assert (told["hits"], told["misses"], told["made"]) == (1, 1, 1)


def test_verify_finds_damage_and_repair_lets_it_heal(run: Any, own: tuple[Path, Path]) -> None:
    spec, store = own
    whole = run("cache", "verify", "--store", store)
    assert whole.code == 0
    assert re.search(r" manifests?, read [0-9,]+ bytes: 0 findings$", whole.out.strip())
    blob = _blob(store)
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.chmod(0o644)
    blob.write_bytes(data)
    found = run("cache", "verify", "--store", store)
    assert found.code == 5
    assert "damaged" in found.out
    assert run("cache", "verify", "--store", store, "--repair").code == 0
    rebuilt = json.loads(run("build", spec, "--store", store, "--json").out)
    statuses = sorted(variant["status"] for variant in rebuilt["variants"])
    assert statuses == ["compiled", "hit"]
    assert run("cache", "verify", "--store", store).code == 0


def test_prune_spares_what_a_lock_names(run: Any, own: tuple[Path, Path], tmp_path: Path) -> None:
    spec, store = own
    _make_old(store)
    lock = tmp_path / "kept.lock"
    one = ("-k", "dtype=f32", "--store", store)
    assert run("lock", spec, *one, "--lock", lock, "--update").code == 0
    pruned = run("cache", "prune", "--size", "1B", "--keep", lock, "--store", store)
    assert "kept 1 artifact: named by --keep, " in pruned.out
    assert "1 hit" in run("build", spec, *one, "--lock", lock, "--frozen").err
    assert json.loads(run("cache", "stats", "--store", store, "--json").out)["entries"] == 1
    assert run("cache", "prune", "--keep", "none.lock", "--store", store).code == 3
    told = run("cache", "prune", "--keep", spec, "--store", store)
    assert (told.code, spec.exists()) == (2, True)
    assert "\n  --keep takes a lock file, such as pallasc.lock." in told.err
    assert "emove" not in told.err
    assert run("cache", "prune", "--keep", lock, "--remote", "file:///none").code == 2
    for option, value, said in (
        ("--size", "5x", "is not a size"),
        ("--age", "soon", "is not an a"),
    ):
        wrong = run("cache", "prune", option, value, "--store", store)
        assert (wrong.code, f"{option}: {value!r} {said}" in wrong.err) == (2, True)


COMMANDS = (
    ("stats",), ("verify",), ("verify", "--repair"), ("prune",), ("prune", "--dry-run"),
    ("prune", "--all"), ("prune", "--all", "--dry-run"),
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_what_is_no_store_is_not_touched_and_one_that_is_not_there_is_not_made(
    run: Any, tmp_path: Path, command: tuple[str, ...]
) -> None:
    place = tmp_path / "file"
    place.write_text("mine")
    for more in ((), ("--json",)):
        result = run("cache", *command, *more, "--store", place)
        assert (result.code, result.out) == (4, "")
        assert result.err == (
            f"error: the store {place}/v1 cannot be read: Not a directory.\n"
            "  Name another folder with --store or PALLASC_CACHE_DIR.\n"
        )
    assert place.read_text() == "mine"
    assert run("cache", *command, "--store", tmp_path / "store").code == 0
    assert not (tmp_path / "store").exists()


def _make_old(store: Path) -> None:
    for path in (store / "v1").glob("[acm]*/*/*"):
        os.utime(path, (1000, 1000))
