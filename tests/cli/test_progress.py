"""Progress: one line a variant; on a terminal the running one too, cut to the width, in colour."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from pallasc.cli.progress import (
    Progress,
    artifact_facts,
    failure_lines,
    result_line,
    summary,
    terminal_width,
    wants_colour,
)
from pallasc.compiler.report import Event, Report, VariantResult
from pallasc.errors import CompileError, Location
from pallasc.specs.artifact import Artifact
from pallasc.specs.matrix import expand
from pallasc.specs.yaml_loader import parse_yaml

YAML = """\
schema: 1
targets: [sm_90a]
kernels:
  - {name: add, entry: "pallasc.specs.library.elementwise:add", args: ["f32[2048]", "f32[2048]"]}
"""
VARIANT = expand(parse_yaml(YAML))[0]
KERNEL = {
    "name": "add_kernel",
    "cubin": "c" * 64,
    "ptx": None,
    "origin": "mosaic",
    "registers": 40,
    "stack_bytes": 0,
    "spill_store_bytes": 0,
    "spill_load_bytes": 0,
    "static_smem_bytes": 0,
    "dynamic_smem_bytes": 0,
    "barriers": 1,
}
HIT = VariantResult(VARIANT, "hit")
FAILED = VariantResult(VARIANT, "failed", error=CompileError("it broke."), output="a\nb\n")


def _artifact(**changes: object) -> Artifact:
    record = {
        "schema": 1,
        "target": {"name": "h100-sxm"},
        "toolchain": {},
        "plan": {},
        "kernels": [{**KERNEL, **changes}],
        "blobs": {KERNEL["cubin"]: 9512},
    }
    return Artifact(record, lambda _: b"")


COMPILED = VariantResult(VARIANT, "compiled", 1.236, "k" * 64, _artifact())


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def _finished(result: VariantResult) -> Event:
    return Event(result.status, VARIANT, result, 3, 24)  # type: ignore[arg-type]


def _started() -> Event:
    return Event("started", VARIANT, None, 2, 24)


@pytest.mark.parametrize(
    ("result", "line"),
    [
        (HIT, "[ 3/24] hit       add@h100-sxm\n"),
        (COMPILED, "[ 3/24] compiled  add@h100-sxm  1.24 s, 9,512 bytes, 40 registers\n"),
        (
            FAILED,
            "[ 3/24] failed    add@h100-sxm\n    it broke.\n    output:\n    a\n    b\n",
        ),
    ],
)
def test_each_result_is_one_line_and_a_failure_says_why(result: VariantResult, line: str) -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    progress(_started())
    progress(_finished(result))
    progress.end()
    assert stream.getvalue() == line


def test_hits_can_be_left_out() -> None:
    stream = io.StringIO()
    progress = Progress(stream, hits=False)
    progress(_finished(HIT))
    assert stream.getvalue() == ""
    progress(_finished(COMPILED))
    assert stream.getvalue() != ""


def test_a_terminal_shows_what_runs_until_it_is_done() -> None:
    stream = Terminal()
    progress = Progress(stream, width=30)
    progress(_started())
    assert stream.getvalue() == "\r\x1b[K[ 2/24] compiling add@h100-sx"
    progress(_finished(COMPILED))
    assert stream.getvalue().endswith("\r\x1b[K[ 3/24] compiled  add@h100-sx\n")


def test_a_line_in_colour_is_cut_by_what_is_seen_of_it() -> None:
    stream = Terminal()
    Progress(stream, width=26, colour=True)(_finished(HIT))
    assert stream.getvalue().endswith("[ 3/24] \x1b[36mhit\x1b[0m       add@h10\n")


@pytest.mark.parametrize(
    ("terminal", "environment", "wanted"),
    [
        (True, {}, True),
        (True, {"TERM": "xterm"}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
        (False, {}, False),
    ],
)
def test_colour_is_for_terminals_unless_no_color_is_set(
    terminal: bool, environment: dict[str, str], wanted: bool
) -> None:
    assert wants_colour(Terminal() if terminal else io.StringIO(), environment) is wanted


def test_only_a_terminal_has_a_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "123")
    assert terminal_width(Terminal()) == 123
    assert terminal_width(io.StringIO()) is None


def test_spills_are_told() -> None:
    artifact = _artifact(spill_store_bytes=16, spill_load_bytes=24)
    assert artifact_facts(artifact) == ["9,512 bytes", "40 registers", "spills 40 bytes"]


def test_a_skipped_variant_is_only_named() -> None:
    assert result_line(VariantResult(VARIANT, "skipped")) == "skipped   add@h100-sxm"


def test_the_output_of_a_failure_with_a_place_in_the_kernel_is_left_out() -> None:
    error = CompileError("it broke.", location=Location("kernels.txt", 3))
    assert failure_lines(replace(FAILED, error=error)) == ["    kernels.txt:3: it broke."]


def test_the_output_of_a_failure_without_a_place_is_cut_to_its_end() -> None:
    lines = failure_lines(replace(FAILED, output="\n".join(map(str, range(100)))))
    assert lines[:3] == ["    it broke.", "    output:", "    80"]
    assert lines[-1] == "    99"


def test_the_output_is_shown_where_the_place_is_only_that_of_the_spec() -> None:
    error = CompileError("it died.", location=VARIANT.location)
    assert failure_lines(replace(FAILED, error=error))[-2:] == ["    a", "    b"]


@pytest.mark.parametrize(
    ("results", "text"),
    [
        ([], "0 variants in 1.2 s: nothing to do"),
        ([HIT], "1 variant in 1.2 s: 1 hit"),
        ([HIT, HIT, COMPILED, FAILED], "4 variants in 1.2 s: 2 hits, 1 compiled, 1 failed"),
        ([FAILED, VariantResult(VARIANT, "skipped")], "2 variants in 1.2 s: 1 failed, 1 skipped"),
    ],
)
def test_summary_counts_what_there_was(results: list[VariantResult], text: str) -> None:
    assert summary(Report(tuple(results), 1.23)) == text
