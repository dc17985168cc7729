"""`pallasc.compile`, in a process of its own because it takes one architecture only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pallasc.cache import format


@pytest.fixture(scope="module")
def here(run_program: Callable[..., Any], make_project: Any) -> dict[str, Any]:
    """Return what came of each call of the program."""
    answer: dict[str, Any] = run_program("compile_here.py", make_project().store.root)
    return answer


@pytest.fixture(scope="module")
def results(here: dict[str, Any]) -> dict[str, Any]:
    """Return digest, or class, exit code and text of the error, of each call."""
    found: dict[str, Any] = here["results"]
    return found


@pytest.mark.parametrize("other", ["jax", "numpy", "framework", "isolated", "isolated again"])
def test_however_it_is_asked_for_the_artifact_is_the_same(
    results: dict[str, Any], other: str
) -> None:
    assert len(results["text"]) == 64
    assert results[other] == results["text"]


@pytest.mark.parametrize(("first", "second"), [("static", "partial"), ("static", "main isolated")])
def test_static_arguments_may_be_bound_before(
    results: dict[str, Any], first: str, second: str
) -> None:
    assert len(results[first]) == 64
    assert results[first] == results[second]


def test_a_function_that_jax_has_wrapped_is_found_by_name(results: dict[str, Any]) -> None:
    assert len(results["jitted"]) == 64
    assert len(results["jitted isolated"]) == 64


def test_closures_compile_with_what_they_hold(results: dict[str, Any]) -> None:
    digests = {results[name] for name in ("closure of 3", "closure of 4", "text", "bf16")}
    assert len(digests) == 4
    assert all(len(digest) == 64 for digest in digests)


@pytest.mark.parametrize("name", ["lists", "none", "second architecture isolated"])
def test_further_calls_that_compile(results: dict[str, Any], name: str) -> None:
    assert len(results[name]) == 64, results[name]


ERRORS = {
    "second architecture": (
        "CompileError", 1,
        "this process compiles for sm_90a and cannot compile for sm_80 as well\n"
        "  Mosaic GPU compiles for one architecture per process: pass isolated=True.",
    ),
    "not an array": (
        "SpecError", 2,
        "array 1 is an int, which is not an array.\n"
        '  Write it like "bf16[1024, 4096]", or pass static arguments by keyword.',
    ),
    "not an array inside": (
        "SpecError", 2,
        "array 0.1.a is an int, which is not an array.\n"
        '  Write it like "bf16[1024, 4096]", or pass static arguments by keyword.',
    ),
    "missing array": (
        "SpecError", 2,
        "add needs 'y', which is not given.\n"
        "  Give it as an array, as null (None), or as a static argument.",
    ),
    "no function": (
        "SpecError", 2, "3 is not a function.\n  The function comes first, then its arrays.",
    ),
    "too many arrays": (
        "SpecError", 2,
        "triple takes 1 array by position, 2 are given.\n  Its parameters: x, factor.",
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
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_a_wrong_call_says_what_is_wrong(results: dict[str, Any], name: str) -> None:
    kind, code, text = ERRORS[name]
    assert results[name][:2] == [kind, code]
    # What is about the function comes with the place where it is defined.
    place, _, rest = results[name][2].rpartition(".py:18: ")
    assert rest == text
    assert place.endswith("/elementwise") or not place


@pytest.mark.parametrize(
    ("name", "kind", "part"),
    [
        ("bad notation", "SpecError", "'f32[8'"),
        ("bad dtype", "SpecError", "Did you mean 'f32'?"),
        ("bad target", "SpecError", "sm_90a"),
        ("does not trace", "CompileError", "must be a multiple of 128"),
        ("closure isolated", "SpecError", "has no name that a worker process can import it by"),
        ("partial isolated", "SpecError", "a partial object has no name"),
        ("object isolated", "SpecError", "a Callable object has no name"),
        ("static isolated", "SpecError", "object is not plain data"),
    ],
)
def test_a_wrong_call_names_the_value(
    results: dict[str, Any], name: str, kind: str, part: str
) -> None:
    assert results[name][0] == kind
    assert part in results[name][2]


def test_path_is_as_it_was_before(here: dict[str, Any]) -> None:
    assert here["path is as it was"] is True


def test_the_assembler_is_asked_for_its_version_once_a_process(here: dict[str, Any]) -> None:
    assert here["asked for its version"] == 1


@pytest.fixture(scope="module")
def tripled(run_program: Callable[..., Any], make_project: Any) -> tuple[Any, list[Any]]:
    """Compile in a process; return the project of its store, and what it printed."""
    project = make_project()
    (told,) = run_program("kept.py", project.store.root, 3.0, "plain")
    return project, told


def test_a_new_process_finds_in_the_store_what_another_compiled(
    run_program: Callable[..., Any], tripled: tuple[Any, list[Any]], tmp_path: Path
) -> None:
    root, (compiled, digest, size) = tripled[0].copy(tmp_path).store.root, tripled[1]
    assert compiled == ["triple"]
    # What the process holds counts, not what stands in the source; settings count, too.
    calls = (3.0, "plain", 4.0, "plain", 3.0, "precise")
    found, other, precise = run_program("kept.py", root, *calls)
    assert found == [[], digest, size]
    assert (other[0], other[1] != digest) == (["triple"], True)
    assert precise[0] == ["triple"]


def test_a_store_that_must_be_signed_holds_for_the_caller_s_process_too(
    run_program: Callable[..., Any],
    tripled: tuple[Any, list[Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    root, (_, digest, size) = tripled[0].copy(tmp_path).store.root, tripled[1]
    monkeypatch.setenv("PALLASC_REQUIRE_SIGNED_STORE", "1")
    told = run_program("kept.py", root, *(3.0, "plain") * 2)
    assert told == [[["triple"], digest, size], [[], digest, size]]

    (record,) = [path for path in (root / "v1" / "ac").rglob("*") if path.is_file()]
    body, _ = format.decode("artifact", record.name, record.read_bytes())
    body["artifact"]["minimum_driver"] = {"cuda": [99, 0]}
    record.write_bytes(format.encode("artifact", record.name, body)[0])
    assert run_program("kept.py", root, 3.0, "plain") == [[["triple"], digest, size]]


def test_where_jax_keeps_to_another_assembler_only_the_first_call_compiles_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pallasc.compiler import api
    from pallasc.compiler.lowering import compile
    from pallasc.compiler.lowering.resources import OtherAssemblerError
    from pallasc.compiler.toolchain import toolkit

    compiled: list[str] = []

    def compile_job(job: Any, lowered: Any, tools: Any) -> Any:
        compiled.append("in a process of its own" if tools.process else "here")
        if tools.process is None:
            raise OtherAssemblerError("chosen before")
        return {}, {}

    monkeypatch.setattr(compile, "compile_job", compile_job)
    monkeypatch.setattr(compile, "lower_job", lambda job, process: None)
    monkeypatch.setattr(toolkit, "hide_nvjitlink", lambda: "")
    monkeypatch.setattr(toolkit, "other_library", lambda toolkit: "")
    monkeypatch.setattr(api, "_process", lambda setup, target: "another")
    monkeypatch.setattr(api, "Artifact", lambda record, blob: SimpleNamespace(find_ptx=None))
    monkeypatch.setattr(api, "_other_assemblers", set(), raising=False)
    monkeypatch.setenv("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "")
    for _ in range(3):
        api.compile(len, "f32[8]")
    assert compiled == ["here", *["in a process of its own"] * 3]
