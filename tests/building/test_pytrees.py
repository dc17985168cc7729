"""Pytrees under `args` and in `pallasc.compile`: nodes are flattened as JAX does, or refused."""

from __future__ import annotations

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
    assert results["node"]["inputs"] == QUANTISED
    assert results["node"]["tree"] == {
        "x": 0,
        "w": {
            "node": "QArray", "children": [1, 2], "keys": ["qvalue", "scale"], "static": "(0)",
        },
    }  # fmt: skip
    assert results["dense"]["inputs"] == {"x": "f32[128, 128]", "w": "bf16[128, 128]"}


@pytest.mark.parametrize(
    "name",
    ["node of text", "node of arrays", "call", "call of text", "call isolated"],
)
def test_however_a_node_is_given_the_artifact_is_the_same(
    results: dict[str, Any], name: str
) -> None:
    assert results[name] == results["node"]


def test_static_data_of_a_node_is_part_of_its_tree(results: dict[str, Any]) -> None:
    other = results["other static data"]
    assert other["tree"]["w"]["static"] == "(1)"
    assert other["digest"] != results["node"]["digest"]
    assert results["pair of a number"]["tree"]["pair"] == {
        "node": "Pair", "children": [1, None], "keys": ["0", "1"], "static": "{'by': 3}",
    }  # fmt: skip
    assert results["pair"]["tree"]["pair"]["static"] == "{'by': float32}"


def test_nodes_lie_in_other_trees(results: dict[str, Any]) -> None:
    assert list(results["in a list"]["inputs"]) == ["ws.0.qvalue", "ws.0.scale", "ws.1"]


def test_a_call_may_make_other_arrays_than_it_is_given(results: dict[str, Any]) -> None:
    assert results["computing call"]["inputs"] == {**QUANTISED, "w.qvalue": "i8[128, 128]"}


def test_containers_keep_their_types(results: dict[str, Any]) -> None:
    named = results["named tuple"]
    assert named == results["named tuple isolated"]
    assert named["tree"]["cache"] == {
        "namedtuple": "Cache",
        "fields": {"values": 0, "mask": None, "keys": 1},
        "order": ["values", "mask", "keys"],
    }
    assert results["tuple"]["tree"] == {"tree": {"tuple": [0]}}
    assert results["list"]["tree"] == {"tree": [0]}
    assert list(results["ordered"]["inputs"]) == ["tree.b", "tree.a"]
    digests = {results[name]["digest"] for name in ("list", "tuple", "ordered", "defaults")}
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unknown",
         "array 1 is an Unknown, which has shape and dtype but is neither an array nor a pytree "
         "node registered with JAX.\n"
         "  Register Unknown with jax.tree_util, or pass a jax.ShapeDtypeStruct."),
        ("number in a node", "array 1.scale is a float, which is not an array."),
        ("text in a node", "unknown dtype 'f33'."),
        ("set", "array 0 is a set, which is not an array."),
        ("failing call", "$call 'QArray' failed: ValueError: qvalue has 1 dimensions"),
        ("call that gives a number",
         "$call 'QArray' returns a QArray whose .scale is 1.5, which is neither an array nor a "
         "pytree node."),
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
    assert results[name][2].startswith(message)


def test_static_data_that_cannot_be_told_apart_is_refused(results: dict[str, Any]) -> None:
    kind, _, text = results["no text of static data"]
    assert kind == "SpecError"
    assert "the pytree node Pair has static data of type object, which cannot be told" in text


def _quantised(**changes: Any) -> dict[str, Any]:
    node = {
        "$call": "pytrees.py:QArray",
        "qvalue": "i4[{n}, 128]",
        "scale": "f32[1, 128]",
        "axis": 0,
        **changes,
    }
    return {
        "name": "dequantised",
        "entry": "pytrees.py:dequantised",
        "args": {"x": "f32[{n}, 128]", "w": node},
        "matrix": {"n": [128]},
    }


def test_a_spec_calls_for_a_node(project: Any, results: dict[str, Any]) -> None:
    project.write("pytrees.py", PROGRAM.read_text())
    typed = {"name": "typed", "entry": "pytrees.py:typed"}
    unmade = {**_quantised(scale=2.5), "name": "unmade"}
    project.spec(_quantised(), {**typed, "args": [{"$tuple": ["f32[128, 128]"]}]}, unmade)
    variants = project.variants()
    assert {path: str(array) for path, array in variants[0].arrays()} == QUANTISED
    assert [path for path, _ in variants[1].arrays()] == ["0.0"]
    node, pair, failed = project.build().results
    digests = [result.artifact.digest for result in (node, pair)]
    assert digests == [results["node"]["digest"], results["tuple"]["digest"]]
    assert "returns a QArray whose .scale is 2.5, which" in str(failed.error)
    assert "spec.yaml:" in str(failed.error)


def test_a_call_of_another_module_counts_as_a_source(project: Any) -> None:
    project.write("pytrees.py", PROGRAM.read_text())
    project.write("nodes.py", "from pytrees import QArray\n\ndef make(**parts):\n"
                  "    return QArray(**parts)\n")  # fmt: skip
    kernel = _quantised(**{"$call": "nodes:make"})
    project.spec({**kernel, "entry": "pytrees:dequantised"})
    first = project.build().results[0]
    assert first.error is None
    project.write("nodes.py", "from pytrees import QArray\n\ndef make(axis, **parts):\n"
                  "    return QArray(**parts, axis=axis + 1)\n")  # fmt: skip
    second = project.build().results[0]
    assert second.status == "compiled"
    assert second.artifact.digest != first.artifact.digest
