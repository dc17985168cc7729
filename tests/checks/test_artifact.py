"""The artifact level on real kernels: what is wrong in the PTX has the user's line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pallasc.checks.faults import fault_finding
from pallasc.checks.findings import ARTIFACT_RULES
from pallasc.emulator.machine.machine import Machine
from pallasc.emulator.machine.memory import Actor, Fault

NEW = not metadata.version("jax").startswith("0.10.")
MORE = """

def no_wait(x):
    def body(x, o, bar, smem):
        plgpu.copy_gmem_to_smem(x, smem, bar)
        o[...] = smem[...]  # reads what no wait is over for

    return kernel(body)(x)


def old_and_new(x):
    def body(x, o, bar, smem):
        smem[...] = jnp.zeros((128,), jnp.float32)
        plgpu.commit_smem()
        plgpu.copy_gmem_to_smem(x, smem, bar)
        o[...] = smem[...]  # the copy may not be there yet
        plgpu.barrier_wait(bar)

    return kernel(body)(x)


def beside(x):
    return sound(x * 2) / 2


def half(x):
    def body(x, o, bar, smem):
        first = pl.ds(0, 64)
        plgpu.copy_gmem_to_smem(x.at[first], smem.at[first], bar)  # announces half, too
        plgpu.barrier_wait(bar)
        o[...] = smem[...]  # of which nothing has written the second half

    return kernel(body)(x)


def partly(x):
    def body(x, o, bar, smem):
        plgpu.copy_gmem_to_smem(x, smem, bar)
        plgpu.barrier_wait(bar)
        o[pl.ds(0, 128)] = smem[...]

    memory = [plgpu.Barrier(), plgpu.SMEM((128,), jnp.float32)]
    return made(body, shape=(256,), memory=memory)(x)
