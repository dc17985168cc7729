"""Budgets relative to a baseline: each rule trips, holds, and is told with its place."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pallasc.specs.artifacts.artifact import Resources
from pallasc.specs.loading.lock import Lock, read_lock, write_lock

LOCK = Path("pallasc.lock")
FIRST, SECOND = "add[m=1024,dtype=f32]@h100-sxm", "add[m=1024,dtype=bf16]@h100-sxm"


class Gated:
    """A spec whose variants are in the store, and a lock that says what they took."""

    def __init__(self, folder: Path, built: Any, run: Any) -> None:
        self.spec, self._text = folder / "kernels.yaml", built.spec.read_text()
        self._run, self._store = run, built.store
        self.limit()
        assert run("lock", "kernels.yaml", "--update", "--store", built.store).code == 0
        lock = read_lock(LOCK)
        assert lock is not None
        self.lock: Lock = lock

    def limit(self, **limits: int | str) -> None:
        budget = f"    budget: {json.dumps(limits)}\n" if limits else ""
        self.spec.write_text(self._text + budget)

    def before(self, change: dict[str, int | None], *names: str) -> None:
        """Have the lock say that variants took something else."""
        taken = {
            name: each._replace(**change) if name in (names or self.lock.resources) else each
            for name, each in self.lock.resources.items()
        }
        write_lock(LOCK, replace(self.lock, resources=taken))

    def build(self, *options: str | Path) -> Any:
        return self._run("build", "kernels.yaml", "--store", self._store, *options)

    @property
    def taken(self) -> Resources:
        return self.lock.resources[FIRST]


@pytest.fixture
def gated(built: Any, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gated:
    monkeypatch.chdir(tmp_path)
    return Gated(tmp_path, built, run)


@pytest.mark.parametrize(
    ("field", "rule", "better"),
    [
        ("registers", "<= baseline", 0),
        ("cubin_bytes", "+64", -64),
        ("occupancy", ">= baseline", 0),
        ("occupancy", "-2", 2),
    ],
)
def test_each_rule_holds_up_to_its_limit_and_trips_beyond_it(
    gated: Gated, field: str, rule: str, better: int
) -> None:
    now = getattr(gated.taken, field)
    assert None not in gated.taken
    step = 1 if field == "occupancy" else -1
    gated.limit(**{field: rule})
    gated.before({field: now + better}, FIRST)
    assert gated.build().code == 0
    gated.before({field: now + better + step}, FIRST)
    tripped = gated.build()
    assert tripped.code == 5
    assert tripped.err.count("the budget is") == 1
    assert rule in tripped.err
    assert f"{now + better + step} in pallasc.lock" in tripped.err


def test_a_build_that_is_over_its_budget_lists_the_variants_once_a_kernel(gated: Gated) -> None:
    gated.limit(registers="+8", cubin_bytes="+10 %")
    gated.before({"registers": 1, "cubin_bytes": 100})
    tripped = gated.build("--junit", "report.xml", "--annotations", "github")
    assert tripped.code == 5
    commands = [line for line in tripped.err.splitlines() if line.startswith("::error")]
    assert len(commands) == 1
    assert f"title={FIRST.replace(',', '%2C')} failed and 1 more::" in commands[0]
    assert "file=kernels.yaml,line=10," in commands[0]
    assert f"{SECOND}: " in commands[0]
    top = ElementTree.parse("report.xml").getroot()
    assert (top.get("tests"), top.get("failures")) == ("2", "2")
    for failure in top.iter("failure"):
        text = failure.text or ""
        assert "registers; the budget is +8 (1 in pallasc.lock)" in text
        assert "bytes; the budget is +10 % (100 in pallasc.lock)" in text


def test_a_rule_without_a_baseline_is_an_error_at_its_place(gated: Gated) -> None:
    gated.limit(smem_bytes=232448, registers="+8")
    LOCK.unlink()
    refused = gated.build()
    assert refused.code == 2
    assert refused.err.splitlines()[-2:] == [
        "error: kernels.yaml:10:49: add.budget.registers: '+8' is relative to a baseline, "
        "and there is no pallasc.lock here.",
        "  Make one with: pallasc lock SPECS --update; or name one with --baseline.",
    ]


def test_baselines_that_cannot_be_compared_with_are_refused_or_reported(gated: Gated) -> None:
    gated.limit(registers="+8")
    write_lock(LOCK, replace(gated.lock, resources={SECOND: gated.lock.resources[SECOND]}))
    lacking = gated.build()
    assert lacking.code == 0
    assert (
        "warning: pallasc.lock has no resources of these variants, so their relative budgets were "
        f"not checked: {FIRST}"
    ) in lacking.err.splitlines()
    missing = gated.build("--baseline", "none.lock")
    assert missing.code == 2
    assert "error: --baseline: there is no none.lock." in missing.err
    Path("cut.pallasc").write_bytes(b"\xff")
    bundle = gated.build("--baseline", "cut.pallasc")
    assert bundle.code == 2
    assert bundle.err.splitlines()[-2:] == [
        "error: cut.pallasc:1: byte 0xff is not UTF-8.",
        "  Give a lock file: pallasc lock SPECS --update writes it.",
    ]
