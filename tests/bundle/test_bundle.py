"""Bundles as their users see them: names, entries, selection, artifacts, parts and merges."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from made_bundles import make_artifact, make_items
from msgspec.structs import replace
from taken_apart import Parts

from pallasc.errors import CorruptError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.bundle.bundle import Bundle, open_bundle
from pallasc.specs.bundle.format import Kind
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.verify import verify
from pallasc.specs.bundle.writer import build_bundle
from pallasc.specs.canonical import canonical_json, digest

NAMES = ("add", "matmul", "norm")
TARGETS = ("a100-sxm", "b200", "h100-sxm", "h200")


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return open_bundle(build_bundle(make_items(30, names=NAMES, targets=TARGETS)))


def test_entries_come_in_order_and_by_name(bundle: Bundle) -> None:
    every = list(bundle.entries())
    assert [entry.key for entry in every] == sorted(entry.key for entry in every)
    for name in (*NAMES, "no", "mat", "matmulx"):
        assert list(bundle.entries(name)) == [entry for entry in every if entry.name == name]


def test_the_artifact_is_what_was_compiled_without_debug_sections(bundle: Bundle) -> None:
    (entry,) = (e for e in bundle.entries() if e.id == "matmul[m=16,dtype=bf16]@b200")
    original = make_artifact(1000, target="b200", shape=(16, 32))
    artifact = bundle.artifact(entry)
    assert [str(array) for array in entry.inputs] == ["x: bf16[16, 32]"]
    assert entry.minimum_driver == {"cuda": "13.0", "linux": "580.65.06"}
    assert (entry.digest, bundle.record(entry)) == (original.digest, original.record)
    assert artifact.plan.inputs == original.plan.inputs
    assert artifact.target == original.target
    assert artifact.kernels == (
        replace(original.kernels[0], cubin=digest(artifact.cubin()), ptx=None),
    )
    assert list(artifact.blobs()) == [digest(artifact.cubin())]


ENTRY_EDITS: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (lambda about: about.update(arch="sm_80"), "disagree"),
    (lambda about: about.update(driver={"cuda": "12.0", "linux": "525"}), "disagree"),
    (lambda about: about.update(driver={}), "disagree"),
    (lambda about: about.update(inputs=[]), "disagree"),
    (lambda about: about["outputs"][0].__setitem__(1, "f32"), "disagree"),
    (lambda about: about.update(record=11), "do not match its artifact"),
    (lambda about: about.update(record=20), "which is not its record"),
    (lambda about: about.update(record=5000), "names blob 5000, but has only 24 blobs"),
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


def test_a_name_that_a_terminal_would_obey_is_refused(rebuilt: Callable[..., Bundle]) -> None:
    def rename(parts: Parts) -> None:
        parts.entry_pages[0] = parts.entry_pages[0].replace(b"norm\0", b"n\x1b[m\0")
        parts.first_keys[0] = parts.first_keys[0].replace(b"norm\0", b"n\x1b[m\0")

    bundle = rebuilt(rename)
    for call in (bundle.names, lambda: verify(bundle), lambda: list(bundle.entries())):
        with pytest.raises(CorruptError, match=r"name (that is not allowed|of a kernel)") as caught:
            call()
        assert "\x1b" not in str(caught.value)


# ---- parts and merges


def _merge(bundles: Sequence[Bundle]) -> bytes:
    items = (item for bundle in bundles for item in bundle.items())
    origins = [origin for bundle in bundles for origin in bundle.provenance]
    return build_bundle(items, provenance=origins)


def test_of_one_artifact_the_richer_one_is_taken() -> None:
    items = make_items(3)
    rich = open_bundle(build_bundle(items, keep_debug=True, keep_ptx=True))
    poor = open_bundle(build_bundle(items))
    for order in ((rich, poor), (poor, rich)):
        assert _merge(order) == build_bundle(items, keep_debug=True, keep_ptx=True)


# ---- forged records

RECORDED = make_artifact(1, constant=b"numbers")


def _forged(record: Any) -> Artifact:
    """Return the artifact of a bundle whose record is another, and all digests fit."""
    parts = Parts.of(build_bundle([Item("k", {}, RECORDED)], keep_debug=True, keep_ptx=True))
    number = [row.kind for row in parts.rows].index(Kind.RECORD)
    parts.contents()
    parts.set_content(number, canonical_json(record))
    bundle = open_bundle(parts.data())
    return bundle.artifact(next(bundle.entries()))


def test_a_record_with_unknown_spills_is_taken() -> None:
    record = json.loads(canonical_json(RECORDED.record))
    record["kernels"][0]["spill_load_bytes"] = None
    assert _forged(record).kernels[0].spill_bytes is None
    assert _forged(RECORDED.record).blobs() == RECORDED.blobs()


CHANGES: list[tuple[tuple[str | int, ...], Any]] = [
    (("schema",), 2), (("schema",), None), (("target",), []), (("target", "name"), 5),
    (("target", "sm_count"), "132"), (("target", "sm_count"), 0), (("toolchain",), []),
    (("minimum_driver",), {"cuda": 13}), (("minimum_driver",), [1]), (("blobs",), []),
    (("blobs",), {}), (("blobs", "0" * 64), 5), (("kernels",), 5),
    (("kernels", 0), {}), (("kernels", 0, "registers"), "40"), (("kernels", 0, "registers"), -1),
    (("kernels", 0, "registers"), True), (("kernels", 0, "ptx"), 5), (("kernels", 0, "cubin"), []),
    (("kernels", 0, "ptx"), None),
    (("kernels", 0, "spill_load_bytes"), 1.5), (("plan",), None), (("plan", "inputs"), 5),
    (("plan", "inputs", 0, "shape"), [[]]), (("plan", "outputs", 0, "path"), None),
    (("plan", "steps"), 5), (("plan", "steps", 0), []), (("plan", "steps", 0, "cubin"), {}),
    (("plan", "buffers"), None), (("plan", "buffers", 0), 5), (("plan", "steps"), [{}]),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), CHANGES)
def test_a_record_with_another_field_is_refused(path: tuple[str | int, ...], value: Any) -> None:
    record = holder = json.loads(canonical_json(RECORDED.record))
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    with pytest.raises(CorruptError, match=r"^the bundle is damaged: "):
        _forged(record)
