"""Pytrees under `args` and in `pallasc.compile`: nodes are flattened as JAX does, or refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "programs" / "pytrees.py"
QUANTISED = {"x": "f32[128, 128]", "w.qvalue": "i4[128, 128]", "w.scale": "f32[1, 128]"}


@pytest.fixture(scope="module")
def results(run_program: Callable[..., Any], make_project: Any) -> dict[str, Any]:
    """Return digest, inputs and tree, or the error, of each call of the program."""
    found: dict[str, Any] = run_program("pytrees.py", make_project().store.root)
    return found


def test_a_node_with_shape_and_dtype_is_not_an_array(results: dict[str, Any]) -> None:
    node = results["node"]
    assert node["inputs"] == QUANTISED
    tree = {"node": "QArray", "children": [1, 2], "keys": ["qvalue", "scale"], "static": "(0)"}
    assert node["tree"] == {"x": 0, "w": tree}
    assert results["dense"]["inputs"] == {"x": "f32[128, 128]", "w": "bf16[128, 128]"}
    for name in ("call", "call isolated"):
        assert results[name] == node, name


def test_static_data_of_a_node_is_part_of_its_tree(results: dict[str, Any]) -> None:
    other = results["other static data"]
    assert other["tree"]["w"]["static"] == "(1)"
    assert other["digest"] != results["node"]["digest"]
    assert results["pair of a number"]["tree"]["pair"] == {
        "node": "Pair", "children": [1, None], "keys": ["0", "1"], "static": "{'by': 3}",
    }  # fmt: skip


def test_containers_keep_their_types(results: dict[str, Any]) -> None:
    assert results["named tuple"]["tree"]["cache"] == {
        "namedtuple": "Cache",
        "fields": {"values": 0, "mask": None, "keys": 1},
        "order": ["values", "mask", "keys"],
    }
    assert results["tuple"]["tree"] == {"tree": {"tuple": [0]}}
    assert results["list"]["tree"] == {"tree": [0]}
    assert results["list"]["digest"] != results["tuple"]["digest"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unknown",
         "array 1 is an Unknown, which has shape and dtype but is neither an array nor a pytree "
         "node registered with JAX.\n"
         "  Register Unknown with jax.tree_util, or pass a jax.ShapeDtypeStruct."),
        ("number in a node", "array 1.scale is a float, which is not an array."),
        ("failing call", "$call 'QArray' failed: ValueError: qvalue has 1 dimensions"),
        ("call of nothing", "$call 'pytrees:QAray': pytrees has no 'QAray'."),
        ("pair isolated",
         "array 1 is a Pair, which cannot be rebuilt in another process.\n"
         '  Pass pallasc.Call("module:function", …) with its arrays, or leave out isolated.'),
    ],
)  # fmt: skip
def test_what_is_neither_array_nor_node_is_refused(
    results: dict[str, Any], name: str, message: str
) -> None:
    assert results[name][:2] == ["SpecError", 2]
    assert message in results[name][2]


def test_a_spec_calls_for_a_node_and_the_module_of_the_call_is_a_source(
    project: Any, results: dict[str, Any]
) -> None:
    project.write("pytrees.py", PROGRAM.read_text())
    make = "from pytrees import QArray\ndef make(axis, **parts): return QArray(**parts, axis={})\n"
    project.write("nodes.py", make.format("axis"))
    node = {"qvalue": "i4[{n}, 128]", "scale": "f32[1, 128]", "axis": 0}
    kernel = {"entry": "pytrees.py:dequantised", "matrix": {"n": [128]}}

    def taking(name: str, **parts: Any) -> dict[str, Any]:
        return {"name": name, **kernel, "args": {"x": "f32[{n}, 128]", "w": {**node, **parts}}}

    project.spec(
        taking("node", **{"$call": "pytrees.py:QArray"}),
        {**taking("made", **{"$call": "nodes:make"}), "entry": "pytrees:dequantised"},
        {"name": "typed", "entry": "pytrees.py:typed", "args": [{"$tuple": ["f32[128, 128]"]}]},
        taking("unmade", **{"$call": "pytrees.py:QArray", "scale": 2.5}),
    )
    variants = project.variants()
    assert {path: str(array) for path, array in variants[0].arrays()} == QUANTISED
    assert [path for path, _ in variants[2].arrays()] == ["0.0"]
    node, made, pair, failed = project.build().results
    assert node.artifact.digest == results["node"]["digest"]
    assert pair.artifact.digest == results["tuple"]["digest"]
    assert made.error is None
    assert "returns a QArray whose .scale is 2.5, which" in str(failed.error)
    assert "spec.yaml:" in str(failed.error)
    project.write("nodes.py", make.format("axis + 1"))
    again = project.build().results
    assert [result.status for result in again] == ["hit", "compiled", "hit", "failed"]
    assert again[1].artifact.digest != made.artifact.digest
