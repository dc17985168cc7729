"""Errors show the user's own line and the compiler's words, on every route a kernel can fail."""

import functools
import os
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from pallasc.compiler.lowering.diagnose import (
    control_flow_calls,
    definition,
    explain,
    explain_compilation,
    frames,
    is_mosaic,
    operation_place,
    shorten,
    user_place,
)
from pallasc.compiler.lowering.kernel_output import captured_output
from pallasc.errors import CompileError, Location, SpecError, UnsupportedError


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("library_call", "ValueError: block_size=100 must be a multiple of 128."),
        ("jax_kernel_call", ""),
    ],
)
def test_a_kernel_that_fails_shows_the_users_line(
    build: Any, marked: Any, name: str, message: str
) -> None:
    """`tests/wrong` has the exact messages of many more."""
    error = build("failing")[name].error
    assert error["message"].startswith(message)
    assert (Path(error["file"]), error["line"]) == marked("failing", name)
    assert (error["type"], error["exit_code"]) == ("CompileError", 1)
    for words in ("site-packages", "Traceback", "JAX has removed", "---", "/compiler/"):
        assert words not in error["message"]
    assert len(error["message"].splitlines()) <= 3


def test_a_kernel_of_the_library_is_named_where_nobody_calls_it(build: Any) -> None:
    error = build("failing")["library_alone"].error
    assert error["message"] == "ValueError: block_size=100 must be a multiple of 128."
    assert error["file"].endswith("/specs/library/elementwise.py")


def test_errors_that_were_explained_before_change_nothing(build: Any, build_alone: Any) -> None:
    after, alone = build("failing")["fine"], build_alone("failing", "h100-sxm", "fine")["fine"]
    assert after.key == alone.key
    assert after.artifact.digest == alone.artifact.digest


def _raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        raise error from cause
    except Exception as caught:
        return caught


def _here() -> None:
    raise AssertionError("unreachable")


def test_an_error_of_ours_is_shown_as_it_is_with_the_functions_place_if_it_has_none() -> None:
    error = SpecError("wrong")
    assert explain(error, _here) is error
    assert explain_compilation(error, _here, "error: other") is error
    assert explain(CompileError("wrong"), _here).location == definition(_here)


def test_the_users_frame_is_found_behind_causes() -> None:
    error = _raised(ValueError("outer"), _raised(KeyError("inner")))
    assert [frame.file for frame in frames(error)] == [__file__, __file__]
    place = explain(error, _here).location
    assert place is not None
    assert place.file == __file__
    first, second = ValueError("one"), ValueError("two")
    first.__cause__, second.__cause__ = second, first
    assert frames(first) == []


@pytest.mark.parametrize("module", ["pallasc.compiler", "jax", "numpy", "threading"])
def test_frames_of_packages_are_not_the_users(module: str) -> None:
    import importlib.util

    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert user_place([Location(str(spec.origin), 3), Location("<string>", 1)]) is None


def test_kernels_that_ship_with_jax_count_as_the_users() -> None:
    root = metadata.distribution("jax").locate_file("jax/experimental/pallas/ops/gpu/softmax.py")
    assert user_place([Location(str(root), 12)]) == Location(str(root), 12)


def test_the_definition_of_wrapped_and_partial_functions_is_found() -> None:
    line = _here.__code__.co_firstlineno
    assert definition(functools.partial(functools.partial(_here))) == Location(__file__, line)
    assert definition(len) is None


def test_a_host_callback_is_named_by_the_function_that_lowers_it() -> None:
    def io_callback_lowering() -> None:
        raise RuntimeError("Unknown backend: 'gpu' requested, but no platforms are present")

    try:
        io_callback_lowering()
    except RuntimeError as error:
        explained = explain(error, _here)
    assert isinstance(explained, UnsupportedError)
    assert explained.message.startswith("the function contains a host callback (io_callback),")