"""
NAMES = ("sound", "doubled", "waits_twice", "three_of_two", "no_wait", "old_and_new", "beside")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, checking: Any) -> Any:
    """Check the kernels with the artifact level, and once more what has not changed."""
    folder = tmp_path_factory.mktemp("artifact")
    (folder / "kernels.py").write_text(checking.KERNELS + MORE)
    kernels = [{"name": name} for name in NAMES]
    spec = json.loads(checking.spec_of(*kernels, {"name": "half"}, {"name": "partly"}))
    for kernel in spec["kernels"][-2:]:
        del kernel["reference"]
    (folder / "spec.yaml").write_text(json.dumps(spec))
    arguments = ("spec.yaml", "--json", "--level", "artifact", "--schedules", "2")
    first = checking.check(folder, *arguments)
    return checking.Checked(folder, first), checking.check(folder, *arguments)


@pytest.fixture
def results(ran: Any) -> Any:
    return ran[0].ran.results


def only(result: dict[str, Any]) -> dict[str, Any]:
    """Return the only finding of a result that is no race."""
    assert result["status"] == "found", result
    (finding,) = [each for each in result["findings"] if each["rule"] != "race"]
    return dict(finding)


def line(text: str, checking: Any) -> int:
    """Return the only line of the kernels with a text."""
    lines = (checking.KERNELS + MORE).splitlines()
    (number,) = [n for n, each in enumerate(lines, 1) if text in each]
    return number


@pytest.mark.parametrize("name", ["sound", "beside"])
def test_a_sound_kernel_passes_with_what_xla_makes_around_it(name: str, results: Any) -> None:
    assert (results[name]["status"], results[name]["reason"]) == ("passed", "")


def test_wrong_numbers_have_the_instruction_that_wrote_them(results: Any, checking: Any) -> None:
    finding = only(results["doubled"])
    assert finding["rule"] == "wrong-numbers"
    pattern = r"\[0\] is (\S+), expected (\S+); 128 of 128 elements differ"
    ((got, right),) = [map(float, each) for each in re.findall(pattern, finding["message"])]
    assert got == pytest.approx(2 * right)
    assert "warp 0 of block (0, 0, 0) wrote it in body_mosaic_gpu_kernel" in finding["message"]
    assert finding["instruction"].startswith("st.global")
    assert finding["location"]["line"] == line("o[...] = smem[...] + smem[...]", checking)


@pytest.mark.parametrize(
    ("name", "text"),
    [("no_wait", "reads what no wait"), ("old_and_new", "the copy may not be there yet")],
)
def test_a_wait_that_is_missing_is_found_at_the_users_line(
    name: str, text: str, results: Any, checking: Any
) -> None:
    *races, numbers = results[name]["findings"]
    assert numbers["rule"] in ("wrong-numbers", "uninitialized-read")
    assert "a wait is missing" in numbers["hint"]
    assert "race" in {race["rule"] for race in races}
    assert numbers["location"]["line"] == line(text, checking)
    assert line(text, checking) in {race["location"]["line"] for race in races}
    assert {Path(race["location"]["file"]).name for race in races} == {"kernels.py"}


@pytest.mark.parametrize(
    ("name", "text", "arrivals", "warps"),
    [
        ("waits_twice", "nobody arrives again", "0 of 128", 4),
        ("three_of_two", "three arrivals are asked for", "256 of 384", 8),
    ],
)
def test_a_deadlock_is_told_with_barrier_arrivals_and_line(
    name: str, text: str, arrivals: str, warps: int, results: Any, checking: Any
) -> None:
    finding = only(results[name])
    assert finding["rule"] == "deadlock"
    assert f"{arrivals} arrivals (num_arrivals=" in finding["message"]
    assert finding["location"]["line"] == line(text, checking)
    place, *context = finding["places"]
    assert f"and {warps - 1} more wait for" in place["text"]
    assert place["location"]["line"] == line(text, checking)
    told = {each["text"].partition(":")[0]: each["location"]["line"] for each in context}
    before = [each for each in context if each["text"].startswith("earlier in warp 0:")]
    assert before[0]["location"]["line"] == line(text, checking) - 1
    expected = arrivals.partition(" of ")[2]
    initialised = told[f"the mbarrier is initialized for {expected} arrivals"]
    if NEW:  # the tables of JAX 0.10 give it the line of the first copy
        assert initialised > line(text, checking)
    signals = {at for what, at in told.items() if what.startswith("signals it")}
    assert signals
    assert max(signals) < line(text, checking)


def test_wrong_numbers_name_the_copies_that_they_come_from(results: Any, checking: Any) -> None:
    places = only(results["doubled"])["places"]
    copies = [each for each in places if "cp.async.bulk.tensor" in each["text"]]
    assert [each["text"].partition(":")[0] for each in copies] == ["the value comes from"]
    assert copies[0]["location"]["line"] < line("o[...] = smem[...] + smem[...]", checking)


def test_a_copy_that_is_read_too_early_is_named(results: Any, checking: Any) -> None:
    numbers = results["old_and_new"]["findings"][-1]
    assert "was in flight when its result was read" in numbers["message"]
    early = [each for each in numbers["places"] if "in flight" in each["text"]]
    (place,) = early
    assert place["location"]["line"] == line("the copy may not be there yet", checking) - 1


def test_a_race_names_what_its_warps_did_between_the_accesses(results: Any, checking: Any) -> None:
    races = [each for each in results["no_wait"]["findings"] if each["rule"] == "race"]
    here = line("reads what no wait", checking)
    for race in races:
        assert {each["location"]["line"] for each in race["places"]} <= {here - 1, here}
        assert any(
            each["text"].startswith("last before the next access:") for each in race["places"]
        )
    keys = [(r["location"]["line"], r["message"].partition(",")[0]) for r in races]
    assert len(set(keys)) == len(keys), "findings of one line are told once"


def test_without_a_reference_what_nobody_wrote_is_found(results: Any) -> None:
    finding = only(results["partly"])
    assert finding["rule"] == "uninitialized-read"
    assert "; no kernel wrote it" in finding["message"]
    texts = [each["text"] for each in finding["places"]]
    assert any(text.startswith("writes other elements: st.global") for text in texts)
    assert re.search(r"\[128\] .* never written: it is nan in one run", finding["message"])
    assert results["partly"]["notes"] == [
        "the spec names no reference, so numbers are not compared"
    ]


def test_without_a_reference_a_copy_that_is_too_small_is_found(results: Any, checking: Any) -> None:
    """Its barrier expects what it copies, so that nothing else is wrong with it."""
    finding = only(results["half"])
    assert finding["rule"] == "uninitialized-read"
    assert re.search(r"\[64\] .* never written: it is nan in one run", finding["message"])
    assert finding["location"]["line"] == line("nothing has written the second half", checking)
    sources = {each["location"]["line"] for each in finding["places"]}
    assert line("announces half, too", checking) in sources


def test_unchanged_code_is_not_checked_again(ran: Any, results: Any) -> None:
    again = ran[1].results
    assert all(result["from_store"] for result in again.values())
    assert {n: r["status"] for n, r in again.items()} == {
        n: r["status"] for n, r in results.items()
    }


def test_a_bundle_is_executed_without_its_source(ran: Any, checking: Any) -> None:
    folder = ran[0].folder
    words = ["bundle", "create", "spec.yaml", "--output", "kernels.pallasc", "--keep-ptx"]
    chosen = "name=sound or name=waits_twice or name=beside or name=partly or name=doubled"
    subprocess.run(
        [sys.executable, "-P", "-m", "pallasc", *words, "--store", "store", "-k", chosen],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    again = checking.check(folder, "kernels.pallasc", "--json", "--level", "artifact")
    variants = again.report["variants"]
    found = {check["id"].partition("@")[0]: check["results"][0] for check in variants}
    assert {name: result["status"] for name, result in found.items()} == {
        "sound": "passed",
        "doubled": "passed",  # its numbers have nothing to be compared with
        "waits_twice": "found",
        "partly": "found",
        "beside": "not checked",
    }
    assert found["sound"]["notes"] == ["there is no source, so numbers are not compared"]
    assert re.fullmatch(
        r"there is no PTX of the kernel \w+: it is a kernel of XLA's, whose PTX is in no bundle; "
        "name the spec instead",
        found["beside"]["reason"],
    )


def test_every_fault_has_a_rule_of_the_level() -> None:
    emulator = Path(__file__).resolve().parents[2] / "emulator"
    pattern = re.compile(r'(?:Fault\(\s*|rule=|rule: str = )"([a-z-]+)"')
    named = {n for f in emulator.rglob("*.py") for n in pattern.findall(f.read_text())}
    assert {"misaligned", "invalid-operand", "tensor-allocation"} < named
    known = {rule.name for rule in ARTIFACT_RULES}
    for name in named:
        fault = Fault(name, "does it", actor=Actor(0, (1, 0, 0), 2))
        finding = fault_finding(fault, Machine())
        assert finding.rule in known
        assert finding.message == "warp 2 of block (1, 0, 0): does it"
    assert np.all([rule.help for rule in ARTIFACT_RULES])
