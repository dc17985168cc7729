"""The reasons for misses, damaged stores, and what is not portable."""

from pathlib import Path
from typing import Any

import pytest

from pallasc.cache.manifests import Manifest
from pallasc.cache.stat_digest import FileDigests
from pallasc.compiler.inputs.manifest import why_not_portable
from pallasc.compiler.inputs.sources import CurrentSources
from pallasc.compiler.toolchain.modules import Place

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


# ---- keys


def test_a_changed_source_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    digests = FileDigests()
    digest = digests.digest(tmp_path / "a.py")
    sources = CurrentSources(Place(str(tmp_path), (str(tmp_path),)), digests)
    for sentence, manifest in {
        None: Manifest(files={"file:a.py": digest, "module:a": digest}),
        "a.py has changed": Manifest(files={"file:a.py": "0"}),
        "b is gone": Manifest(files={"module:b": digest}),
        "nope is gone": Manifest(packages={"nope": "0"}),
    }.items():
        change = sources.first_change(manifest)
        assert (change and change.sentence) == sentence


def test_what_depends_on_paths_of_a_machine_stays_there() -> None:
    outside = "outside the folder of its spec"
    for manifest, why in (
        (Manifest(files={"file:kernel.py": "0", "file:../lib/a.py": "0", "module:x": "0"}), ""),
        (Manifest(opened={"file:tiles.json": "0", "site:x/y.json": "0", "is:site:x": "0"}), ""),
        (Manifest(opened={"is:/etc/hostname": "file", "is:/proc/self": "folder"}), ""),
        (
            Manifest(files={"file:/home/me/kernel.py": "0"}),
            "its spec names /home/me/kernel.py by an absolute path",
        ),
        (Manifest(opened={"file:/etc/tiles": "0"}), f"it reads /etc/tiles, {outside}"),
        (Manifest(opened={"folder:a": "0", "folder:/data": None}), f"it reads /data, {outside}"),
        (Manifest(opened={"link:/data/now": "0"}), f"it reads /data/now, {outside}"),
        (Manifest(opened={"is:/data/now": None}), f"it tests for /data/now, {outside}"),
    ):
        assert why_not_portable(manifest) == why
