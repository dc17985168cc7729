"""What the store keeps of checks, and what makes them run again."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pallasc.cache.store import Store
from pallasc.checks import stored_results
from pallasc.checks.findings import Finding, from_findings
from pallasc.checks.stored_results import Checkable, StoredResults
from pallasc.compiler.toolchain.setup import prepare
from pallasc.errors import Location


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


def test_results_of_other_code_and_of_a_missing_file_are_not_used(
    warm_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "k.py").write_text("")
    location = Location(str(tmp_path / "k.py"), 1)
    result = from_findings("artifact", [Finding(rule="race", message="", location=location)])
    subject: Any = Checkable("ab" * 32, "", SimpleNamespace(base_dir=str(tmp_path)), None)
    with prepare() as setup:
        context = setup.context(warm_store)

        def find() -> Any:
            return StoredResults(warm_store, context).find(subject, ["artifact"])

        StoredResults(warm_store, context).put(subject, result, {})
        assert find() == {"artifact": result}
        with monkeypatch.context() as patch:
            patch.setattr(stored_results, "own_digest", lambda *_: "other")
            assert find() == {}
        (tmp_path / "k.py").unlink()
        assert find() == {}
