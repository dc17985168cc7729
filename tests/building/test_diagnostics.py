"""What is said while a variant is made belongs to it: now, from the store, however it was found."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache.manifests import LONGEST_TEXT, MOST_DIAGNOSTICS, Diagnostic
from pallasc.cache.store import Store
from pallasc.compiler.workers.diagnostics import lines_of, merged, stable, store_for_action

KERNELS = """\
import logging, os, subprocess, sys, time, warnings
import jax
import helper

logging.getLogger("apart").propagate = False


@jax.jit
def inner(x):
    warnings.warn("autotuning cache miss: heuristics")
    return x + 1


def says(x, *, scale=1.0):
    for _ in range(3):
        logging.getLogger("tuning").warning("no entry for %s in table %s", x.shape, hex(id(x)))
    logging.getLogger("apart").error("apart")
    logging.getLogger("tuning").info("not heard")
    print("printed, which is no warning")
    print(f"pid 4242, tables in {os.path.dirname(__file__)}/tables", file=sys.stderr)
    os.write(2, b"from descriptor 2\\n")
    return inner(x) * scale


def has_a_child(x):
    subprocess.run([sys.executable, "-c", "import sys; sys.stderr.write('from a child')"])
    return x * 3
"""
HELPER = "import warnings\nwarnings.warn('helper is old', FutureWarning)\n"
SAID = [
    "helper.py:2: FutureWarning: helper is old",
    "kernels.py:10: UserWarning: autotuning cache miss: heuristics",
    "tuning: WARNING: no entry for (8, 128) in table … (3 times)",
    "apart: ERROR: apart",
    "stderr: pid 4242, tables in tables",
    "stderr: from descriptor 2",
]


def said(result: Any) -> list[str]:
    return sorted(map(str, result.diagnostics))


@pytest.fixture(scope="module")
def first_build(make_project: Any) -> tuple[Any, Any]:
    """Return a project whose kernels say something but for one, built, and the report."""
    project = make_project()
    project.write("kernels.py", KERNELS)
    project.write("helper.py", HELPER)
    project.write("quiet.py", "def quiet(x):\n    return x * 2\n")
    says = {"entry": "kernels.py:says"}
    project.spec(
        {"name": "first", **says},
        {"name": "second", **says, "static": {"scale": 2.0}},
        {"name": "same", **says},
        {"name": "quiet", "entry": "quiet.py:quiet"},
    )
    return project, project.build()


@pytest.fixture
def built(first_build: tuple[Any, Any], tmp_path: Path) -> Any:
    """Return a copy of it."""
    return first_build[0].copy(tmp_path)


def test_each_variant_keeps_what_was_said_for_it(
    first_build: tuple[Any, Any], built: Any, results: Any
) -> None:
    first = results(first_build[1])
    assert {name: result.status for name, result in first.items()} == {
        "first": "compiled", "second": "compiled", "same": "shared", "quiet": "compiled",
    }  # fmt: skip
    loud = dict.fromkeys(("first", "second", "same"), sorted(SAID))
    assert {name: said(result) for name, result in first.items()} == {**loud, "quiet": []}
    for project in (first_build[0], built):  # in the same folder and in another
        hits = results(project.build())
        assert {result.status for result in hits.values()} == {"hit"}
        assert {name: said(result) for name, result in hits.items()} == {**loud, "quiet": []}


def test_a_variant_that_is_lowered_again_keeps_what_xla_said(
    first_build: tuple[Any, Any], built: Any, results: Any
) -> None:
    first = results(first_build[1])["first"]
    # XLA says hardly anything of itself: this stands for it.
    of_xla = Diagnostic("compile", "stderr", "", "ptxas warning : spilled")
    kept = (*first.diagnostics, of_xla)
    store_for_action(built.store, first.action_key, kept)
    built.write("kernels.py", KERNELS + "# a comment\n")
    again = results(built.build(jobs=1))["first"]
    assert again.status == "lowered"
    assert said(again) == sorted([*SAID, str(of_xla)])


def test_what_a_child_process_says_is_heard_and_is_no_part_of_the_artifact(
    built: Any, results: Any
) -> None:
    built.write("silent.py", "def run(x):\n    return x * 3\n")
    silent = {"name": "silent", "entry": "silent.py:run"}
    built.spec({"name": "parent", "entry": "kernels.py:has_a_child"}, silent)
    for status in ("compiled", "lowered"):  # what the child has read is not known
        found = results(built.build(jobs=1))
        parent = found["parent"]
        assert (parent.status, said(parent)) == (status, [SAID[0], "stderr: from a child"])
    assert found["silent"].diagnostics == ()
    assert found["silent"].action_key == parent.action_key
    assert found["silent"].artifact.digest == parent.artifact.digest


def test_a_pattern_fails_what_says_it_now_or_then(built: Any, results: Any) -> None:
    pattern = re.compile("cache MISS", re.IGNORECASE)
    for options in ({}, {"store": Store(built.folder / "empty")}):  # found, and compiled
        found = built.build(fail_on_warning=[pattern], **options)
        assert found.exit_code == 1
        assert [result.status == "failed" for result in found.results] == [True] * 3 + [False]
        error = results(found)["second"].error
        assert error.message == (
            "it compiles with a warning: "
            "kernels.py:10: UserWarning: autotuning cache miss: heuristics"
        )
        assert str(error.location) == f"{built.folder}/kernels.py:10"
        assert "--fail-on-warning 'cache MISS'" in error.hint
    assert built.build(fail_on_warning=[re.compile("nothing like this")]).exit_code == 0
    without = built.build(fail_on_warning=[re.compile("no Pallas")])
    assert {result.error.message for result in without.failed if result.error} == {
        "it compiles with a warning: pallasc: it holds no Pallas Mosaic GPU kernel"
    }


# ---- without a build


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("at 0x7f3a5c001d60", "at …"),
        ("2026-01-31 08:00:00.123456: W file.cc:12] no", "…: W file.cc:12] no"),
        ("W0131 08:00:00.123456   4242 file.cc:12] no", "W file.cc:12] no"),
        ("/specs/here/tuned.json is missing", "tuned.json is missing"),
        ("/specs/hereafter", "/specs/hereafter"),
        ("/tmp/w/1/x.ptx", "$TMPDIR/x.ptx"),
        ("\x1b[31mred\x1b[0m\r\n", "red"),
    ],
)
def test_what_differs_between_runs_is_left_out(text: str, wanted: str) -> None:
    folders: Mapping[str, str] = {"/specs/here": "", "/tmp/w/1": "$TMPDIR", "": "never"}
    assert stable(text, folders) == wanted


def test_lines_of_the_machine_alone_are_left_out_and_indented_ones_belong_to_the_one_before() -> (
    None
):
    machine = (
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
        "E0000 00:00:17.1 7 slow_operation_alarm.cc:73] Constant folding is slow\n"
        "The operation took 3.2s\n"
        "[Compiling module jit_main] Very slow compile? If you want to file a bug, run with it\n"
        "'+ptx88' is not a recognized feature for this target (ignoring feature)\n"
        "E0000 00:00:17.1 7 cuda_platform.cc:51] failed call to cuInit: CUDA_ERROR_NO_DEVICE\n"
    )
    assert lines_of(f"one\n  more\n\n\n{machine}two\n") == ["one\n  more", "two"]


def test_equal_ones_are_counted_and_too_many_too() -> None:
    many = [Diagnostic("lower", "stderr", "", str(n % 70)) for n in range(140)]
    found = merged(many)
    assert len(found) == MOST_DIAGNOSTICS
    assert {each.count for each in found[:-1]} == {2}
    assert found[-1].text != found[0].text


def test_a_long_text_is_cut() -> None:
    assert stable("x" * 10_000, {}) == "x" * LONGEST_TEXT + "…"
