"""The interpreter level on real kernels: what it finds, where, and what it does not claim."""

import re
from pathlib import Path
from typing import Any

import jax
import pytest

from pallasc.checks.interpreter_messages import failure_finding, missing_part, race_findings

NEW = tuple(map(int, jax.__version__.split(".")[:2])) >= (0, 12)
needs_new = pytest.mark.skipif(not NEW, reason="the interpreter of JAX 0.12 sees more")


def test_a_sound_kernel_passes(checked: Any) -> None:
    assert checked.ran.code == 1, checked.ran.err
    result = checked.ran.results["sound"]
    assert (result["status"], result["findings"], result["reason"]) == ("passed", [], "")


def test_numbers_that_differ_from_the_reference_are_told_with_the_first_element(
    checked: Any,
) -> None:
    (finding,) = checked.ran.results["doubled"]["findings"]
    assert finding["rule"] == "wrong-numbers"
    assert re.match(r"out\[0\] is (\S+), expected (\S+); 128 of 128 elements differ",
                    finding["message"].replace("the result[", "out["))  # fmt: skip
    got, right = map(float, re.findall(r"-?\d+\.\d+", finding["message"])[:2])
    assert got == pytest.approx(2 * right)
    assert finding["location"]["line"] == checked.line("def doubled(x):")


def test_memory_that_nobody_wrote_is_told_apart_from_wrong_numbers(checked: Any) -> None:
    (finding,) = checked.ran.results["unwritten"]["findings"]
    assert finding["rule"] == "uninitialized-read"
    assert re.search(r"is nan, expected \S+: it was never written, or ", finding["message"])


@pytest.mark.parametrize(
    ("name", "text", "arrivals", "phase", "threads"),
    [
        ("waits_twice", "nobody arrives again", "0 of 1", 1, 1),
        ("three_of_two", "three arrivals are asked for", "2 of 3", 0, 2),
    ],
)
def test_a_deadlock_is_told_with_barrier_phase_arrivals_and_line(
    name: str, text: str, arrivals: str, phase: int, threads: int, checked: Any
) -> None:
    result = checked.ran.results[name]
    (finding,) = [f for f in result["findings"] if f["rule"] == "deadlock"]
    assert f"waits for phase {phase} of a barrier" in finding["message"]
    assert f"which has {arrivals} arrivals" in finding["message"]
    assert finding["location"]["line"] == checked.line(text)
    assert Path(finding["location"]["file"]).name == "kernels.py"
    lines = [place["location"]["line"] for place in finding["places"]]
    assert lines == [checked.line(text)] * threads


MORE = """

def inline(x):
    def body(x, o, bar, smem):
        @plgpu.inline_mgpu()
        def nothing(ctx):
            pass
        nothing()
        plgpu.copy_gmem_to_smem(x, smem, bar)
        plgpu.barrier_wait(bar)
        o[...] = smem[...]
    return kernel(body)(x)


def plain(x):
    return x + 1.0


def broken(x):
    raise ValueError("ha")
"""


@pytest.fixture(scope="module")
def unchecked(tmp_path_factory: pytest.TempPathFactory, checking: Any) -> Any:
    """Check a sound kernel next to some that cannot be checked."""
    bad = {"name": "bad", "entry": "kernels.py:sound", "reference": "kernels.py:broken"}
    kernels = (bad, *({"name": name} for name in ("inline", "plain", "sound")))
    return checking.check_kernels(tmp_path_factory.mktemp("unchecked"), MORE, kernels).ran


def test_what_the_interpreter_cannot_do_is_not_checked(unchecked: Any) -> None:
    for name, reason in (
        ("plain", "no Mosaic GPU kernel"),
        ("inline", "JAX's interpreter cannot run it"),
    ):
        result = unchecked.results[name]
        assert (result["status"], result["stopped"]) == ("not checked", False)
        assert reason in result["reason"]


def test_a_reference_that_fails_stops_the_check_of_its_variant_alone(unchecked: Any) -> None:
    assert unchecked.code == 2
    assert unchecked.results["sound"]["status"] == "passed"
    result = unchecked.results["bad"]
    assert (result["status"], result["stopped"]) == ("not checked", True)
    assert "the reference kernels.py:broken of bad failed: ValueError: ha" in result["reason"]
    assert result["error"]["file"].endswith("kernels.py")


@needs_new
def test_an_error_that_ends_a_kernel_is_told_with_what_may_be_missing(
    tmp_path: Path, checking: Any
) -> None:
    # A race is found as well, unless the multiplying warp misuses the barrier before it.
    taken = "plgpu.barrier_wait(loaded.at[slot])"
    library = Path(__file__).parents[2] / "specs" / "library"
    source = (library / "blackwell_matmul.py").read_text()
    assert taken in source
    (tmp_path / "mutant.py").write_text(source.replace(taken, "pass"))
    kernel = {
        "name": "mutant",
        "entry": "mutant.py:matmul",
        "reference": "mutant.py:matmul_reference",
        "tolerance": {"rtol": 0.01, "atol": 0.01},
        "args": {"a": "bf16[128, 192]", "b": "bf16[192, 128]"},
        "static": {"tile_m": 128, "tile_n": 128, "tile_k": 64, "max_concurrent_steps": 2},
        "targets": ["sm_100a"],
    }
    (tmp_path / "spec.yaml").write_text(checking.spec_of(kernel))
    result = checking.check(tmp_path, "spec.yaml", "--json").results["mutant"]
    found = [finding for finding in result["findings"] if finding["rule"] == "barrier-misuse"]
    assert found, result
    assert {Path(finding["location"]["file"]).name for finding in found} == {"mutant.py"}
    ended = "the error ended the kernel; races in the rest of it may be missing"
    assert ended in result["notes"]


