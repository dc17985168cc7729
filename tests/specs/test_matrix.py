"""From specs to variants."""

import itertools
import json

import pytest
from msgspec.structs import asdict

from pallasc.errors import SpecError
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import parse_yaml
from pallasc.specs.spec import Tolerance, checked_mesh

HEAD = "schema: 1\ntargets: [sm_90a]\nkernels:\n"


def kernel(body: str, *, name: str = "k", args: str = '{x: "f32[{m}]"}') -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f'  - name: {name}\n    entry: "json:loads"\n    args: {args}\n{lines}'


def ids(text: str) -> list[str]:
    return [variant.id for variant in expand(parse_yaml(HEAD + text))]


def test_every_combination_on_every_target_in_order() -> None:
    body = "matrix: {m: [1, 2], n: [3, 4]}\ntargets: [h200, sm_80]"
    assert ids(kernel(body, args='{x: "f32[{m}, {n}]"}')) == [
        f"k[m={m},n={n}]@{target}"
        for m, n, target in itertools.product((1, 2), (3, 4), ("h200", "a100-sxm"))
    ]
    assert ids(kernel("", args="{}") + kernel("targets: [b200]", args="{}")) == [
        "k@h100-sxm", "k@b200",
    ]  # fmt: skip


def test_points_are_excluded_and_then_included_in_the_order_of_the_matrix() -> None:
    body = "matrix: {m: [1, 2], n: [3, 4]}\nexclude: [{m: 1}, {m: 2, n: 4}]"
    args = '{x: "f32[{m}, {n}]"}'
    assert ids(kernel(body, args=args)) == ["k[m=2,n=3]@h100-sxm"]
    body += "\ninclude: [{n: 9, m: 8}, {m: 1, n: 3}]"
    found = [f"k[m={m},n={n}]@h100-sxm" for m, n in ((2, 3), (8, 9), (1, 3))]
    assert ids(kernel(body, args=args)) == found
    assert ids(kernel("include: [{m: 1}]")) == ["k[m=1]@h100-sxm"]


def test_a_parameter_that_is_no_array_is_refused() -> None:
    with pytest.raises(SpecError, match=r"k\.args\.b: 8 is not an array\."):
        ids(kernel("matrix: {bias: [8]}", args='{b: "{bias}"}'))


def test_tolerance_and_budget_take_parameters() -> None:
    body = 'matrix: {m: [4]}\ntolerance: {rtol: "{m}"}\nbudget: {registers: "{m * 8}"}'
    (variant,) = expand(parse_yaml(HEAD + kernel(body)))
    assert variant.tolerance == Tolerance(rtol=4)
    assert variant.budget == {"registers": 32}


def test_values_that_look_alike_in_an_id_are_duplicates() -> None:
    with pytest.raises(SpecError, match=r"two variants have the id k\[v=1\]@h100-sxm\."):
        ids(kernel("matrix: {v: [1, '1']}\nstatic: {s: '{v}'}", args="{}"))


def test_the_order_of_kernels_and_keys_changes_no_request() -> None:
    body = ["matrix: {m: [1, 2], n: [3]}", 'static: {a: {p: "{m}", q: 2}, b: 3}']
    swapped = ['static: {b: 3, a: {q: 2, p: "{m}"}}', "matrix: {n: [3], m: [2, 1]}"]
    first = kernel("\n".join(body), args='{x: "f32[{n}]", y: "f32[{m}]"}')
    two = kernel("\n".join(swapped), args='{y: "f32[{m}]", x: "f32[{n}]"}')
    other = kernel("", name="other", args="{}")

    def requests(text: str) -> set[str]:
        return {repr(v.request()) for v in expand(parse_yaml(HEAD + text))}

    assert requests(first + other) == requests(other + two)


def test_a_check_takes_other_values_of_parameters_and_no_budget() -> None:
    body = (
        'matrix: {m: [4096, 8192], k: [2]}\ntolerance: {rtol: "{m}"}\nbudget: {registers: 8}\n'
        "check: {m: 16, $seed: 7}"
    )
    found = expand(parse_yaml(HEAD + kernel(body, args='{x: "f32[{m}, {k}]"}')))
    small = [variant.for_check() for variant in found]
    assert [variant.id for variant in small] == ["k[m=16,k=2]@h100-sxm"] * 2
    assert asdict(small[0]) == asdict(small[1])
    assert str(small[0].args["x"]) == "f32[16, 2]"  # type: ignore[call-overload]
    assert (small[0].tolerance, small[0].budget) == (Tolerance(rtol=16), {})
    assert small[0].for_check() is small[0]


def test_a_check_takes_arguments_of_the_same_name_with_its_parameters() -> None:
    body = 'matrix: {m: [4096, 8192]}\ncheck: {m: 16, $args: {x: "f32[2, {m}]"}}'
    found = expand(parse_yaml(HEAD + kernel(body, args='{x: "f32[64, {m}]", y: "f32[{m}]"}')))
    for variant in found:
        small = variant.for_check()
        assert variant.check is not None
        assert variant.check.names_args
        assert {name: str(array) for name, array in small.arrays()} == {
            "x": "f32[2, 16]", "y": "f32[16]",
        }  # fmt: skip
        assert str(variant.args["x"]).startswith("f32[64, ")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("check", "args", "words"),
    [
        ('{z: "f32[2]"}', '{x: "f32[4]"}', "unknown argument 'z'"),
        ('["f32[2]"]', '{x: "f32[4]"}', "do not match the 1 in 'args' of k."),
        ('["f32[2]"]', '["f32[4]", "f32[4]"]', "do not match the 2 in 'args' of k."),
        ('{x: "f32[{n}]"}', '{x: "f32[4]"}', "unknown parameter 'n'"),
        ('{x: "f32[2"}', '{x: "f32[4]"}', "f32[2"),
    ],
)
def test_arguments_of_a_check_that_do_not_fit_are_told(check: str, args: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        expand(parse_yaml(HEAD + kernel(f"check: {{$args: {check}}}", args=args)))
    assert words in caught.value.message
    assert caught.value.location is not None
    assert caught.value.location.line == 7


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
        ('mesh: {x: "{n}"}', "k.mesh.x: unknown parameter 'n' in {n}."),
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
