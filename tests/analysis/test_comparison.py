"""Two sides compared: nothing where they are equal, each difference where it belongs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pallasc.analysis.compare import DEPTHS, Change, Comparison, Difference, Pair, compare
from pallasc.analysis.sides import Side, side_of, subject_of
from pallasc.specs.artifacts.artifact import Artifact


def side(artifacts: Mapping[str, Artifact]) -> Side:
    return side_of("side", [subject_of(each, name, ()) for name, each in artifacts.items()])


def refusing(cubins: Mapping[str, bytes]) -> Any:
    assert cubins == {}, "equal code must not be disassembled"
    return {}


def patched(artifact: Artifact, change: Any) -> Artifact:
    """Return an artifact whose first cubin has other machine code."""
    from pallasc.specs.artifacts.cubin import parse_elf
    from pallasc.specs.canonical import digest

    kernel = artifact.kernels[0]
    cubin = artifact.blob(kernel.cubin)
    section = parse_elf(cubin).section(f".text.{kernel.name}")
    assert section is not None
    code = change(section.content)
    other = cubin.replace(section.content, code)
    assert len(other) == len(cubin) and other != cubin  # noqa: PT018
    key = digest(other)
    text = repr(dict(artifact.record)).replace(kernel.cubin, key)
    blobs = {**artifact.blobs(), key: other}
    return Artifact(eval(text), blobs.__getitem__)


def test_a_comparison_with_itself_is_empty_and_disassembles_nothing(
    artifacts: Mapping[str, Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pallasc.analysis.compare.disassemble_all", refusing)
    for depth in DEPTHS:
        found = compare(side(artifacts), side(artifacts), depth=depth)
        assert not found
        assert (found.same, found.differing) == (len(artifacts), ())
    first = side({name: artifacts[name] for name in ("add", "softmax")})
    second = side({name: artifacts[name] for name in ("softmax", "hopper_matmul")})
    found = compare(first, second)
    assert found
    assert found.same == 1
    assert [each.name for each in found.only_first] == ["add"]
    assert [each.name for each in found.only_second] == ["hopper_matmul"]


def other_stalls(code: bytes) -> bytes:
    """Return code whose first instruction stalls for longer: bits 105 to 108."""
    return code[:13] + bytes([code[13] ^ 0x02]) + code[14:]


def test_scheduling_alone_is_a_difference_in_bytes_and_raw_and_none_in_sass(
    artifacts: Mapping[str, Artifact],
) -> None:
    first = {"add": artifacts["add"]}
    second = {"add": patched(artifacts["add"], other_stalls)}

    def at(depth: str) -> Comparison:
        return compare(side(first), side(second), depth=depth)

    (bytes_alone,) = at("resources").differing
    assert (bytes_alone.numbers, bytes_alone.plan) == ((), False)
    assert bytes_alone.kernels[0].code is None
    assert not at("mix")
    assert not at("sass")
    (raw,) = at("raw").differing
    assert raw.kernels[0].code is not None
    assert raw.kernels[0].code.verdict == "renamed"
    changed = [line for line in raw.kernels[0].hunks if line[0] in "+-"]
    assert len(changed) == 2
    assert changed[0][8:] == changed[1][8:]


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ([("registers", 8, 9)], "worse"),
        ([("registers", 9, 8)], "better"),
        ([("occupancy", 8, 16)], "better"),
        ([("occupancy", 16, 8), ("spill_bytes", 0, 4)], "worse"),
        ([("registers", 9, 8), ("cubin_bytes", 100, 200)], "mixed"),
        ([], ""),
    ],
)
def test_fewer_is_better_but_of_occupancy(changes: list[Any], verdict: str) -> None:
    numbers = tuple(Change(*each) for each in changes)
    assert Difference(Pair(None, None), numbers).verdict == verdict


def test_a_subject_without_artifact_is_compared_by_its_resources(
    artifacts: Mapping[str, Artifact],
) -> None:
    (subject,) = side({"add": artifacts["add"]}).variants.values()
    before = replace(
        subject,
        artifact=None,
        digest="0" * 64,
        resources=subject.resources._replace(registers=1, spill_bytes=None),
    )
    found = compare(side_of("lock", [before]), side_of("now", [subject]), depth="sass")
    (difference,) = found.differing
    assert [change.field for change in difference.numbers] == ["registers"]
    assert difference.kernels == ()
