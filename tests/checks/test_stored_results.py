"""What the store keeps of checks, and what makes them run again."""

import json
from pathlib import Path
from typing import Any

import pytest


def test_what_has_not_changed_starts_no_worker_and_imports_no_jax(
    checked: Any, checking: Any, tmp_path: Path
) -> None:
    modules = tmp_path / "modules"
    ran = checking.check(checked.folder, "spec.yaml", "--json", modules=modules)
    assert ran.code == 1
    loaded = set(modules.read_text().splitlines())
    heavy = {"jax", "numpy", "pallasc.compiler.workers.pool", "pallasc.checks.interpreter"}
    assert not loaded & heavy
    for name, result in checked.ran.results.items():
        assert not result["from_store"]
        expected = {**result, "from_store": True}
        assert ran.results[name] == expected


def test_a_changed_reference_is_checked_again_and_a_copy_of_the_folder_is_not(
    again: Path, checking: Any
) -> None:
    moved = checking.check(again, "spec.yaml", "--json")
    assert all(result["from_store"] for result in moved.results.values())
    place = moved.results["waits_twice"]["findings"][0]["location"]["file"]
    assert Path(place) == again / "kernels.py"
    source = again / "kernels.py"
    text = source.read_text()
    source.write_text(text.replace("    return x\n", "    return x + x\n"))
    ran = checking.check(again, "spec.yaml", "--json", "-k", "name=sound or name=doubled")
    assert [ran.results[name]["status"] for name in ("sound", "doubled")] == ["found", "passed"]
    assert not any(result["from_store"] for result in ran.results.values())
    source.write_text(text)
    undone = checking.check(again, "spec.yaml", "--json", "-k", "name=sound or name=doubled")
    assert all(result["from_store"] for result in undone.results.values())


def test_levels_that_read_different_files_keep_their_results_beside_each_other(
    project: Path, checking: Any
) -> None:
    # The artifact level calls the reference alone, which does not import the helper.
    (project / "helper.py").write_text("SCALE = 1.0\n")
    (project / "reference.py").write_text("def same(x):\n    return x\n")
    late = "        from helper import SCALE\n        o[...] = SCALE * smem[...]\n"
    kernels = checking.KERNELS.replace("        o[...] = smem[...]\n", late, 1)
    (project / "kernels.py").write_text(kernels)
    kernel = {"name": "sound", "reference": "reference.py:same"}
    (project / "spec.yaml").write_text(checking.spec_of(kernel))

    def from_store() -> dict[str, bool]:
        ran = checking.check(project, "spec.yaml", "--json", "--level", "all")
        assert ran.code == 0, ran.out + ran.err
        (variant,) = ran.report["variants"]
        return {row["level"]: row["from_store"] for row in variant["results"]}

    levels = ("interpreter", "artifact")
    assert from_store() == dict.fromkeys(levels, False)
    assert from_store() == dict.fromkeys(levels, True)
    (project / "helper.py").write_text("SCALE = 1  # as before\n")
    assert not from_store()["interpreter"]
    (project / "reference.py").write_text("def same(x):\n    return 1 * x\n")
    assert not from_store()["artifact"]


def test_the_store_verifies_counts_and_clears_results(again: Path, checking: Any) -> None:
    verified = checking.pallasc(again, "cache", "verify", "--json")
    assert verified.code == 0
    assert json.loads(verified.out)["findings"] == []
    assert checking.pallasc(again, "cache", "prune", "--all").code == 0
    assert not [*(again / "store" / "v1" / "man").rglob("?" * 64)]


def test_a_store_that_demands_signatures_believes_only_signed_results(
    again: Path, checking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(again / "config"))
    only = ("spec.yaml", "--json", "-k", "name=sound")
    assert checking.check(again, *only).results["sound"]["from_store"]
    monkeypatch.setenv("PALLASC_REQUIRE_SIGNED_STORE", "1")
    unsigned, signed = (checking.check(again, *only).results["sound"] for _ in range(2))
    assert [unsigned["from_store"], signed["from_store"]] == [False, True]
