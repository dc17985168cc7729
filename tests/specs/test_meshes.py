"""Kernels over several devices, as specs declare them."""

from __future__ import annotations

import json

import pytest

from pallasc.errors import SpecError
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import parse_yaml
from pallasc.specs.spec import checked_mesh

SPEC = """\
schema: 1
targets: [sm_90a]
kernels:
  - name: k
    entry: json:loads
    args: {x: "f32[8]"}
"""


def _spec(*lines: str) -> str:
    return SPEC + "".join(f"    {line}\n" for line in lines)


def test_a_mesh_can_have_the_size_that_a_parameter_gives() -> None:
    variants = expand(parse_yaml(_spec('mesh: {x: "{n}", y: 2}', "matrix: {n: [1, 4]}")))
    assert [variant.mesh for variant in variants] == [(("x", n), ("y", 2)) for n in (1, 4)]
    assert variants[0].request()["mesh"] == [["x", 1], ["y", 2]]


def test_the_order_of_axes_and_their_sizes_are_part_of_a_request() -> None:
    requests = [
        json.dumps(expand(parse_yaml(_spec(line)))[0].request())
        for line in ("", "mesh: {x: 2, y: 4}", "mesh: {y: 4, x: 2}", "mesh: {x: 4, y: 2}")
    ]
    assert len(set(requests)) == 4
    assert "mesh" not in json.loads(requests[0])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("mesh: {x: 1}", "k.mesh: a mesh of 1 devices."),
        ("mesh: {x: 16, y: 32}", "k.mesh: a mesh of 512 devices."),
        ("mesh: {x: 0}", "k.mesh.x: expected a whole number of at least 1, got 0."),
        ("mesh: {1st: 2}", "k.mesh.1st: expected the name of an axis, got '1st'."),
        ("mesh: {}", "k.mesh: the mapping of axes is empty."),
        ('mesh: {x: "{n}"}', "k.mesh.x: unknown parameter 'n' in '{n}'."),
    ],
)
def test_a_mesh_that_is_none_is_refused_at_its_place(line: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        expand(parse_yaml(_spec(line)))
    assert caught.value.message == words
    assert caught.value.location is not None
    assert caught.value.location.line == 7


def test_a_mesh_given_in_python_is_checked_the_same() -> None:
    assert checked_mesh(None) == checked_mesh({}) == ()
    assert checked_mesh({"x": 2, "y": 1}) == (("x", 2), ("y", 1))
    for wrong in ({"x": "2"}, {"x": True}, {"a b": 2}, {"x": 0}, {"x": 1}, {"x": 257}):
        with pytest.raises(SpecError):
            checked_mesh(wrong)  # type: ignore[arg-type]