RACE = """RACE DETECTED
  write of HostAllocationKey(memory_space_id=1, device_id=0, block_id=0, thread_id=0, \
initial_ref_count=2, buffer_id=103)[(slice(0, 128, 1),)] from \
Warpgroup(device_id=0, cluster_id=0, block_id=0, warpgroup_id=1), /a b/k.py:8:4 (body)
  clock: [1 0
 0 1]
  read of HostAllocationKey(memory_space_id=1, device_id=0, block_id=0, thread_id=0, \
initial_ref_count=2, buffer_id=103)[(slice(0, 128, 1),)] from \
Warp(device_id=0, cluster_id=0, block_id=1, warpgroup_id=0 warp_id=2), /a b/k.py:5:4 (body)
  clock: [0 1]
"""
OLD_RACE = """RACE DETECTED
  read of HostAllocationKey(memory_space_id=1, device_id=0, thread_id=0, initial_ref_count=2, \
buffer_id=103)[()] from 0, 0, /k.py:8:4 (body)
  clock: [1 0 1]
  write of HostAllocationKey(memory_space_id=1, device_id=0, thread_id=0, initial_ref_count=2, \
buffer_id=103)[()] from 0, 1 /k.py:9:4 (body)
  clock: [0 1 0]
"""


OWN_RACE = OLD_RACE.replace("from 0, 1 /k.py", "from 0, 0, /k.py")


def test_a_race_is_told_the_same_whichever_access_came_first() -> None:
    head, first, second = re.split(r"(?m)^(?=  (?:read|write) of)", RACE)
    assert race_findings([RACE, RACE]) == race_findings([head + second + first])
    (finding,) = race_findings([RACE])
    assert (finding.location.file, finding.location.line) == ("/a b/k.py", 5)  # type: ignore[union-attr]
    assert finding.places[0].location.line == 8  # type: ignore[union-attr]
    assert "the read of " in finding.message
    assert "warp 2 of warpgroup 0 of block 1 of the cluster races with the write" in finding.message


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        (OWN_RACE, True),
        (OLD_RACE, False),
        (OWN_RACE.replace("memory_space_id=1", "memory_space_id=0"), False),
        (OWN_RACE.replace("read of", "write of"), False),
    ],
    ids=["a thread with itself", "two threads", "global memory", "two writes"],
)
def test_where_jax_may_want_a_fence_for_a_refill_the_artifact_level_is_named(
    text: str, is_told: bool
) -> None:
    (finding,) = race_findings([text])
    assert ("`--level artifact` decides" in finding.hint) == is_told


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Out-of-bounds store of HostAllocationKey(memory_space_id=1): …", "out-of-bounds"),
        ("Not all copy_smem_to_gmem read-side operations completed", "unfinished-copy"),
        ("Barrier deallocated with 1 arrivals pending.", "barrier-misuse"),
        ("Thread Warpgroup(a) is awaiting phase 2, but barrier is at phase 4", "barrier-misuse"),
        ("Transposed TMA destination not supported.", None),
        ("Dynamic indexing not supported in GPU interpret mode", None),
    ],
)  # fmt: skip
def test_only_known_errors_of_the_interpreter_are_findings(text: str, rule: str | None) -> None:
    finding = failure_finding(text, None)
    assert (finding.rule if finding else None) == rule
    assert finding is None or "HostAllocationKey" not in finding.message


def test_a_message_ends_without_a_space_and_a_period() -> None:
    text = "Out-of-bounds swap of x: swapping [0:8192] but buffer has shape (4096,) . "
    finding = failure_finding(text, None)
    assert finding is not None
    assert finding.message.endswith("but buffer has shape (4096,)")


def test_a_copy_that_is_not_waited_for_is_told_in_words_of_the_kernel() -> None:
    text = (
        "Not all copy_smem_to_gmem read-side operations completed before kernel finished on "
        "thread Warpgroup(device_id=0, block_id=0, warpgroup_id=1)."
    )
    finding = failure_finding(text, None)
    assert finding is not None
    assert finding.message == (
        "the kernel ends while copy_smem_to_gmem of warpgroup 1 may still read shared memory"
    )


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("return backend.get_default_device().core_count", "it asks the GPU for the number of"),
        ("nan + semaphore", "it uses semaphores"),
        ("assert all(bm.has_trivial_window() for bm in mappings)", "it has blocks (BlockSpec)"),
        ("gathers are not supported", ""),
    ],
)
def test_what_the_interpreter_lacks_is_told_in_words(reason: str, words: str) -> None:
    told = missing_part(reason)
    assert told.startswith(words)
    assert bool(told) == bool(words)
