"""JUnit XML: exactly these elements and attributes, whatever a compiler wrote into a message."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pallasc.cli.output.junit import junit_xml
from pallasc.cli.output.outcome import build_run
from pallasc.cli.output.reports import write_report
from pallasc.errors import BudgetError, CompileError, Location, SpecError

# Jenkins' junit-10.xsd, the part of it that is used: element -> required and other attributes,
# children. What readers take besides stands under `common`.
JENKINS: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": (set(), {"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": ({"name", "tests", "failures", "errors"}, {"skipped", "time"}, {"testcase"}),
    "testcase": (
        {"name"},
        {"time", "classname"},
        {"skipped", "failure", "system-out", "system-err"},
    ),
    "failure": (set(), {"type", "message"}, set()),
    "skipped": (set(), {"type", "message"}, set()),
    "system-out": (set(), set(), set()),
    "system-err": (set(), set(), set()),
    "properties": (set(), set(), {"property"}),
    "property": ({"name", "value"}, set(), set()),
}
COMMON = {"testsuites": {"skipped"}, "testcase": {"file", "line", "properties"}}


def _check(element: ElementTree.Element) -> None:
    required, others, children = JENKINS[element.tag]
    common = COMMON.get(element.tag, set())
    assert required <= set(element.attrib) <= required | others | common
    for child in element:
        assert child.tag in children | common
        _check(child)


def _read(report: Any, root: str = "/") -> ElementTree.Element:
    top = ElementTree.fromstring(junit_xml(build_run(report), Path(root)))
    _check(top)
    return top


@pytest.fixture
def mixed(pretended: Any) -> Any:
    """Return a report with one of everything, kernels mixed."""
    of = {m: pretended.variant("matmul", m=m) for m in (1, 2, 3)}
    broken = CompileError("odd shape\nsee above", location=Location("k.txt", 7), hint="Look.")
    return pretended.report_of(
        [
            pretended.hit(of[1]),
            pretended.compiled(),
            pretended.failed(of[2], broken, output="last\x1b[31m words\n"),
            pretended.skipped(of[3]),
        ],
        interrupted=True,
    )


def test_the_whole_file(mixed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    digest = mixed.results[0].artifact.digest
    figures = f"""\
          <property name="target" value="h100-sxm" />
          <property name="arch" value="sm_90a" />
          <property name="action_key" value="{"a" * 64}" />
          <property name="digest" value="{digest}" />
          <property name="cubin_bytes" value="9512" />
          <property name="registers" value="40" />
          <property name="spill_bytes" value="0" />
          <property name="smem_bytes" value="512" />
          <property name="pallas_kernels" value="1" />"""
    figures = figures.replace("\n  ", "\n")[2:]
    place = 'file="kernels.yaml" line="4"'
    assert (
        junit_xml(build_run(mixed), tmp_path.resolve()).decode()
        == f"""\
<?xml version='1.0' encoding='utf-8'?>
<testsuites name="pallasc build" tests="4" failures="1" errors="0" skipped="1" time="1.230">
  <testsuite name="matmul" tests="3" failures="1" errors="0" skipped="1" time="0.501">
    <testcase name="matmul[m=1]@h100-sxm" classname="matmul" time="0.001" {place}>
      <properties>
        <property name="status" value="hit" />
{figures}
      </properties>
    </testcase>
    <testcase name="matmul[m=2]@h100-sxm" classname="matmul" time="0.500" {place}>
      <properties>
        <property name="status" value="failed" />
        <property name="target" value="h100-sxm" />
        <property name="arch" value="sm_90a" />
      </properties>
      <failure message="odd shape" type="CompileError">k.txt:7: odd shape
see above
  Look.</failure>
      <system-out>last words
</system-out>
    </testcase>
    <testcase name="matmul[m=3]@h100-sxm" classname="matmul" time="0.000" {place}>
      <properties>
        <property name="status" value="skipped" />
        <property name="target" value="h100-sxm" />
        <property name="arch" value="sm_90a" />
      </properties>
      <skipped message="the build stopped before" />
    </testcase>
  </testsuite>
  <testsuite name="add" tests="1" failures="0" errors="0" skipped="0" time="1.236">
    <testcase name="add@h100-sxm" classname="add" time="1.236" {place}>
      <properties>
        <property name="status" value="compiled" />
        <property name="reason" value="it is new" />
{figures}
      </properties>
    </testcase>
  </testsuite>
