"""JUnit XML: exactly these elements and attributes, whatever a compiler wrote into a message."""

import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pallasc.cli.output.junit import junit_xml
from pallasc.cli.output.outcome import build_run
from pallasc.cli.output.reports import write_report
from pallasc.errors import BudgetError, CompileError, Location, SpecError


def _read(report: Any, root: str = "/") -> ElementTree.Element:
    return ElementTree.fromstring(junit_xml(build_run(report), Path(root)))


def test_the_whole_file(pretended: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    of = {m: pretended.variant("matmul", m=m) for m in (1, 2, 3)}
    broken = CompileError("odd shape\nsee above", location=Location("k.txt", 7), hint="Look.")
    hit = pretended.hit(of[1])
    failed = pretended.failed(of[2], broken, output="last\x1b[31m words\n")
    results = [hit, pretended.compiled(), failed, pretended.skipped(of[3])]
    mixed = pretended.report_of(results, interrupted=True)
    figures = f"""\
        <property name="target" value="h100-sxm" />
        <property name="arch" value="sm_90a" />
        <property name="action_key" value="{"a" * 64}" />
        <property name="registers" value="40" />
        <property name="spill_bytes" value="0" />
        <property name="stack_bytes" value="0" />
        <property name="smem_bytes" value="512" />
        <property name="cubin_bytes" value="9512" />
        <property name="digest" value="{hit.artifact.digest}" />
        <property name="pallas_kernels" value="1" />"""
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


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("a\x00b\x08c\x1fd \x1b[31mred\x1b[0m a\x85b\x9bc", "abcd red abc"),
        ("\ud800surrogate\udfff", "\ufffdsurrogate\ufffd"),
        ("the\ufffe\uffff end", "the end"),
        ("10 %\r20 %\r\ndone", "10 %\n20 %\ndone"),
        ("tab\tstays ]]> <a b=\"c\"> & 'd' 漢字 😀", "tab\tstays ]]> <a b=\"c\"> & 'd' 漢字 😀"),
    ],
)
def test_any_text_is_written_so_that_it_can_be_read(text: str, read: str, pretended: Any) -> None:
    failed = pretended.failed(pretended.variant(text), CompileError(text), output=text)
    case = _read(pretended.report_of([failed]))[0][0]
    failure = case.find("failure")
    assert failure is not None
    assert (failure.text, case.findtext("system-out")) == (read, read)
    assert case.get("name") == f"{read}@h100-sxm"
    assert failure.get("message") == read.splitlines()[0]


def test_a_failure_says_what_kind_it_is_and_what_a_dry_run_misses_is_skipped(
    pretended: Any,
) -> None:
    errors = [BudgetError("41 registers"), CompileError("")]
    elsewhere = pretended.variant(place=Location("/elsewhere/kernels.yaml"))
    results = [*(pretended.failed(error=error) for error in errors), pretended.missing(elsewhere)]
    suite = _read(pretended.report_of(results), "/repository")[0]
    found = [(each.get("type"), each.get("message")) for each in suite.iter("failure")]
    assert found == [("BudgetError", "41 registers"), ("CompileError", "")]
    assert (suite.get("skipped"), suite.get("failures")) == ("1", "2")
    (skipped,) = suite.iter("skipped")
    assert skipped.get("message") == "not in the store, and not compiled"
    assert (suite[2].get("file"), suite[2].get("line")) == ("/elsewhere/kernels.yaml", None)
    nothing = _read(pretended.report_of([]))
    assert (len(nothing), nothing.get("tests")) == (0, "0")


def test_writing_replaces_the_file_and_leaves_nothing_else_and_links_stay(tmp_path: Path) -> None:
    path = tmp_path / "reports" / "pallasc.xml"
    for data in (b"old", b"new"):
        write_report(data, path, "--junit")
        assert os.listdir(path.parent) == ["pallasc.xml"]
    assert path.read_bytes() == b"new"
    (tmp_path / "link.xml").symlink_to("real.xml")
    write_report(b"data", tmp_path / "link.xml", "--junit")
    assert (tmp_path / "link.xml").is_symlink()
    assert (tmp_path / "real.xml").read_bytes() == b"data"
    with pytest.raises(SpecError, match=r"xml/report\.xml cannot be written: (Fi|Not a d)"):
        write_report(b"", path / "report.xml", "--junit")
