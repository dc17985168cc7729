"""Hits without importing JAX, and the reasons for misses."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache.manifests import Manifest
from pallasc.cache.stat_digest import FileDigests
from pallasc.compiler.inputs.lookup import (
    named_entries,
    place_of,
    request_fields,
)
from pallasc.compiler.inputs.manifest import short_fields
from pallasc.compiler.inputs.sources import CurrentSources
from pallasc.compiler.toolchain.modules import Place
from pallasc.compiler.toolchain.setup import Context
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import parse_yaml

KERNEL = "import helper\n\n\ndef run(x):\n    return helper.scale(x)\n"
HELPER = "def scale(x):\n    return x * 3\n"


@pytest.fixture(scope="module")
def template(make_project: Any) -> Any:
    """Return a project of one kernel, a helper and a data file, built."""
    project = make_project()
    project.write("kernel.py", KERNEL)
    project.write("helper.py", HELPER)
    project.write("table.txt", "1 2 3\n")
    project.spec({"name": "scaled", "entry": "kernel.py:run", "files": ["table.txt"]})
    report = project.build()
    assert [r.status for r in report.results] == ["compiled"]
    assert report.results[0].reason == "never compiled with this spec and toolchain"
    project.digest = report.results[0].artifact.digest
    project.key = report.results[0].action_key
    return project


@pytest.fixture
def built(template: Any, tmp_path: Path) -> Any:
    """Return a copy of the built project, in a folder of its own."""
    return template.copy(tmp_path)


def test_every_change_is_a_miss_that_says_why_and_nothing_is_compiled_twice(
    built: Any, tmp_path: Path
) -> None:
    # One test, because each step needs a store in which the steps before have left their mark.
    def build() -> Any:
        result = built.build().results[0]
        assert result.error is None
        return result

    first = build()
    assert (first.status, first.reason) == ("hit", "")
    assert first.artifact.digest == built.digest

    built.write("helper.py", HELPER.replace("3", "4"))
    changed = build()
    assert (changed.status, changed.reason) == ("compiled", "helper (helper.py) has changed")
    assert changed.artifact.digest != built.digest

    built.write("helper.py", HELPER)
    back = build()
    assert (back.status, back.reason) == ("hit", "")
    assert back.artifact.digest == built.digest

    built.write("kernel.py", "# A comment.\n" + KERNEL)
    commented = build()
    assert (commented.status, commented.reason) == ("lowered", "kernel.py has changed")
    assert commented.action_key == built.key
    assert commented.artifact.digest == built.digest

    (built.folder / "helper.py").unlink()
    built.write("kernel.py", "def run(x):\n    return x * 3\n")
    without = build()
    assert (without.status, without.reason) == ("lowered", "kernel.py has changed")

    built.write("table.txt", "1 2 4\n")
    assert build().reason == "never compiled with this spec and toolchain"


def test_a_second_build_imports_nothing_heavy_and_a_moved_tree_is_a_hit(
    built: Any, run_program: Callable[..., Any], tmp_path: Path
) -> None:
    moved = tmp_path / "elsewhere" / "deeper"
    shutil.copytree(built.folder, moved)
    shutil.rmtree(built.folder)
    answer = run_program("build.py", built.store.root, 1, moved / "spec.yaml")
    assert answer["loaded"] == []
    assert answer["notes"] == []
    (result,) = answer["results"]
    assert (result["status"], result["reason"]) == ("hit", "")
    assert result["digest"] == built.digest
    assert result["cubin"] > 0


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("area", ["art", "cas", "man"])
def test_a_corrupt_file_of_the_store_is_compiled_again_and_healed(built: Any, area: str) -> None:
    places = {
        "art": built.store.path("ac", built.key),
        "cas": sorted((built.store.folder / "cas").rglob("?" * 64))[0],
        "man": built.store.path("man", built.build().results[0].manifest_key),
    }
    _flip(places[area])
    again = built.build()
    assert [r.status for r in again.results] == ["lowered" if area == "man" else "compiled"]
    assert again.results[0].artifact.digest == built.digest
    assert any("corrupt" in note for note in again.notes)
    assert again.results[0].artifact.cubin()
    healed = built.build()
    assert [(r.status, r.reason) for r in healed.results] == [("hit", "")]


def test_a_helper_or_a_record_that_is_gone_is_named_as_the_reason(built: Any) -> None:
    (built.folder / "helper.py").unlink()
    (gone,) = built.build(compile=False).results
    assert (gone.status, gone.reason) == ("missing", "helper is gone")
    built.write("helper.py", HELPER)
    built.store.path("ac", built.key).unlink()
    (result,) = built.build(compile=False).results
    assert (result.status, result.reason) == ("missing", "the store no longer has its record")


# ---- keys

SPEC = """
schema: 1
kernels:
  - name: k
    entry: kernel.py:run
    targets: [sm_90a]
    args: {x: "f32[8, 128]"}
    static: {n: 3, config: {$call: "sub/made.py:make", z: {$ref: "jax.numpy:float32"}}}
"""


def test_all_entry_points_of_a_variant_and_their_folders_are_known(tmp_path: Path) -> None:
    for name in ("kernel.py", "sub/made.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("def run(x): pass\ndef make(): pass\n")
    (variant,) = expand(parse_yaml(SPEC, base_dir=tmp_path))
    names = ["kernel.py:run", "sub/made.py:make", "jax.numpy:float32"]
    assert [str(entry) for entry in named_entries(variant)] == names
    base = tmp_path.resolve()
    assert place_of(variant).folders == (str(base), str(base / "sub"))
    context = Context({"ptxas": "1", "python": "3"}, {"XLA_FLAGS": "--a"}, FileDigests())
    short = short_fields({**request_fields(variant, context), "long": "x" * 1000})
    assert short["entry"] == '"kernel.py:run"'
    assert (short["long"][:7], len(short["long"])) == ("sha256:", 71)


def test_a_changed_source_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    digests = FileDigests()
    digest = digests.digest(tmp_path / "a.py")
    sources = CurrentSources(Place(str(tmp_path), (str(tmp_path),)), digests)
    for sentence, manifest in {
        None: Manifest(files={"file:a.py": digest, "module:a": digest}),
        "a.py has changed": Manifest(files={"file:a.py": "0"}),
        "b is gone": Manifest(files={"module:b": digest}),
        "nope: not here": Manifest(packages={"nope": "0"}),
    }.items():
        change = sources.first_change(manifest)
        assert (change and change.sentence) == sentence