class XlaRuntimeError(RuntimeError):
    """Named as XLA's error."""


class MLIRError(Exception):
    """Named as MLIR's error."""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (XlaRuntimeError("INTERNAL: UNKNOWN: it broke"), "it broke"),
        (
            NotImplementedError("complex<f32>"),
            "NotImplementedError: complex<f32> is not supported here",
        ),
        (NotImplementedError("no such rule"), "NotImplementedError: no such rule"),
        (
            MLIRError(
                'Verification failed:\nerror: "dec_p:"("dec_p"): \'nvvm.dec\' op must be small\n'
                ' note: "dec_p:"("dec_p"): see current operation: "nvvm.dec"() : () -> ()'
            ),
            "MLIRError: 'nvvm.dec' op must be small",
        ),
    ],
)
def test_a_message_has_no_status_names_or_notes_of_the_compiler(
    error: Exception, message: str
) -> None:
    assert explain(error, _here).message == message
    assert is_mosaic(error) == (type(error) is MLIRError)
    assert operation_place(error) is None


def test_the_place_that_mlir_names_is_used_where_it_is_the_users(tmp_path: Path) -> None:
    kernel = tmp_path / "kernel.py"
    error = MLIRError(f'Verification failed:\nerror: "{kernel}":8:4: op must be small')
    assert operation_place(error) == Location(str(kernel), 8)


@pytest.mark.parametrize(
    ("text", "short"),
    [
        (
            "ValueError: it reads.\n Equation: call[\n  call={ lambda ; a:f32[]. let\n  in () }]",
            "ValueError: it reads.",
        ),
        ("no such jaxpr:\n{ lambda ; a:f32[]. let in () }", "no such jaxpr:"),
        ('Expected two. op=\n  "mosaic_gpu.mma"(%1, %2)\n more', "Expected two."),
    ],
)
def test_dumps_are_left_out(text: str, short: str) -> None:
    assert shorten(text) == short


def test_a_long_message_is_cut_short() -> None:
    text = shorten("first\n" + "\n".join("x" * 500 for _ in range(40)))
    assert len(text.splitlines()) == 13
    assert text.endswith("… (29 more lines)")
    assert max(map(len, text.splitlines())) <= 401


def test_the_compilers_own_place_is_used_where_it_is_the_users(tmp_path: Path) -> None:
    kernel = tmp_path / "kernel.py"
    output = f'loc(callsite("{kernel}":12:4 at "x")): error: \'nvvm.x\' op is not supported\n'
    explained = explain_compilation(RuntimeError("INTERNAL: failed"), _here, output)
    assert str(explained) == f"{kernel}:12: 'nvvm.x' op is not supported"


def test_output_below_python_is_captured_and_restored(capfd: pytest.CaptureFixture[str]) -> None:
    with captured_output() as output:
        os.write(2, b"from below\n")
        os.write(1, b"and here\n")
        assert output() == "from below\nand here\n"
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"


def test_lines_that_call_when_or_a_loop_are_told_from_other_callers() -> None:
    jax = "/site-packages/jax/_src"
    stack = [
        ("/k.py", 12, 9),
        (f"{jax}/lax/control_flow/conditionals.py", 200, 1),
        (f"{jax}/pallas/helpers.py", 80, 1),
        ("/k.py", 10, 14),
        (f"{jax}/lax/control_flow/loops.py", 300, 1),
        (f"{jax}/traceback_util.py", 190, 1),
        ("/k.py", 15, 9),
        ("/k.py", 20, 5),
        (f"{jax}/pallas/mosaic_gpu/core.py", 500, 1),
        ("/k.py", 25, 12),
    ]
    frames = [Location(*frame) for frame in stack]
    calls = [place.line for place in control_flow_calls(frames) if place.file == "/k.py"]
    assert calls == [10, 15]
    loops = control_flow_calls(frames, loops_only=True)
    assert [place.line for place in loops if place.file == "/k.py"] == [15]
