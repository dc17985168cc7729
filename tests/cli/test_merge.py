"""`pallasc merge`: the parts of shards put together, and what is said of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pallasc.specs.loading.lock_file import read_lock

RunCommand = Callable[..., Any]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def parts(run: RunCommand, built: Any) -> list[str]:
    """Return the parts of two shards, of one variant each."""
    assert run("lock", *built.arguments, "--update").code == 0
    return [write_part(run, built, number) for number in (1, 2)]


def write_part(run: RunCommand, built: Any, number: int, *more: str) -> str:
    name = f"parts/{number}.part"
    result = run("build", *built.arguments, "--shard", f"{number}/2", "--shard-output", name, *more)
    assert result.code == 0, result.err
    assert f"wrote {name}: " in result.err
    return name


def test_what_was_merged_is_what_one_machine_has(
    run: RunCommand, built: Any, parts: list[str]
) -> None:
    Path("pallasc.lock").rename("one.lock")
    merged = run("merge", *parts, "--store", "merged", "--lock", "merged.lock")
    assert (merged.code, merged.out) == (0, "")
    assert "2 shards with 2 variants: 2 hits (100 %); " in merged.err
    assert "merged.lock is written\n" in merged.err
    assert Path("merged.lock").read_text() == Path("one.lock").read_text()
    here = (built.spec, "--store", "merged")
    assert "2 hits (100 %)" in run("build", *here, "--frozen").err
    assert run("lock", *here, "--lock", "merged.lock").code == 0
    assert run("bundle", "create", *here, "--frozen", "-o", "merged.pallasc").code == 0
    assert run("bundle", "create", *built.arguments, "-o", "one.pallasc").code == 0
    assert Path("merged.pallasc").read_bytes() == Path("one.pallasc").read_bytes()
    again = run("merge", *parts, "--store", "merged", "--lock", "merged.lock")
    assert (again.code, "merged.lock is current" in again.err) == (0, True)


def test_the_report_is_that_of_one_build_with_the_shards(
    run: RunCommand, built: Any, parts: list[str]
) -> None:
    whole = json.loads(run("build", *built.arguments, "--json").out)
    result = run("merge", *parts, "--store", "merged", "--json", "--junit", "report.xml")
    data = json.loads(result.out)
    for report in (whole, data):
        for row in report["variants"]:
            assert row.pop("seconds") >= 0
    added = {name: data.pop(name) for name in ("shards", "missing", "lock")}
    assert (added["missing"], added["lock"]) == ([], None)
    assert [(s["number"], s["of"], s["file"], s["variants"]) for s in added["shards"]] == [
        (1, 2, parts[0], 1),
        (2, 2, parts[1], 1),
    ]
    assert data.pop("seconds") == max(shard["seconds"] for shard in added["shards"])
    whole.pop("seconds")
    assert data.pop("saved_s") == pytest.approx(whole.pop("saved_s"), abs=0.002)  # rounded twice
    assert data == whole
    top = ElementTree.parse("report.xml").getroot()
    assert [suite.get("name") for suite in top] == ["add (shard 1/2)", "add (shard 2/2)"]
    assert {name: top.get(name) for name in ("name", "tests", "failures", "errors")} == {
        "name": "pallasc build",
        "tests": "2",
        "failures": "0",
        "errors": "0",
    }
    assert sorted(str(case.get("name")) for case in top.iter("testcase")) == sorted(
        row["id"] for row in whole["variants"]
    )


def test_the_report_of_a_merge_divides_the_next_build(
    run: RunCommand, built: Any, parts: list[str]
) -> None:
    Path("report.json").write_text(run("merge", *parts, "--store", "merged", "--json").out)
    result = run("build", *built.arguments, "--shard", "1/2", "--costs", "report.json")
    assert result.err.startswith("shard 1/2: 1 of 2 variants, about ")


def test_a_shard_without_a_part_ends_with_3_and_the_rest_is_merged(
    run: RunCommand, built: Any, parts: list[str]
) -> None:
    result = run(
        "merge", parts[1], "--store", "merged", "--lock", "new.lock", "--json", "--junit", "r.xml"
    )
    assert result.code == 3
    data = json.loads(result.out)
    (missing,) = data["missing"]
    assert data["error"]["message"] == (
        f"there is no part of shard 1/2; 1 variant is in no part: {missing}."
    )
    assert f"error: {data['error']['message']}" in result.err
    assert "new.lock is left as it is." in result.err
    assert not Path("new.lock").exists()
    assert ElementTree.parse("r.xml").getroot().get("errors") == "1"
    there = run("build", built.spec, "--store", "merged", "--dry-run").err
    assert "1 hit (50 %), 1 missing" in there


def test_a_failure_in_a_shard_is_the_failure_of_the_merge(
    run: RunCommand, built: Any, parts: list[str]
) -> None:
    spec = Path("budget.yaml")
    spec.write_text(built.spec.read_text() + "    budget: {registers: 1}\n")
    for number in (1, 2):
        result = run(
            "build", spec, "--store", built.store, "--shard", f"{number}/2",
            "--shard-output", parts[number - 1], "--junit", "report.xml",
        )  # fmt: skip
        assert result.code == 5
    merged = run("merge", *parts, "--store", "merged", "--lock", "new.lock", "--junit", "all.xml")
    assert merged.code == 5
    assert "2 shards with 2 variants: 2 failed; " in merged.err
    assert merged.err.count("failed  add[") == 2
    assert "(shard 1/2): " in merged.err
    assert ElementTree.parse("all.xml").getroot().get("failures") == "2"
    assert not Path("new.lock").exists()


def test_a_selection_keeps_other_entries_of_the_lock(
    run: RunCommand, built: Any, parts: list[str]
) -> None:
    text = Path("pallasc.lock").read_text()
    gone = text.splitlines()[-1].replace("add[", "gone[")
    Path("pallasc.lock").write_text(f"{text}{gone}\n")
    for number in (1, 2):
        write_part(run, built, number, "-k", "dtype=f32")
    assert run("merge", *parts, "--store", "merged", "--lock", "pallasc.lock").code == 0
    lock = read_lock(Path("pallasc.lock"))
    assert lock is not None
    assert len(lock.variants) == 3
    for number in (1, 2):
        write_part(run, built, number)
    assert run("merge", *parts, "--store", "merged", "--lock", "pallasc.lock").code == 0
    assert Path("pallasc.lock").read_text() == text


def test_the_part_of_an_earlier_run_is_gone_when_a_build_fails(
    run: RunCommand, built: Any, parts: list[str]
) -> None:
    Path("broken.yaml").write_text("schema: 1\n")
    arguments = ("--shard", "1/2", "--shard-output", parts[0], "--store", built.store)
    assert run("build", "broken.yaml", *arguments).code == 2
    assert not Path(parts[0]).exists()


def test_parts_that_do_not_fit_are_refused_in_every_output(
    run: RunCommand, built: Any, parts: list[str]
) -> None:
    costs = json.loads(run("build", *built.arguments, "--json").out)
    costs["variants"][0]["saved_s"] += 1000
    Path("report.json").write_text(json.dumps(costs))
    write_part(run, built, 2, "--costs", "report.json")
    result = run("merge", *parts, "--store", "merged", "--json", "--junit", "report.xml")
    assert result.code == 2
    assert "do not belong together: their variants were divided by different costs" in result.err
    assert json.loads(result.out)["error"]["exit_code"] == 2
    assert ElementTree.parse("report.xml").getroot().get("errors") == "1"
    assert not Path("merged").exists()


def test_damage_and_foreign_files_end_with_5(run: RunCommand, parts: list[str]) -> None:
    data = Path(parts[0]).read_bytes()
    for content, message in (
        (data[:-1], f"{parts[0]} is damaged: it does not end as a part does"),
        (b"text", f"{parts[0]} is not a part of a sharded build."),
    ):
        Path(parts[0]).write_bytes(content)
        result = run("merge", *parts, "--store", "merged")
        assert (result.code, result.out) == (5, "")
        assert message in result.err
        assert "Traceback" not in result.err
    assert run("merge", "none.part").code == 2
    assert run("merge").code == 2


def test_a_store_that_cannot_be_written_ends_with_4(run: RunCommand, parts: list[str]) -> None:
    Path("file").write_text("")
    result = run("merge", *parts, "--store", "file")
    assert result.code == 4
    assert "cannot be written" in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--shard-output", "1.part"), "--shard-output needs --shard."),
        (("--shard", "1/2", "--shard-output", "1.part", "--dry-run"), "--dry-run builds nothing."),
        (("--shard", "1/2", "--shard-output", "pipe"), "pipe is not a file."),
        (("--shard", "1/2", "--shard-output", "file/1.part"), "Give --shard-output another path."),
    ],
)
def test_outputs_that_cannot_be_are_told_before_anything_is_built(
    run: RunCommand, spec: Path, arguments: tuple[str, ...], message: str
) -> None:
    os.mkfifo("pipe")
    Path("file").write_text("")
    result = run("build", spec, *arguments)
    assert result.code == 2
    assert message in result.err
    assert "variants in" not in result.err
