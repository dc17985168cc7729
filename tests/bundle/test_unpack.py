"""Files out of bundles: complete, never over others, never outside of the folder."""

import json
from pathlib import Path

import pytest
from made_bundles import make_artifact, make_items

from pallasc.cli.output.artifact_text import safe_names, unpack
from pallasc.errors import SpecError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.bundle.bundle import Bundle, open_bundle
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.writer import build_bundle


def _open(items: list[Item], **options: bool) -> Bundle:
    return open_bundle(build_bundle(items, **options))


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_nothing_is_written_where_one_folder_or_link_is_there(tmp_path: Path) -> None:
    bundle = _open(make_items(2))
    last = tmp_path / "scale[m=32,dtype=bf16]@h100-sxm" / "plan.json"
    last.parent.mkdir()
    last.write_text("mine")
    with pytest.raises(SpecError, match=r"@h100-sxm already exists\.") as caught:
        unpack(bundle, bundle.entries(), tmp_path)
    assert caught.value.hint == "Remove it, or give another folder."
    assert _files(tmp_path) == [f"{last.parent.name}/plan.json"]
    assert last.read_text() == "mine"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    link = tmp_path / "out" / last.parent.name
    for place in ("elsewhere", "nowhere"):
        link.unlink(missing_ok=True)
        link.symlink_to(tmp_path / place)
        with pytest.raises(SpecError, match="already exists"):
            unpack(bundle, bundle.entries(), tmp_path / "out")
    assert _files(tmp_path / "elsewhere") == []
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("name", ["../../escape", "/etc/escape", "..", "-rf", "ä", "x" * 5000])
def test_names_of_strangers_stay_inside(tmp_path: Path, name: str) -> None:
    artifact = make_artifact(1)
    record = json.loads(json.dumps(artifact.record).replace('"k"', '"../../k"'))
    items = [
        Item(name, {}, Artifact(record, artifact.blob)),
        Item("k", {"p": f"{name}/../../{name}"}, make_artifact(2)),
    ]
    bundle = _open(items)
    outside = tmp_path / "outside"
    written = unpack(bundle, bundle.entries(), outside / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside"]
    assert sorted(path.name for path in outside.iterdir()) == ["out"]
    assert len(_files(outside / "out")) == len(written) == 6
    for path in (outside / "out").iterdir():
        assert path.name.isascii()
        assert path.name[0] not in ".-"


def test_safe_names_are_distinct_whatever_the_case(tmp_path: Path) -> None:
    names = ["K", "k", "a/b", "a_b", "a?b", "", "..", "long" * 100, "long" * 101]
    safe = safe_names(names)
    assert safe["K"] == "K"
    assert safe["a_b"] == "a_b"
    assert len({name.lower() for name in safe.values()}) == len(names)
    assert all(0 < len(name.encode()) < 200 and "/" not in name for name in safe.values())
    assert safe_names(reversed(names)) == safe


def test_more_than_the_limit_is_not_begun(tmp_path: Path) -> None:
    """Many variants that share one compressed blob: a bundle of kilobytes, files of gigabytes."""
    zeros = make_artifact(1, constant=bytes(1 << 20))
    data = build_bundle([Item("k", {"m": m}, zeros) for m in range(130)])
    assert len(data) < 64 << 10
    bundle = open_bundle(data)
    out = tmp_path / "out"
    with pytest.raises(SpecError, match=r"the first \d+ of 130 variants take more than") as caught:
        unpack(bundle, bundle.entries(), out, most_bytes=100 << 20)
    assert "--max-size" in str(caught.value.hint)
    assert not out.exists()
    few = list(bundle.entries())[:2]
    assert len(unpack(bundle, few, out, most_bytes=100 << 20)) == 8
    assert len(unpack(bundle, few, tmp_path / "any", most_bytes=None)) == 8
