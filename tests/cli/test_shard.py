"""`pallasc build --shard`: which variants a job takes, what its reports say, what is a mistake."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from pallasc.compiler.builds.collect import Shard, share_of


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def built(built: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Give a copy of the store, to which checks add variants."""
    store = tmp_path_factory.mktemp("shards") / "store"
    return replace(built, store=Path(shutil.copytree(built.copy, store, symlinks=True)))


@pytest.fixture
def ids(run: Any, built: Any) -> list[str]:
    return [v["id"] for v in json.loads(run("list", built.spec, "--json").out)["variants"]]


@pytest.fixture
def lock(run: Any, built: Any) -> Path:
    """Return a lock of the two variants."""
    assert run("lock", *built.arguments, "--update").code == 0
    return Path("pallasc.lock")


def taken(run: Any, built: Any, shard: str, *more: str) -> dict[str, Any]:
    result = run("build", *built.arguments, "--shard", shard, "--json", *more)
    assert result.code == 0, result.err
    data: dict[str, Any] = json.loads(result.out)
    return data


@pytest.mark.usefixtures("lock")
def test_each_variant_is_in_one_shard_and_every_report_says_which(
    run: Any, built: Any, ids: list[str]
) -> None:
    reports = [taken(run, built, f"{number}/2", "--junit", "report.xml") for number in (1, 2)]
    assert sorted(v["id"] for report in reports for v in report["variants"]) == sorted(ids)
    for number, report in enumerate(reports, 1):
        assert report["shard"] == {"number": number, "of": 2, "variants": 1, "others": 1}
    top = ElementTree.parse("report.xml").getroot()
    assert top.get("name") == "pallasc build (shard 2/2)"
    assert [suite.get("name") for suite in top] == ["add (shard 2/2)"]
    assert [case.get("classname") for case in top.iter("testcase")] == ["add"]
    first, *_, last = run("build", *built.arguments, "--shard", "1/2").err.splitlines()
    assert first == "shard 1/2: 1 of 2 variants"
    assert last.startswith("1 variant in ")
    result = run("build", *built.arguments, "--shard", "5/9", "--locked")
    assert result.code == 0
    assert result.err.startswith("shard 5/9: 0 of 2 variants\n")
    assert "0 variants in" in result.err


def test_frozen_and_locked_hold_for_the_variants_of_the_shard(
    run: Any, built: Any, lock: Path, ids: list[str]
) -> None:
    for option in ("--frozen", "--locked"):
        assert run("build", *built.arguments, "--shard", "2/2", option).code == 0
    of = {k: taken(run, built, f"{k}/2")["variants"][0]["id"] for k in (1, 2)}
    text = lock.read_text()
    line = next(line for line in text.splitlines() if line.startswith(f"  {of[2]}: "))
    lock.rename("all.lock")
    wrong = line.replace(line.partition("artifact: ")[2][:8], "0" * 8)
    Path("other.lock").write_text(text.replace(line, wrong))
    arguments = (*built.arguments, "--lock", "other.lock", "--locked")
    assert run("build", *arguments, "--shard", "1/2").code == 0
    assert run("build", *arguments, "--shard", "2/2").code == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--shard", "0/8"), "--shard must be K/N, such as 3/8, got '0/8'."),
        (("--shard", "9/8"), "--shard must be K/N, such as 3/8, got '9/8'."),
        (("--shard", "1/1001"), "--shard must be K/N, such as 3/8, got '1/1001'."),
        (("--shard", "3-8"), "--shard must be K/N, such as 3/8, got '3-8'."),
        (("--shard", "1/2", "--lock", "none.lock"), "--lock needs --frozen or --locked."),
    ],
)
def test_wrong_values_end_with_2_and_one_sentence(
    run: Any, spec: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = run("build", spec, *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert "Traceback" not in result.err


def test_checks_are_divided_as_builds_are(run: Any, built: Any, ids: list[str]) -> None:
    arguments = ("check", *built.arguments, "--level", "artifact")
    reports = []
    for shard in ("1/2", "2/2"):
        result = run(*arguments, "--shard", shard, "--junit", "checks.xml", "--json")
        assert result.code == 0, result.err
        reports.append(json.loads(result.out))
        names = [each.get("name") for each in ElementTree.parse("checks.xml").iter()][:2]
        assert names == [f"pallasc check (shard {shard})", f"artifact (shard {shard})"]
    assert sorted(v["id"] for report in reports for v in report["variants"]) == sorted(ids)
    assert [report["shard"]["number"] for report in reports] == [1, 2]
    key = reports[0]["variants"][0]["action_key"]
    told = run("check", key, "--store", built.store, "--shard", "1/2")
    assert told.code == 2
    assert "--shard works with specs, not with bundles or action keys." in told.err


def test_shards_on_machines_of_their_own_give_the_store_of_one(
    run: Any, built: Any, lock: Path, ids: list[str]
) -> None:
    for number, dtype in enumerate(("f32", "bf16"), 1):
        chosen = (built.spec, "-k", f"dtype={dtype}", "--store", built.store)
        one = run("cache", "export", f"{number}.pack", *chosen)
        assert (one.code, one.err) == (0, "")
        assert one.out.startswith(f"wrote {number}.pack: 1 artifact, ")
    own = ("--store", "own")
    done = run("cache", "import", "1.pack", "2.pack", *own)
    assert done.out == "1.pack: 1 artifact imported\n2.pack: 1 artifact imported\n"
    report = json.loads(run("build", built.spec, "--frozen", *own, "--json").out)
    assert [row["status"] for row in report["variants"]] == ["hit", "hit"]
    assert run("cache", "verify", *own).code == 0
    again = json.loads(run("cache", "import", "1.pack", *own, "--json").out)["imported"]
    assert [again[0][name] for name in ("artifacts", "existed", "conflicts")] == [0, 1, []]
    Path("1.pack").write_bytes(Path("1.pack").read_bytes()[:-1])
    refused = run("cache", "import", "1.pack", "--store", "new")
    assert (refused.code, refused.out) == (5, "")
    assert refused.err.startswith("error: 1.pack cannot be imported: it does not end as a pack")
    assert not Path("new").exists()
    lacking = run("cache", "export", "all.pack", built.spec, "--store", "own", "--target", "b200")
    assert lacking.out.endswith("; the store lacks 2 variants\n")


def test_the_division_depends_on_ids_alone_and_is_even() -> None:
    variants: list[Any] = [
        SimpleNamespace(id=f"k{n}@{target}") for n in range(400) for target in "ab"
    ]
    shares = [share_of(Shard(number, 8), variants) for number in range(1, 9)]
    assert all(len(share.variants) + share.others == 800 for share in shares)
    assert sorted(v.id for share in shares for v in share.variants) == sorted(
        v.id for v in variants
    )
    assert all(75 < len(share.variants) < 125 for share in shares)
    less = share_of(Shard(3, 8), variants[::-2])
    assert {v.id for v in less.variants} < {v.id for v in shares[2].variants}
