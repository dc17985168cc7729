"""What `pallasc check` writes: terminal, SARIF, JUnit, annotations."""

import io
import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pallasc.checks.findings import Finding, LevelResult, Place, from_findings, not_checked
from pallasc.checks.levels import LEVELS, rules_of
from pallasc.checks.report import Report, VariantCheck
from pallasc.cli.output.check_text import (
    error_lines,
    events,
    finding_lines,
    interrupted_lines,
    outcome_lines,
    summary_line,
)
from pallasc.cli.output.code_hosts import github_commands, sarif
from pallasc.cli.output.junit import junit_xml
from pallasc.cli.output.outcome import check_run, checked
from pallasc.cli.output.progress import Progress
from pallasc.cli.output.text import Screen
from pallasc.errors import Location, SpecError


def _assert_sarif(data: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Check the essentials of the schema, and return the results."""
    assert data["version"] == "2.1.0"
    assert data["$schema"].endswith("sarif-2.1.0.json")
    (run,) = data["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "pallasc"
    rules = driver["rules"]
    for rule in rules:
        assert rule["id"]
        assert rule["shortDescription"]["text"].endswith(".")
        assert rule["help"]["text"]
        assert rule["fullDescription"]["text"]
    assert run["originalUriBaseIds"]["%SRCROOT%"]["uri"] == f"{folder.as_uri()}/"
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        assert result["message"]["text"]
        for place in (*result["locations"], *result.get("relatedLocations", ())):
            physical = place["physicalLocation"]
            assert physical["artifactLocation"]["uriBaseId"] == "%SRCROOT%"
            assert not physical["artifactLocation"]["uri"].startswith(("/", "file:"))
            assert physical["region"]["startLine"] >= 1
        assert result["partialFingerprints"]["pallasc/v1"]
    (invocation,) = run["invocations"]
    assert type(invocation["executionSuccessful"]) is bool
    results: list[dict[str, Any]] = run["results"]
    return results


def _checked(name: str, *results: LevelResult, origin: Location | None = None) -> VariantCheck:
    found = {result.level: result for result in results}
    return VariantCheck(name, origin=origin, found=found)


def _summary(report: Report) -> str:
    return summary_line(check_run(report), report)


def test_one_run_writes_lines_sarif_junit_and_annotations(
    checked: Any, checking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    files = ("--sarif", "out/findings.sarif", "--junit", "report.xml")
    ran = checking.check(checked.folder, "spec.yaml", *files, "--annotations", "github")
    assert "passed       interpreter  sound@h100-sxm  from the store" in ran.out
    assert (
        "found        interpreter  waits_twice@h100-sxm  from the store\n  kernels.py:" in ran.out
    )
    assert ": error: the only running thread waits forever: " in ran.out
    assert "[deadlock]" in ran.out
    assert "\ndeadlock: All threads that still run" in ran.out
    assert "5 variants in " in ran.err
    assert "1 level passed, 4 levels found mistakes; " in ran.err
    assert ran.err.rstrip().splitlines()[-1].endswith("5 from the store")
    (line,) = [line for line in ran.err.splitlines() if "title=deadlock%3A waits_twice" in line]
    assert line.startswith("::error file=kernels.py,line=")

    data = json.loads((checked.folder / "out" / "findings.sarif").read_text())
    results = _assert_sarif(data, checked.folder.resolve())
    assert {result["ruleId"] for result in results} >= {"deadlock", "wrong-numbers"}
    assert {r["id"] for r in data["runs"][0]["tool"]["driver"]["rules"]} >= {"race"}
    dead = next(result for result in results if result["ruleId"] == "deadlock")
    assert dead["relatedLocations"]
    assert "Variants: waits_twice@h100-sxm" in dead["message"]["text"]

    (suite,) = ElementTree.parse(checked.folder / "report.xml").getroot().findall("testsuite")
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == (
        "interpreter",
        "5",
        "4",
    )
    cases = {case.get("name"): case for case in suite.findall("testcase")}
    failure = cases["doubled@h100-sxm"].find("failure")
    assert failure is not None
    assert failure.get("type") == "wrong-numbers"
    assert cases["sound@h100-sxm"].find("failure") is None


@pytest.mark.parametrize(("option", "begins"), [("--sarif", '{\n "$schema"'), ("--junit", "<?xml")])
def test_a_report_is_printed_in_place_of_the_lines(
    checked: Any, checking: Any, option: str, begins: str
) -> None:
    ran = checking.check(checked.folder, "spec.yaml", option, "-")
    assert ran.code == 1
    assert ran.out.startswith(begins)
    assert ran.out.rstrip().endswith(("}", "</testsuites>"))
    assert not (checked.folder / "-").exists()


@pytest.mark.parametrize(
    ("options", "both"),
    [
        (("--json", "--sarif", "-"), "--json and --sarif -"),
        (("--sarif", "-", "--junit", "-"), "--junit - and --sarif -"),
    ],
)
def test_two_reports_on_the_standard_output_are_refused(
    checked: Any, checking: Any, options: tuple[str, ...], both: str
) -> None:
    ran = checking.check(checked.folder, "spec.yaml", *options)
    assert (ran.code, ran.out) == (2, "")
    assert f"{both} both write to the standard output: name a file for --sarif.\n" in ran.err


def test_an_error_that_ends_the_check_is_in_every_output(project: Path, checking: Any) -> None:
    (project / "spec.yaml").write_text("schema: 1\nkernels: 3\n")
    ran = checking.check(
        project, "spec.yaml", "--json", "--sarif", "a.sarif", "--junit", "b.xml",
        "--annotations", "github",
    )  # fmt: skip
    assert ran.code == 2
    assert "expected a list of kernels" in ran.report["error"]["message"]
    run = json.loads((project / "a.sarif").read_text())["runs"][0]
    assert run["invocations"][0]["executionSuccessful"] is False
    assert b"expected a list of kernels" in (project / "b.xml").read_bytes()
    assert "::error " in ran.err


def test_an_interrupt_is_told_with_what_is_left() -> None:
    done = _checked("done@h100", from_findings("interpreter", ()))
    left = VariantCheck("left@h100")
    report = Report((done, left), 1.5, ("interpreter",), interrupted=True)
    assert (report.exit_code, report.left) == (130, 1)
    assert _summary(report) == "2 variants in 1.5 s: 1 level passed, interrupted, 1 variant left"
    many = Report((left,) * 25, 1.5, ("interpreter",), interrupted=True)
    assert [*interrupted_lines(check_run(many))][20:] == ["not checked  and 5 more"]


HOSTILE = "\x1b[31m\n::error::x\u202e%0A<&\"'>\ud800]]>"


def _hostile_report() -> Any:
    place = Location("a b/k,1:2.py", 3, 4)
    finding = Finding(
        rule="race",
        message=HOSTILE,
        location=place,
        instruction=HOSTILE,
        hint=HOSTILE,
        places=(Place(HOSTILE, place), Place(HOSTILE)),
    )
    results = (
        from_findings("interpreter", (finding,)),
        not_checked("artifact", HOSTILE, stopped=True),
    )
    return Report((_checked(HOSTILE, *results),), 1.0, ("interpreter", "artifact"))


def _assert_harmless(text: str) -> None:
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert not any(line.startswith("::error::x") for line in text.splitlines())


def test_hostile_words_do_no_harm_in_any_output(tmp_path: Path) -> None:
    report = _hostile_report()
    lines = [
        line
        for r in report.checks[0].results
        for line in outcome_lines(checked(HOSTILE, None, r, from_store=False))
    ]
    _assert_harmless("\n".join(lines))
    assert all("\n" not in line for line in lines)
    junit = junit_xml(check_run(report), tmp_path)
    _assert_harmless(junit.decode())
    assert ElementTree.fromstring(junit).find(".//failure") is not None
    data = json.loads(sarif(check_run(report), rules_of(LEVELS), tmp_path, version="1.2.3"))
    _assert_harmless(json.dumps(data, ensure_ascii=False))
    (result,) = data["runs"][0]["results"]
    uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert "a%20b/k%2C1%3A2.py" in uri
    for command_line in github_commands(check_run(report), Path.cwd()):
        assert command_line.startswith("::error ")
        assert len(command_line.splitlines()) == 1
        _assert_harmless(command_line)


def _note_and_failures() -> tuple[Finding, ...]:
    note = Finding(rule="nothing-compared", message="all are undefined", severity="note")
    first = Finding(rule="race", message="two writes", severity="warning")
    second = Finding(rule="deadlock", message="all wait", hint="wait less")
    return note, first, second


def _report_of(*findings: Finding, origin: Location | None = None) -> Report:
    check = _checked("k@h100", from_findings("artifact", findings), origin=origin)
    return Report((check,), 1.0, ("artifact",))


def test_junit_has_one_failure_a_case_and_none_for_notes(tmp_path: Path) -> None:
    note, *failures = _note_and_failures()
    noted = ElementTree.fromstring(junit_xml(check_run(_report_of(note)), tmp_path))
    assert noted.get("failures") == "0"
    assert noted.find(".//failure") is None
    (told,) = noted.findall(".//testcase/system-out")
    assert told.text == "note: all are undefined [nothing-compared]"
    top = ElementTree.fromstring(junit_xml(check_run(_report_of(note, *failures)), tmp_path))
    assert top.get("failures") == "1"
    (failure,) = top.findall(".//failure")
    assert (failure.get("type"), failure.get("message")) == ("race", "two writes (and 1 more)")
    assert failure.text == ("warning: two writes [race]\nerror: all wait [deadlock]\n  wait less")
    assert top.find(".//system-out") is not None


def test_github_has_a_kind_for_each_severity(tmp_path: Path) -> None:
    lines = github_commands(check_run(_report_of(*_note_and_failures())), tmp_path)
    kinds = ["::error title=deadlock", "::warning title=race", "::notice title=nothing-compared"]
    assert [line.split("%")[0] for line in lines] == kinds


def test_the_summary_tells_notes_from_findings() -> None:
    note, *failures = _note_and_failures()
    assert _summary(_report_of(note)) == "1 variant in 1.0 s: 1 level passed; 1 note"
    both = _summary(_report_of(note, *failures))
    assert both == "1 variant in 1.0 s: 1 level found mistakes; 2 findings, 1 note"


def test_findings_of_a_bundle_are_placed_at_it(tmp_path: Path) -> None:
    bundle = tmp_path / "kernels.pallasc"
    failure = _note_and_failures()[2]
    report = _report_of(failure, origin=Location(str(bundle)))
    (run,) = json.loads(sarif(check_run(report), rules_of(LEVELS), tmp_path, version="1"))["runs"]
    (result,) = run["results"]
    (place,) = result["locations"]
    assert place["physicalLocation"] == {
        "artifactLocation": {"uri": "kernels.pallasc", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 1},
    }
    (line,) = github_commands(check_run(report), tmp_path)
    assert line.startswith("::error file=kernels.pallasc,title=deadlock")
    junit = ElementTree.fromstring(junit_xml(check_run(report), tmp_path))
    (case,) = junit.iter("testcase")
    assert (case.get("file"), case.get("line")) == ("kernels.pallasc", None)


def test_a_place_without_a_source_line_is_told_once_with_its_ptx_lines() -> None:
    arrives = [Place("arrives: mbarrier.arrive", ptx_line=line) for line in (7, 9, 7)]
    places = (*arrives, Place("waits", ptx_line=12), Place("waits", Location("k.py", 3), 12))
    finding = Finding(rule="deadlock", message="all wait", places=places)
    lines = [*finding_lines(finding, Location("kernels.pallasc"))]
    assert lines == [
        "  kernels.pallasc: error: all wait [deadlock]",
        "    arrives: mbarrier.arrive, PTX lines 7, 9",
        "    waits, PTX line 12",
        "    k.py:3: waits",
    ]


def test_a_finding_without_a_line_is_at_its_kernel_in_the_spec(
    capsys: pytest.CaptureFixture[str],
) -> None:
    finding = Finding(rule="memory-limit", message="too much")
    check = VariantCheck("k@h100", origin=Location("kernels.pallasc"))
    progress = Progress(Screen(io.StringIO()))
    listeners = events(progress, silent=False)
    listeners.on_result(check, from_findings("artifact", (finding,)), False)
    assert "\n  kernels.pallasc: error: too much [memory-limit]\n" in capsys.readouterr().out


def test_a_quiet_check_shows_only_what_makes_it_fail(capsys: pytest.CaptureFixture[str]) -> None:
    check = VariantCheck("k@h100")
    progress = Progress(Screen(sys.stderr), quiet=True)
    listeners = events(progress, silent=False)
    note = Finding(rule="spills", message="some", severity="note")
    for finding in ((), (note,), (Finding(rule="deadlock", message="all wait"),)):
        listeners.on_result(check, from_findings("artifact", finding), False)
    listeners.on_tick([("k@h100", 60.0)], 0, 2)
    out, err = capsys.readouterr()
    assert (out, err) == (
        "found        artifact     k@h100  0.0 s\n  error: all wait [deadlock]\n",
        "",
    )


def test_the_page_lists_every_rule() -> None:
    page = (Path(__file__).parents[2] / "docs" / "check.md").read_text()
    assert all(f"| `{name}` |" in page for name in rules_of(LEVELS))


def test_an_error_of_several_variants_is_told_once_with_its_place() -> None:
    failed = SpecError("the reference failed", location=Location("ref.py", 3))
    plain = SpecError("no memory")
    stopped = [
        VariantCheck(name, errors={"artifact": failed, "interpreter": plain})
        for name in ("a", "b", "c")
    ]
    report = Report(tuple(stopped), 1.0, ("artifact", "interpreter"))
    told = "a: artifact and 2 other results: ref.py:3: the reference failed"
    assert [*error_lines(report)] == [told]
