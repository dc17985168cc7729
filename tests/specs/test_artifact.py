"""The artifact and the record of source lines: what comes back, and what is refused."""

import copy
import json
from typing import Any

import pytest
from msgspec import Raw, structs
from msgspec.structs import asdict

from pallasc.errors import CorruptError
from pallasc.specs.artifacts.artifact import Artifact, KernelResources, Resources
from pallasc.specs.artifacts.source_lines import (
    Frame,
    KernelLines,
    SharedMemory,
    SourceFile,
    SourceLines,
    from_json,
    to_json,
)
from pallasc.specs.canonical import canonical_json, digest
from pallasc.specs.gpus import MODELS

CUBIN, PTX, CONSTANT = b"cubin", b".version 9.0\n", b"\1\2\3\4"
BLOBS = {digest(data): data for data in (CUBIN, PTX, CONSTANT)}
MOSAIC = KernelResources("k", digest(CUBIN), digest(PTX), "mosaic", 40, 16, 8, 4, 512, 1024, 2)
XLA = KernelResources("f", digest(CUBIN), None, "xla", 12, 64, None, None, 0, 0, 1)
RECORD: dict[str, Any] = {
    "schema": 1,
    "target": asdict(MODELS["h100-sxm"]),
    "toolchain": {"ptxas": "13.5.37"},
    "minimum_driver": {"cuda": "13.0", "linux": "580.65.06"},
    "plan": {
        "buffers": [
            {"role": "output", "size": 4, "alignment": 256, "digest": None},
            {"role": "constant", "size": 4, "alignment": 256, "digest": digest(CONSTANT)},
        ],
        "inputs": [],
        "outputs": [{"path": "out", "dtype": "f32", "shape": [], "buffer": 0}],
        "steps": [
            {"kind": "copy", "source": 1, "source_offset": 0, "target": 0, "target_offset": 0,
             "size": 4},
            {"kind": "launch", "kernel": "k", "cubin": digest(CUBIN), "grid": [1, 1, 1],
             "cluster": None, "block": [128, 1, 1], "dynamic_smem_bytes": 0, "pdl": False,
             "parameters": [], "origin": "mosaic", "label": ""},
        ],
        "input_tree": {},
        "output_tree": 0,
    },
    "kernels": [structs.asdict(MOSAIC), structs.asdict(XLA)],
    "blobs": {key: len(data) for key, data in BLOBS.items()},
}  # fmt: skip


def _artifact(**changes: Any) -> Artifact:
    record = {**copy.deepcopy(RECORD), **changes}
    return Artifact(record, BLOBS.__getitem__)


def test_the_digest_depends_on_nothing_but_the_content() -> None:
    other = dict(reversed(json.loads(json.dumps(RECORD)).items()))
    assert Artifact(other, BLOBS.__getitem__).digest == _artifact().digest
    assert _artifact(toolchain={"ptxas": "13.6.1"}).digest != _artifact().digest
    assert repr(_artifact()) == f"<Artifact {_artifact().digest[:12]} for h100-sxm>"


def test_a_kernel_or_blob_that_is_not_there_is_refused() -> None:
    with pytest.raises(CorruptError, match="the artifact has no kernel g"):
        _artifact().cubin("g")
    with pytest.raises(CorruptError, match="names no blob abc"):
        _artifact().blob("abc")


def test_a_blob_with_other_bytes_is_refused() -> None:
    artifact = Artifact(RECORD, lambda _: b"other")
    with pytest.raises(CorruptError, match="does not match its digest"):
        artifact.cubin()


@pytest.mark.parametrize("name", ["plan", "kernels", "cubin_bytes"])
def test_what_the_record_uses_must_be_among_its_blobs(name: str) -> None:
    with pytest.raises(CorruptError, match="the artifact names no blob"):
        getattr(_artifact(blobs={}), name)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({}, "artifact schema None instead of 1"),
        ({**RECORD, "schema": 2}, "artifact schema 2 instead of 1"),
        ({k: v for k, v in RECORD.items() if k not in ("plan", "blobs")}, "missing required field"),
        ([], "artifact schema None instead of 1"),
        ({**RECORD, "blobs": []}, r"Expected `object`, got `array` - at `\$.blobs`"),
    ],
)
def test_a_record_of_another_kind_is_refused(record: Any, words: str) -> None:
    with pytest.raises(CorruptError, match=words):
        Artifact(record, BLOBS.__getitem__)