</testsuites>
"""
    )


def test_it_has_only_what_readers_know(mixed: Any) -> None:
    top = _read(mixed)
    assert [suite.get("name") for suite in top] == ["matmul", "add"]


def test_an_empty_build_is_an_empty_file(pretended: Any) -> None:
    top = _read(pretended.report_of([]))
    assert (len(top), top.get("tests")) == (0, "0")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("a\x00b\x08c\x1fd", "abcd"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("a\x85b\x9bc", "abc"),
        ("\ud800surrogate\udfff", "\ufffdsurrogate\ufffd"),
        ("the\ufffe\uffff end", "the end"),
        ("10 %\r20 %\r\ndone", "10 %\n20 %\ndone"),
        ("tab\tstays", "tab\tstays"),
        ("]]> <a b=\"c\"> & 'd'", "]]> <a b=\"c\"> & 'd'"),
        ("漢字 😀", "漢字 😀"),
    ],
)
def test_any_text_is_written_so_that_it_can_be_read(text: str, read: str, pretended: Any) -> None:
    error = CompileError(text)
    of = pretended.variant(text)
    case = _read(pretended.report_of([pretended.failed(of, error, output=text)]))[0][0]
    failure = case.find("failure")
    assert failure is not None
    assert (failure.text, case.findtext("system-out")) == (read, read)
    assert case.get("name") == f"{read}@h100-sxm"
    assert failure.get("message") == read.splitlines()[0]


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda p: p.failed(), "CompileError", "it broke."),
        (lambda p: p.failed(error=BudgetError("41 registers")), "BudgetError", "41 registers"),
        (lambda p: p.failed(error=CompileError("")), "CompileError", ""),
    ],
)
def test_a_failure_says_what_kind_it_is(
    make: Callable[[Any], Any], kind: str, message: str, pretended: Any
) -> None:
    failure = _read(pretended.report_of([make(pretended)])).find(".//failure")
    assert failure is not None
    assert (failure.get("type"), failure.get("message")) == (kind, message)


def test_what_a_dry_run_misses_is_skipped(pretended: Any) -> None:
    suite = _read(pretended.report_of([pretended.missing()]))[0]
    assert (suite.get("skipped"), suite.get("failures")) == ("1", "0")
    skipped = suite.find(".//skipped")
    assert skipped is not None
    assert skipped.get("message") == "not in the store, and not compiled"


def test_files_outside_of_the_repository_keep_their_path(pretended: Any) -> None:
    of = pretended.variant(place=Location("/elsewhere/kernels.yaml"))
    case = _read(pretended.report_of([pretended.hit(of)]), "/repository")[0][0]
    assert (case.get("file"), case.get("line")) == ("/elsewhere/kernels.yaml", None)


def test_writing_replaces_the_file_and_leaves_nothing_else(mixed: Any, tmp_path: Path) -> None:
    path, data = tmp_path / "reports" / "pallasc.xml", junit_xml(build_run(mixed), Path.cwd())
    for _ in range(2):
        write_report(data, path, "--junit")
        assert os.listdir(path.parent) == ["pallasc.xml"]
    assert path.read_bytes() == data


def test_a_link_keeps_leading_to_the_file(mixed: Any, tmp_path: Path) -> None:
    (tmp_path / "link.xml").symlink_to("real.xml")
    write_report(junit_xml(build_run(mixed), Path.cwd()), tmp_path / "link.xml", "--junit")
    assert (tmp_path / "link.xml").is_symlink()
    assert ElementTree.parse(tmp_path / "real.xml").getroot().tag == "testsuites"


def test_a_pipe_is_written_into_and_not_replaced(mixed: Any, tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_report(junit_xml(build_run(mixed), Path.cwd()), path, "--junit")
        assert os.read(reader, 65536) == junit_xml(build_run(mixed), Path.cwd())
    finally:
        os.close(reader)
    assert path.is_fifo()


def test_a_folder_that_cannot_be_written_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match=r"report\.xml cannot be written: File exists\."):
        write_report(b"", tmp_path / "file" / "report.xml", "--junit")
