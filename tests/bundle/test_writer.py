"""Writing bundles: the same items give the same bytes, in one step or not at all."""

import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_bundles import make_artifact, make_items
from msgspec.structs import replace

from pallasc.errors import CorruptError, SpecError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.verify import verify
from pallasc.specs.bundle.writer import build_bundle
from pallasc.specs.user_files import replace_file

VARIANTS = st.lists(
    st.tuples(
        st.sampled_from(["norm", "scale", "ä"]),
        st.integers(1, 6),
        st.sampled_from(["h100-sxm", "h200", "b200", "a100-sxm"]),
        st.sampled_from([b"", b"constant" * 50]),
    ),
    max_size=12,
    unique_by=lambda variant: variant[:3],
)


@settings(max_examples=40)
@given(VARIANTS, st.booleans(), st.booleans(), st.randoms(use_true_random=False))
def test_what_goes_in_comes_out(
    variants: list[tuple[str, int, str, bytes]], debug: bool, ptx: bool, rng: random.Random
) -> None:
    items = []
    artifacts = {}
    for name, m, target, constant in variants:
        artifact = make_artifact(m, target=target, shape=(m, 8), constant=constant)
        artifacts[name, m, target] = artifact
        items.append(Item(name, {"m": m}, artifact))
    data = build_bundle(items, keep_debug=debug, keep_ptx=ptx, level=3)
    rng.shuffle(items)
    assert build_bundle(items, keep_debug=debug, keep_ptx=ptx, level=3) == data
    bundle = open_bundle(data)
    verify(bundle)
    assert not list(bundle.entries("x"))
    entries = {(e.name, dict(e.params)["m"], e.target): e for e in bundle.entries()}
    assert bundle.names() == sorted({name for name, *_ in variants}, key=str.encode)
    assert len(bundle) == len(variants)
    for key, artifact in artifacts.items():
        entry = entries[key]
        shipped = bundle.artifact(entry)
        assert entry.digest == artifact.digest
        assert shipped.plan.inputs == artifact.plan.inputs
        assert (shipped.digest == artifact.digest) == (debug and ptx)
        assert shipped.ptx() == (artifact.ptx() if ptx else "")
        assert (shipped.cubin() == artifact.cubin()) == debug


def test_a_kernel_for_batches_is_kept_and_copies_must_agree_on_it() -> None:
    artifact = make_artifact(1)
    plain, named = (Item("one", {}, artifact, vmap=vmap) for vmap in (None, "a"))
    data = build_bundle([named, named])
    assert data != build_bundle([plain])
    with open_bundle(data) as bundle:
        verify(bundle)
        (entry,) = bundle.entries()
        assert (entry.vmap, entry.digest) == ("a", artifact.digest)
        assert build_bundle(bundle.items()) == data
    with pytest.raises(SpecError, match="copies of one@h100-sxm have different vmap"):
        build_bundle([named, plain])


def test_two_artifacts_of_one_variant_are_refused() -> None:
    items = [Item("scale", {"m": 1}, make_artifact(seed)) for seed in (1, 2)]
    with pytest.raises(CorruptError, match=r"two artifacts of scale\[m=1\]@h100-sxm") as caught:
        build_bundle(items)
    assert caught.value.exit_code == 5


def test_the_level_changes_the_bytes_and_not_the_content() -> None:
    items = make_items(4)
    low, other = build_bundle(items, level=1), build_bundle(items, level=22)
    assert open_bundle(low).digest == open_bundle(other).digest
    assert (open_bundle(low).codec["level"], open_bundle(other).codec["level"]) == (1, 22)


def test_variants_that_are_alike_take_little_room() -> None:
    items = make_items(20)
    raw = sum(len(item.artifact.cubin()) for item in items)
    bundle = open_bundle(build_bundle(items))
    rows = [bundle.reader.row(number) for number in range(bundle.reader.catalog.blobs)]
    assert sum(row.extent.size for row in rows if row.kind == 1) < 0.2 * raw


def test_a_file_is_there_whole_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, link = tmp_path / "new" / "k.pallasc", tmp_path / "link"
    replace_file(path, b"one")
    path.chmod(0o640)
    link.symlink_to(path)
    replace_file(link, b"two")
    assert link.is_symlink()
    assert (path.stat().st_mode & 0o777, path.read_bytes()) == (0o640, b"two")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(SpecError, match="cannot be written: No space left"):
        replace_file(path, b"three")
    assert path.read_bytes() == b"two"
    assert os.listdir(path.parent) == [path.name]
    with pytest.raises(SpecError, match=r"b\.pallasc cannot be written: "):
        replace_file(path / "b.pallasc", b"")


def test_a_damaged_artifact_is_refused() -> None:
    (item,) = make_items(1)
    with pytest.raises(CorruptError):
        build_bundle([replace(item, artifact=Artifact(item.artifact.record, lambda _: b"no"))])
    record = {**item.artifact.record, "kernels": [{"name": "k"}]}
    with pytest.raises(CorruptError, match=r"record is damaged: .*kernels\[0\]"):
        build_bundle([replace(item, artifact=Artifact(record, item.artifact.blob))])


def test_an_earlier_bundle_may_have_left_out_ptx_but_nothing_else() -> None:
    artifact = make_artifact(1)
    (kernel,), item = artifact.kernels, Item("scale", {}, artifact)
    without = replace(item, read=lambda key: None if key == kernel.ptx else artifact.blob(key))
    bundle = open_bundle(build_bundle([without], keep_debug=True, keep_ptx=True))
    assert list(bundle.shipped(next(bundle.entries())).values()).count(None) == 1
    with pytest.raises(CorruptError, match=r"scale: .* is missing"):
        build_bundle([replace(item, read=lambda key: None)])
