"""A variant's result in words, in one line that may be narrow, and why it failed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pallasc.cli.output.build_text import counter, failure_lines, result_line
from pallasc.cli.output.outcome import built
from pallasc.errors import CompileError, Location


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda p: p.hit(), "hit       add@h100-sxm"),
        (lambda p: p.skipped(), "skipped   add@h100-sxm"),
        (lambda p: p.missing(), "missing   add@h100-sxm  it is new"),
        (lambda p: p.failed(), "failed    add@h100-sxm"),
        (lambda p: p.compiled(), "compiled  add@h100-sxm  1.24 s, 9,512 bytes, 40 registers"),
        (
            lambda p: p.compiled(spill_store_bytes=16, spill_load_bytes=24),
            "compiled  add@h100-sxm  1.24 s, 9,512 bytes, 40 registers, spills 40 bytes",
        ),
        (lambda p: p.hit(p.variant(name="a\nb\x1b[31m")), "hit       a b@h100-sxm"),
    ],
)
def test_a_result_is_one_line(make: Callable[[Any], Any], line: str, pretended: Any) -> None:
    assert result_line(built(make(pretended))) == line


def test_the_counter_is_as_wide_for_every_variant() -> None:
    assert [counter(3, 24), counter(24, 24), counter(0, 9)] == ["[ 3/24]", "[24/24]", "[0/9]"]


def test_a_spill_that_is_not_known_is_not_told(pretended: Any) -> None:
    line = result_line(built(pretended.compiled(spill_store_bytes=None)))
    assert line == "compiled  add@h100-sxm  1.24 s, 9,512 bytes, 40 registers"


def test_only_failures_have_lines_of_their_own(pretended: Any) -> None:
    assert failure_lines(built(pretended.hit())) == []


def test_a_failure_shows_the_line_of_the_source_and_the_hint(
    pretended: Any, tmp_path: Path
) -> None:
    source = tmp_path / "kernels.py"
    source.write_text("def add(x):\n    return x.no\n")
    place = Location(str(source), 2, 5)
    error = CompileError("there is no such thing.", location=place, hint="Look again.")
    assert failure_lines(built(pretended.failed(error=error))) == [
        f"    {source}:2:5: there is no such thing.",
        "        2 | return x.no",
        "      Look again.",
    ]


PLACES = (None, Location("kernels.yaml", 4, 5), Location("kernels.txt", 3))


@pytest.mark.parametrize("place", PLACES)
def test_the_output_of_a_failure_is_shown(place: Location | None, pretended: Any) -> None:
    error = CompileError("it died.", location=place)
    lines = failure_lines(built(pretended.failed(error=error, output="\x1b[31ma\x1b[0m\r\nb\n")))
    assert lines[1:] == ["    output:", "    a", "    b"]


def test_long_output_is_cut_to_its_end(pretended: Any) -> None:
    lines = failure_lines(built(pretended.failed(output="\n".join(map(str, range(100))))))
    assert lines[:3] == ["    it broke.", "    output:", "    80"]
    assert lines[-1] == "    99"
