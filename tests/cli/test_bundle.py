"""`pallasc bundle`: variants of a store in one file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache.store import Store
from pallasc.compiler.lookup import stored_artifact
from pallasc.specs.bundle.bundle import open_bundle

RunCommand = Callable[..., Any]


@pytest.fixture
def bundle(run: RunCommand, built: Any, tmp_path: Path) -> Path:
    """Return a bundle of all that was built."""
    path = tmp_path / "kernels.pallasc"
    result = run("bundle", "create", *built.arguments, "--frozen", "--output", path)
    assert (result.code, result.out) == (0, "")
    assert result.err == f"wrote {path}: 2 variants, {path.stat().st_size:,} bytes\n"
    return path


def test_a_bundle_holds_what_the_store_has(run: RunCommand, built: Any, bundle: Path) -> None:
    listed = json.loads(run("bundle", "list", bundle, "--json").out)
    report = json.loads(run("build", *built.arguments, "--json").out)
    wanted = {variant["id"]: variant["digest"] for variant in report["variants"]}
    assert {variant["id"]: variant["digest"] for variant in listed["variants"]} == wanted
    with open_bundle(bundle) as opened:
        for variant in report["variants"]:
            entry = opened.select(variant["name"], variant["params"], variant["target"])
            stored = stored_artifact(Store(built.store), variant["action_key"])
            assert stored is not None
            assert opened.artifact(entry).plan == stored.plan or entry.digest == stored.digest


def test_the_same_variants_give_the_same_bytes(
    run: RunCommand, built: Any, bundle: Path, tmp_path: Path
) -> None:
    again = tmp_path / "again.pallasc"
    assert run("bundle", "create", *built.arguments, "-o", again).code == 0
    assert again.read_bytes() == bundle.read_bytes()


def test_a_list_is_a_table(run: RunCommand, bundle: Path) -> None:
    head, first, second = run("bundle", "list", bundle).out.splitlines()
    assert head.split() == ["VARIANT", "ARCH", "BYTES", "DIGEST"]
    assert {first.split()[0], second.split()[0]} == {
        "add[m=1024,dtype=f32]@h100-sxm",
        "add[m=1024,dtype=bf16]@h100-sxm",
    }


def test_verify_says_that_all_is_well_and_what_is_not(run: RunCommand, bundle: Path) -> None:
    whole = run("bundle", "verify", bundle)
    assert whole.code == 0
    assert whole.out.startswith(f"{bundle} is whole: 2 variants, content ")
    assert json.loads(run("bundle", "verify", bundle, "--json").out)["variants"] == 2
    data = bytearray(bundle.read_bytes())
    data[len(data) // 2] ^= 1
    bundle.write_bytes(data)
    damaged = run("bundle", "verify", bundle)
    assert (damaged.code, damaged.out) == (5, "")
    assert str(bundle) in damaged.err


def test_a_missing_variant_writes_nothing(run: RunCommand, built: Any, tmp_path: Path) -> None:
    path = tmp_path / "none.pallasc"
    empty = tmp_path / "empty"
    result = run("bundle", "create", built.spec, "--store", empty, "--frozen", "-o", path)
    assert result.code == 3
    assert result.err.endswith(f"{path} is not written.\n")
    assert not path.exists()


def test_what_is_no_bundle_is_refused(run: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    for action in ("list", "verify"):
        assert run("bundle", action, tmp_path / "text").code == 5
        assert run("bundle", action, tmp_path / "nothing").code == 2
