"""`pallasc.compile`, in a process of its own because it takes one architecture only."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="module")
def here(run_program: Callable[..., Any], make_project: Any) -> dict[str, Any]:
    """Return what came of each call of the program."""
    answer: dict[str, Any] = run_program("compile_here.py", make_project().store.root)
    return answer


def test_however_it_is_asked_for_the_artifact_is_the_same(here: dict[str, Any]) -> None:
    results = here["results"]
    for name in ("jax", "numpy", "isolated"):
        assert results[name] == results["text"], name
    assert results["static"] == results["main isolated"]
    names = ("text", "static", "closure of 3", "none", "jitted isolated",
             "second architecture isolated")  # fmt: skip
    assert [len(results[name]) for name in names] == [64] * len(names)
    assert len({results[name] for name in names}) >= len(names) - 1  # the function is one
    assert here["path is as it was"] is True
    assert here["asked for its version"] == 1


ERRORS = {
    "second architecture": (
        "CompileError", 1,
        "this process compiles for sm_90a and cannot compile for sm_80 as well\n"
        "  Mosaic GPU compiles for one architecture per process: pass isolated=True.",
    ),
    "not an array inside": (
        "SpecError", 2,
        "array 0.1.a is an int, which is not an array.\n"
        '  Write it like "bf16[1024, 4096]", or pass static arguments by keyword.',
    ),
    "keys of two types": (
        "SpecError", 2,
        "array 0 has keys that cannot be sorted: 'x', 0.\n"
        "  JAX sorts the keys of a dict: use text for all of them.",
    ),
    "missing array": (
        "SpecError", 2,
        "add cannot be called: missing a required argument: 'y'.\n"
        "  Its parameters: x, y, block_size. Give each as an array, as null (None), or as a static "
        "argument.",
    ),
    "no function": (
        "SpecError", 2, "3 is not a function.\n  The function comes first, then its arrays.",
    ),
    "too many arrays": (
        "SpecError", 2,
        "triple cannot be called: too many positional arguments.\n"
        "  Its parameters: x, factor. Give each as an array, as null (None), or as a static "
        "argument.",
    ),
    "too large": (
        "SpecError", 2,
        "'i8[1099511627776, 1099511627776]' takes 1208925819614629174706176 bytes.\n"
        "  An array takes less than 2**63 bytes: make a dimension smaller.",
    ),
    "unknown static": (
        "SpecError", 2, "add has no parameter 'block_sise'.\n  Did you mean 'block_size'?",
    ),
    "no assembler": (
        "ToolError", 4,
        "There is no assembler /no/ptxas.\n  Set PALLASC_PTXAS to the path of a ptxas.",
    ),
    "does not trace": ("CompileError", 1, "must be a multiple of 128"),
    "closure isolated": ("SpecError", 2, "has no name that a worker process can import it by"),
    "static isolated": ("SpecError", 2, "object is not plain data"),
    "ordered isolated": (
        "SpecError", 2, "array 0.x is an OrderedDict, which cannot be rebuilt in another process."
    ),
    "a class in a call": ("SpecError", 2, "getcwd() takes no keyword arguments"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_a_wrong_call_says_what_is_wrong(here: dict[str, Any], name: str) -> None:
    kind, code, text = ERRORS[name]
    assert here["results"][name][:2] == [kind, code]
    assert text in here["results"][name][2]
