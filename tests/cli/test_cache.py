"""`pallasc cache`, on a copy of a store that was really built."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pallasc.cli.why_text import excerpts

RunCommand = Callable[..., Any]


@pytest.fixture
def own(built: Any, tmp_path: Path) -> tuple[Path, Path]:
    """The spec, and a store with its two variants that a test may damage."""
    store = tmp_path / "store"
    shutil.copytree(built.store, store, symlinks=True)
    return built.spec, store


def _blob(store: Path) -> Path:
    return max((store / "v1" / "cas").glob("*/*"), key=lambda path: path.stat().st_size)


def test_stats_count_what_was_compiled_and_what_was_hit(
    run: RunCommand, own: tuple[Path, Path]
) -> None:
    spec, store = own
    before = json.loads(run("cache", "stats", "--store", store, "--json").out)
    assert run("build", spec, "--store", store).code == 0
    after = json.loads(run("cache", "stats", "--store", store, "--json").out)
    assert after["entries"] == 2
    assert after["made"] == 2
    assert after["hits"] == before["hits"] + 2
    assert after["saved_s"] > before["saved_s"]
    text = run("cache", "stats", "--store", store).out
    assert re.search(r"^artifacts    2 \(0 pinned\)$", text, re.MULTILINE)


def test_why_says_hit_and_names_the_field_that_differs(
    run: RunCommand, own: tuple[Path, Path], tmp_path: Path
) -> None:
    spec, store = own
    hit = run("cache", "why", spec, "--store", store, "-k", "dtype=f32")
    assert hit.out == "hit   add[m=1024,dtype=f32]@h100-sxm: the store has it\n"
    other = tmp_path / "other.yaml"
    other.write_text(spec.read_text().replace("block_size: 2048", "block_size: 1024"))
    miss = run("cache", "why", other, "--store", store, "-k", "dtype=f32")
    assert miss.code == 0
    assert miss.out == (
        "miss  add[m=1024,dtype=f32]@h100-sxm: its key differs from that of "
        "add[m=1024,dtype=f32]@h100-sxm in: static\n"
        "      static\n"
        '        stored: {"block_size":2048}\n'
        '        now:    {"block_size":1024}\n'
    )


def test_why_names_the_source_file_that_changed(
    run: RunCommand, process: RunCommand, tmp_path: Path
) -> None:
    (tmp_path / "kernels.py").write_text("from helper import add\n")
    helper = tmp_path / "helper.py"
    helper.write_text("from pallasc.specs.library.elementwise import add\n")
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "schema: 1\ntargets: [sm_90a]\nkernels:\n  - name: own\n    entry: kernels.py:add\n"
        '    args: {x: "f32[4096]", y: "f32[4096]"}\n'
    )
    store = tmp_path / "store"
    assert process("build", spec, "--store", store).code == 0
    helper.write_text("from pallasc.specs.library.elementwise import add  # changed\n")
    result = run("cache", "why", spec, "--store", store)
    assert result.out == (
        "miss  own@h100-sxm: helper has changed\n"
        "      a build lowers it again, and compiles only if that gives something else\n"
    )
    assert "1 hit" in process("build", spec, "--store", store).err
    told = json.loads(run("cache", "stats", "--store", store, "--json").out)
    assert (told["hits"], told["misses"], told["made"]) == (1, 1, 1)


def test_cache_alone_shows_its_help(run: RunCommand) -> None:
    result = run("cache")
    assert (result.code, result.err) == (0, "")
    assert result.out == run("cache", "--help").out


def test_why_shows_the_part_of_a_long_value_that_differs() -> None:
    stored, now = excerpts("a" * 300 + "x" + "c" * 300, "a" * 300 + "y" + "c" * 300)
    assert stored == f"…{'a' * 33}x{'c' * 66}…"
    assert now == f"…{'a' * 33}y{'c' * 66}…"
    assert excerpts(None, "short") == ("(absent)", "short")


def test_verify_finds_damage_and_repair_lets_it_heal(
    run: RunCommand, own: tuple[Path, Path]
) -> None:
    spec, store = own
    assert run("cache", "verify", "--store", store).code == 0
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


def test_prune_spares_what_is_pinned(run: RunCommand, own: tuple[Path, Path]) -> None:
    spec, store = own
    keys = [
        variant["action_key"]
        for variant in json.loads(run("build", spec, "--store", store, "--json").out)["variants"]
    ]
    assert run("cache", "pin", keys[0], "--label", "kept", "--store", store).code == 0
    assert run("cache", "pin", "--store", store).out == f"{keys[0]}  kept\n"
    dry = run("cache", "clear", "--dry-run", "--store", store)
    assert "would remove 1 record," in dry.out
    assert run("cache", "clear", "--store", store).code == 0
    left = json.loads(run("cache", "stats", "--store", store, "--json").out)
    assert (left["entries"], left["pins"]) == (1, 1)
    assert run("cache", "pin", "kept", "--remove", "--store", store).code == 0
    assert run("cache", "pin", "--store", store).out == ""


def test_pin_names_the_nearest_kernel_for_a_typo(run: RunCommand, own: tuple[Path, Path]) -> None:
    result = run("cache", "pin", "ad", "--store", own[1])
    assert result.code == 3
    assert result.err == "error: the store has no artifact 'ad'.\n  Did you mean 'add'?\n"


def test_audit_compiles_again_and_compares(process: RunCommand, own: tuple[Path, Path]) -> None:
    spec, store = own
    result = process("cache", "audit", spec, "--sample", "1", "--store", store)
    assert result.code == 0, result.err
    assert re.fullmatch(
        r"same       add\[m=1024,dtype=\w+\]@h100-sxm\n1 of 2 variants compiled again\n", result.out
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--size", "5x"], "--size: '5x' is no size"),
        (["--age", "soon"], "--age: 'soon' is no age"),
    ],
)
def test_prune_refuses_limits_that_are_none(
    run: RunCommand, own: tuple[Path, Path], arguments: list[str], message: str
) -> None:
    result = run("cache", "prune", *arguments, "--store", own[1])
    assert result.code == 2
    assert message in result.err