@pytest.mark.parametrize(
    ("part", "damage", "words"),
    [
        ("kernels", [{"name": "k"}], r"missing required field `cubin` - at `\$.kernels\[0\]`"),
        ("kernels", [3], r"Expected `object`, got `int` - at `\$.kernels\[0\]`"),
        ("plan", {"buffers": 3}, r"missing required field `steps` - at `\$.plan`"),
        ("plan", {"buffers": 3, "steps": []}, "the launch plan is damaged"),
    ],
)
def test_a_damaged_part_is_refused(part: str, damage: Any, words: str) -> None:
    with pytest.raises(CorruptError, match=words):
        getattr(_artifact(**{part: damage}), part)


def test_what_launches_take_needs_neither_the_whole_plan_nor_a_deferred_record() -> None:
    text = Raw(canonical_json(RECORD))
    launched = Artifact(text, lambda key: b"", lambda: pytest.fail("the record was read again"))
    assert launched.resources == Resources(40, None, 64, 1536, 48, 5)
    assert launched.digest == _artifact().digest


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"schema":2}', "artifact schema 2 instead of 1"),
        (b'{"schema":1}', "missing required field `target`"),
        (b'{"schema":1e999}', "artifact schema None"),
        (b"[" * 100_000, "artifact schema None"),
        (b"[]", "artifact schema None"),
    ],
)
def test_a_damaged_text_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(CorruptError, match=reason):
        Artifact(Raw(text), lambda key: b"")


@pytest.mark.parametrize("field", ["kernel", "cubin", "block", "dynamic_smem_bytes"])
def test_a_launch_without_a_part_is_refused(field: str) -> None:
    plan = copy.deepcopy(RECORD["plan"])
    del plan["steps"][1][field]
    with pytest.raises(CorruptError, match="is damaged: a launch lacks its kernel, cubin, block"):
        _artifact(plan=plan)


@pytest.mark.parametrize(
    ("field", "value"),
    [("block", each) for each in ([128, "1", 1], [0, 1, 1], [128], None)]
    + [("kernel", []), ("cubin", 1)],
)
def test_a_damaged_launch_is_refused(field: str, value: object) -> None:
    plan = copy.deepcopy(RECORD["plan"])
    plan["steps"][1][field] = value
    with pytest.raises(CorruptError, match=rf"is damaged: .*{field}"):
        _artifact(plan=plan)


INNER, OUTER = Frame("k.py", 3, "outer.inner"), Frame("k.py", 9, "")
FILE = SourceFile("k.py", "spec", "a" * 64, {3: "three", 4: "four", 9: "nine"})
PART = SharedMemory("scratch", "a_smem", "f16[64, 64]", 8192, 0, 2)
KERNEL = KernelLines("k", "b" * 64, "c" * 64, (1, 1, 2, 0), (2, 1), (PART,))
LINES = SourceLines((KERNEL,), ((INNER, OUTER), (OUTER,)), (FILE,))


def test_a_record_comes_back() -> None:
    assert from_json(to_json(LINES)) == LINES
    assert json.loads(to_json(LINES))["stacks"][1] == [["k.py", 9, ""]]


def damaged(*path: Any, to: object) -> bytes:
    """Return the record with another value in a place."""
    body = json.loads(to_json(LINES))
    inner = body
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return json.dumps(body).encode()


@pytest.mark.parametrize(
    ("path", "to", "why"),
    [
        (("schema",), 1, r"not of schema 2: .*1 - at `\$.schema`"),
        (("files", 0, "place"), "/etc", r"'/etc' - at `\$.files\[0\].place`"),
        (("files", 0, "text"), [[3]], "Expected `object`, got `array`"),
        (("files", 0, "text"), {"3": "a\nb"}, "Expected `str` matching regex"),
        (("stacks", 0, 0, 0), "other.py", "lack the file 'other.py'"),
        (("stacks", 0, 0, 1), -1, "Expected `int` >= 0"),
        (("kernels", 0, "ptx_lines"), [2**70], r"at `\$.kernels\[0\].ptx_lines\[0\]`"),
        (("kernels", 0, "shared_memory", 0), {}, "missing required field `what`"),
    ],
)
def test_a_damaged_record_is_refused(path: Any, to: object, why: str) -> None:
    with pytest.raises(CorruptError, match=why):
        from_json(damaged(*path, to=to))
