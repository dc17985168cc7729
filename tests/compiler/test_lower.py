"""Tracing and lowering: the arguments of a call, and the trees of what goes in and comes out."""

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from pallasc.specs.artifacts.plan import Copy

JAX = tuple(int(part) for part in metadata.version("jax").split(".")[:2])


@pytest.fixture(scope="module")
def signatures(build: Any) -> Any:
    return build("signatures")


def test_every_leaf_of_a_result_is_bound_to_its_own_buffer(signatures: Any) -> None:
    plan = signatures["trees"].plan
    sizes = {binding.path: binding.shape[0] for binding in plan.outputs}
    assert sizes == {
        "out.ordered.z": 1, "out.ordered.a": 2, "out.plain.z": 3, "out.plain.a": 4,
        "out.node.0": 6, "out.node.1": 5, "out.list.0": 7, "out.list.1.0": 8,
        "out.numbers.10": 9, "out.numbers.2": 10,
    }  # fmt: skip
    for binding in plan.outputs:
        assert plan.buffers[binding.buffer].size == 4 * binding.shape[0]
    tree = plan.output_tree["dict"]
    by_number = [binding.path for binding in plan.outputs]
    assert by_number[tree["ordered"]["dict"]["z"]] == "out.ordered.z"
    assert [by_number[n] for n in tree["node"]["children"]] == ["out.node.0", "out.node.1"]
    assert tree["node"]["node"] == "Sides"
    assert by_number[tree["list"][1]["tuple"][0]] == "out.list.1.0"
    assert by_number[tree["numbers"]["dict"]["10"]] == "out.numbers.10"


def test_a_plan_has_the_order_of_parameters_where_arrays_do_not_tell_it(signatures: Any) -> None:
    assert signatures["between"].plan.input_tree == {"x": 0, "mask": None, "y": 1}
    assert signatures["between"].plan.parameters == ("x", "mask", "y")
    for name in ("optional", "optional_given", "keywords"):
        assert "parameters" not in signatures[name].record["plan"]


def test_an_operand_that_lies_transposed_is_not_copied(signatures: Any) -> None:
    plan, copied = signatures["laid_out"].plan, signatures["copied"].plan
    assert [launch.origin for launch in copied.steps] == ["xla", "mosaic"]
    assert [launch.origin for launch in plan.steps] == ["mosaic"]
    assert [array.layout for array in plan.inputs] == [None, (0, 1)]
    assert [array.strides for array in plan.inputs] == [(128, 1), (1, 128)]
    assert "layout" not in signatures["laid_out"].record["plan"]["inputs"][0]
    assert all("layout" not in row for row in signatures["copied"].record["plan"]["inputs"])
    result = signatures["laid_out_result"].plan  # row-major, whatever the argument is
    assert result.outputs[0].layout is None
    assert result.buffers[result.outputs[0].buffer].role == "output"
    assert [step.origin for step in result.steps] == ["xla"]


@pytest.mark.skipif(JAX < (0, 11), reason="JAX 0.10 cannot trace a kernel on a new reference")
def test_an_array_that_is_updated_in_place_is_copied_first(signatures: Any) -> None:
    copy, launch = signatures["updated_in_place"].plan.steps
    assert copy == Copy(0, 0, 1, 0, 512)
    assert [parameter.buffer for parameter in launch.parameters] == [1]


def test_any_callable_compiles_with_its_arrays_in_the_order_of_the_signature(
    signatures: Any,
) -> None:
    for name in ("scaled", "partial", "lambda"):
        assert len(signatures[name].plan.launches) == 1
    assert [b.path for b in signatures["optional_given"].plan.inputs] == ["x", "y"]
    assert [b.path for b in signatures["keywords"].plan.inputs] == ["a", "b"]
    # 64-bit types stay if an argument has one.
    assert signatures["wide"].plan.outputs[0].dtype == "i64"
    assert signatures["narrow"].plan.outputs[0].dtype == "i32"


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        (
            "too_many_bound",
            "the function cannot be called: too many positional arguments.",
            "Its parameters: x, by, name.",
        ),
        ("nearly", "scaled has no parameter 'nam'.", "Did you mean 'name'?"),
    ],
)
def test_arguments_that_do_not_fit_are_mistakes_of_the_spec(
    signatures: Any, name: str, message: str, hint: str
) -> None:
    error = signatures[name].error
    assert (error["type"], error["message"]) == ("SpecError", message)
    assert error["hint"].startswith(hint)


def test_one_process_compiles_for_one_architecture(tmp_path: Path, build_alone: Any) -> None:
    results = build_alone("resources", "h100-sxm,h200,a100-sxm", "small")
    assert results["small@h100-sxm"].record["target"]["name"] == "h100-sxm"
    assert results["small@h200"].record["target"]["name"] == "h200"
    error = results["small@a100-sxm"].error
    assert error["message"] == (
        "this process compiles for sm_90a and cannot compile for sm_80 as well"
    )
    assert (
        error["hint"] == "Mosaic GPU compiles for one architecture per process: pass isolated=True."
    )
    assert error["exit_code"] == 1
