"""Bundles as their users see them: names, entries, selection, artifacts."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_bundles import make_artifact, make_items
from taken_apart import Parts

from pallasc.cli.list import stored_bytes
from pallasc.errors import CorruptError, SelectionError
from pallasc.specs.bundle.bundle import Bundle, open_bundle
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.verify import verify
from pallasc.specs.bundle.writer import build_bundle
from pallasc.specs.canonical import digest

NAMES = ("add", "matmul", "norm")
TARGETS = ("a100-sxm", "b200", "h100-sxm", "h200")


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return open_bundle(build_bundle(make_items(30, names=NAMES, targets=TARGETS)))


def test_names_are_found_without_reading_every_entry(bundle: Bundle) -> None:
    assert bundle.names() == list(NAMES)
    assert len(bundle) == 360
    assert repr(bundle) == "<Bundle the bundle of 360 variants>"


def test_entries_come_in_order_and_by_name_target_and_architecture(bundle: Bundle) -> None:
    every = list(bundle.entries())
    assert [entry.key for entry in every] == sorted(entry.key for entry in every)
    for name in (None, *NAMES, "no", "mat", "matmulx"):
        for target in (None, *TARGETS, "thor"):
            for arch in (None, "sm_90a", "sm_80"):
                expected = [
                    entry.id
                    for entry in every
                    if name in (None, entry.name)
                    and target in (None, entry.target)
                    and arch in (None, entry.arch)
                ]
                found = [entry.id for entry in bundle.entries(name, target=target, arch=arch)]
                assert found == expected


def test_a_variant_is_selected_by_all_its_parameters_in_any_order(bundle: Bundle) -> None:
    entry = bundle.select("norm", {"dtype": "bf16", "m": 32}, "h200")
    assert entry.id == "norm[m=32,dtype=bf16]@h200"
    assert [str(array) for array in entry.inputs] == ["x: bf16[32, 32]"]
    assert bundle.find("norm", {"m": 32}, "h200") is None
    assert bundle.find("norm", {"dtype": "bf16", "m": 32.0}, "h200") is None


def test_an_architecture_stands_for_its_default_model(bundle: Bundle) -> None:
    assert bundle.select("norm", {"m": 32, "dtype": "bf16"}, "sm_90a").target == "h100-sxm"
    with pytest.raises(SelectionError):
        bundle.select("norm", {"m": 32, "dtype": "bf16"}, "sm_120a")


def test_what_is_not_there_is_refused(bundle: Bundle) -> None:
    with pytest.raises(SelectionError, match=r"no variant norm\[m=33,dtype=bf16\]@h200"):
        bundle.select("norm", {"m": 33, "dtype": "bf16"}, "h200")


def test_the_artifact_is_what_was_compiled_without_debug_sections(bundle: Bundle) -> None:
    entry = bundle.select("matmul", {"m": 16, "dtype": "bf16"}, "b200")
    original = make_artifact(1000, target="b200", shape=(16, 32))
    artifact = bundle.artifact(entry)
    assert entry.digest == original.digest
    assert artifact.plan.inputs == original.plan.inputs
    assert artifact.target == original.target
    assert artifact.kernels == (
        replace(original.kernels[0], cubin=digest(artifact.cubin()), ptx=None),
    )
    assert list(artifact.blobs()) == [digest(artifact.cubin())]


def test_files_and_bytes_read_the_same(tmp_path: Path, small: bytes) -> None:
    path = tmp_path / "k.pallasc"
    path.write_bytes(small)
    with open_bundle(path) as first, open_bundle(small) as other:
        assert list(first.entries()) == list(other.entries())
        assert (first.digest, first.root, first.size) == (other.digest, other.root, other.size)
        assert first.name == str(path)


def test_the_bytes_of_a_variant_are_known(bundle: Bundle) -> None:
    entry = next(bundle.entries("norm"))
    numbers = [entry.record, *(number for number in entry.blobs if number is not None)]
    assert len(numbers) == 2
    sizes = [bundle.reader.row(number).extent.size for number in numbers]
    assert stored_bytes(bundle, entry) == sum(sizes)


def test_items_make_the_same_bundle_again(small: bytes) -> None:
    assert build_bundle(open_bundle(small).items()) == small


def test_items_of_some_entries_make_a_part_of_it(small: bytes) -> None:
    whole = open_bundle(small)
    part = build_bundle(whole.items(whole.entries("norm", target="b200")))
    fresh = make_items(3, names=("norm",), targets=("b200",))
    assert part == build_bundle(fresh)


ENTRY_EDITS: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (lambda about: about.update(arch="sm_80"), "disagree"),
    (lambda about: about.update(driver={"cuda": "12.0", "linux": "525"}), "disagree"),
    (lambda about: about.update(driver={}), "disagree"),
    (lambda about: about.update(inputs=[]), "disagree"),
    (lambda about: about["outputs"][0].__setitem__(1, "f32"), "disagree"),
    (lambda about: about.update(record=11), "do not match its artifact"),
    (lambda about: about.update(record=20), "which is not its record"),
    (lambda about: about.update(record=5000), "names blob 5000 of 24"),
    (lambda about: about.update(blobs=[]), "do not match its artifact"),
    (lambda about: about.update(blobs=[None, None]), "do not match its artifact"),
    (lambda about: about.update(blobs=[0, 0]), "do not match its artifact"),
    (lambda about: about.update(blobs=[9999, None]), "names blob 9999"),
]


@pytest.mark.parametrize(("change", "words"), ENTRY_EDITS)
def test_an_entry_that_does_not_fit_its_artifact_is_refused(
    rebuilt: Callable[..., Bundle], change: Callable[[dict[str, Any]], None], words: str
) -> None:
    bundle = rebuilt(lambda parts: parts.change_entry(0, change))
    with pytest.raises(CorruptError, match=words) as caught:
        bundle.artifact(next(bundle.entries()))
    assert caught.value.exit_code == 5
    assert str(caught.value).startswith("the bundle is damaged: ")


def test_another_cubin_of_the_same_kind_is_seen_by_its_content_digest(
    rebuilt: Callable[..., Bundle],
) -> None:
    def point_elsewhere(about: dict[str, Any]) -> None:
        about["blobs"] = [None if n is None else 12 + (n == 12) for n in about["blobs"]]

    bundle = rebuilt(lambda parts: parts.change_entry(0, point_elsewhere))
    with pytest.raises(CorruptError, match="does not match the digest of its content"):
        verify(bundle)


def test_a_replaced_blob_is_named(small: bytes) -> None:
    bundle = open_bundle(small)
    entry = next(bundle.entries("scale"))
    number = next(n for n in entry.blobs if n is not None)
    extent = bundle.reader.row(number).extent
    data = bytearray(small)
    data[extent.at : extent.end] = random.Random(3).randbytes(extent.size)
    artifact = open_bundle(bytes(data)).artifact(entry)
    with pytest.raises(CorruptError, match=rf"the bundle is damaged: blob {number}, cubin \w+,"):
        artifact.cubin()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda record: record.replace(b'"grid":[4,', b'"grid":[0,'), "the launch plan is damaged"),
        (lambda record: record.replace(b":", b": ", 1), "the record of .* is not canonical JSON"),
        (lambda record: bytes(2**24 + 1), "the record of .* has 16777217 bytes"),
    ],
)
def test_a_damaged_record_is_named_with_the_file(
    rebuilt: Callable[..., Bundle], change: Callable[[bytes], bytes], words: str
) -> None:
    bundle = rebuilt(lambda parts: parts.set_content(0, change(parts.contents()[0])))
    entry = next(entry for entry in bundle.entries() if entry.record == 0)
    with pytest.raises(CorruptError, match=f"^the bundle is damaged: {words}"):
        bundle.artifact(entry)


def test_constants_ship_as_they_are() -> None:
    constant = random.Random(1).randbytes(300)
    original = make_artifact(1, constant=constant)
    bundle = open_bundle(build_bundle([Item("table", {}, original)]))
    artifact = bundle.artifact(bundle.select("table", {}, "sm_90a"))
    assert artifact.blob(digest(constant)) == constant


def test_a_name_that_a_terminal_would_obey_is_refused(rebuilt: Callable[..., Bundle]) -> None:
    def rename(parts: Parts) -> None:
        parts.entry_pages[0] = parts.entry_pages[0].replace(b"norm\0", b"n\x1b[m\0")
        parts.first_keys[0] = parts.first_keys[0].replace(b"norm\0", b"n\x1b[m\0")

    bundle = rebuilt(rename)
    for call in (bundle.names, lambda: verify(bundle), lambda: list(bundle.entries())):
        with pytest.raises(CorruptError, match="name of") as caught:
            call()
        assert "\x1b" not in str(caught.value)
