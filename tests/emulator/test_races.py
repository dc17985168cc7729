"""Races are found in kernels that lack one synchronisation, and in no kernel that lacks none."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mutants import mutants, wait_twice

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.emulator.machine.machine import Deadlock, Machine, Policy
from pallasc.emulator.machine.memory import Fault
from pallasc.emulator.program import PlanRun
from pallasc.emulator.races.observer import Races
from pallasc.emulator.races.threads import Finding
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml

POLICIES = [
    Policy(),
    Policy(seed=2, shuffle=True, eagerness=0.5),
    Policy(seed=3, shuffle=True, eagerness=1),
]


KERNELS = ["hopper", "blackwell", "dequant", "softmax"]


def kernel(module: str, function: str, *args: str, target: str, **static: int) -> dict[str, Any]:
    return {
        "name": module.partition("_")[0],
        "entry": f"pallasc.specs.library.{module}:{function}",
        "args": list(args),
        "static": static,
        "targets": [target],
    }


STEPS = {"max_concurrent_steps": 2}
PRODUCT = ("bf16[128, 320]", "bf16[320, 128]")
QUANTIZED = ("bf16[128, 256]", "i8[256, 128]", "f32[128]")
SPEC = {
    "schema": 1,
    "kernels": [
        kernel("hopper_matmul", "matmul", *PRODUCT, target="sm_90a", **STEPS),
        kernel("blackwell_matmul", "matmul", *PRODUCT, target="sm_100a", **STEPS),
        kernel("dequant_matmul", "dequant_matmul", *QUANTIZED, target="sm_90a", **STEPS),
        kernel("softmax", "softmax", "f32[4, 1024]", target="sm_90a", rows_per_block=4),
    ],
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Artifact]:
    """Compile small kernels of the library; return a function that gives one by its name."""
    folder = tmp_path_factory.mktemp("races")
    (folder / "spec.yaml").write_text(json.dumps(SPEC))
    variants = expand(load_yaml(folder / "spec.yaml"))
    report = build(variants, store=Store(folder / "store"), options=Options(jobs=1))
    made = {result.variant.name: result.artifact for result in report.results}

    def get(name: str) -> Artifact:
        artifact = made[name]
        assert artifact is not None
        return artifact

    return get


def arrays(artifact: Artifact) -> list[np.ndarray]:
    dtypes = {"bf16": ml_dtypes.bfloat16, "f32": np.float32, "i8": np.int8}
    generator = np.random.default_rng(5)
    return [
        generator.integers(-3, 4, binding.shape).astype(dtypes[binding.dtype])
        for binding in artifact.plan.inputs
    ]


def observe(
    artifact: Artifact,
    policy: Policy | None = None,
    text: str | None = None,
    races: Races | None = None,
) -> list[Finding]:
    races = races or Races()
    machine = Machine(policy or Policy(seconds=600), observer=races)
    ptx = {} if text is None else {artifact.plan.launches[0].cubin: text}
    PlanRun(artifact, machine, ptx).run([arrays(artifact)])
    return races.findings


def text_of(artifact: Artifact) -> str:
    (kernel,) = artifact.kernels
    assert kernel.ptx is not None
    return artifact.blob(kernel.ptx).decode()


def rules(artifact: Artifact, text: str) -> set[str]:
    """Return the rules that a changed text breaks, whether they end the run or not."""
    races = Races()
    ended = set()
    try:
        observe(artifact, text=text, races=races)
    except Fault as fault:
        ended = {fault.rule}
    return ended | {finding.rule for finding in races.findings}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_that_lacks_nothing_races_in_no_order_of_warps(
    compiled: Callable[[str], Artifact], name: str
) -> None:
    artifact = compiled(name)
    for policy in POLICIES:
        assert observe(artifact, policy) == []


FOUND = {
    ("hopper", "without fence.mbarrier_init"): "missing-mbarrier-fence",
    ("hopper", "without fence.proxy.async"): "missing-proxy-fence",
    ("hopper", "without wgmma.fence"): "wgmma-fence",
    ("hopper", "without wgmma.commit_group"): "wgmma-not-awaited",
    ("hopper", "without cp.async.bulk.wait_group"): "bulk-store-not-awaited",
    ("hopper", "one arrival less"): "too-many-arrivals",
    ("hopper", "half the bytes"): "deadlock",
    ("hopper", "without mbarrier.arrive"): "deadlock",
    ("blackwell", "without fence.mbarrier_init"): "missing-mbarrier-fence",
    ("blackwell", "without fence.proxy.async"): "missing-proxy-fence",
    ("blackwell", "without tcgen05.commit"): "deadlock",
}


@pytest.mark.parametrize(("name", "what"), FOUND)
def test_every_mutant_of_a_kind_is_found(
    compiled: Callable[[str], Artifact], name: str, what: str
) -> None:
    artifact = compiled(name)
    made = [mutant for mutant in mutants(text_of(artifact)) if mutant.what == what]
    assert made
    missed = [m.line for m in made if FOUND[name, what] not in rules(artifact, m.text)]
    assert not missed


SOME = {
    ("hopper", "without wgmma.wait_group"): "overwritten-in-flight",
    ("hopper", "wait_group 1"): "overwritten-in-flight",
    ("dequant", "without bar.sync"): "overwritten-in-flight",
    ("dequant", "without mbarrier.try_wait"): "async-write-not-awaited",
    ("blackwell", "without tcgen05.commit"): "deadlock",
}


@pytest.mark.parametrize(("name", "what"), SOME)
def test_a_mutant_of_a_kind_is_found_where_others_change_nothing(
    compiled: Callable[[str], Artifact], name: str, what: str
) -> None:
    artifact = compiled(name)
    made = [mutant for mutant in mutants(text_of(artifact)) if mutant.what == what]
    assert any(SOME[name, what] in rules(artifact, mutant.text) for mutant in made)


def test_each_warp_needs_a_fence_of_its_own_before_it_loads_from_tensor_memory(
    compiled: Callable[[str], Artifact],
) -> None:
    """That of one warp is not for the others, though they pass a barrier after it."""
    artifact = compiled("blackwell")
    text = text_of(artifact)
    load = text[: text.index("tcgen05.ld")].count("\n") + 1
    fences = [m for m in mutants(text) if m.what == "without tcgen05.fence" and m.line < load]
    assert "missing-tensor-fence" in rules(artifact, fences[-1].text)


def test_a_copy_that_outlives_its_block_is_found(compiled: Callable[[str], Artifact]) -> None:
    artifact = compiled("dequant")
    text = re.sub(r"mbarrier\.try_wait[^;]*;", "mov.pred P1, -1;", text_of(artifact))
    found = rules(artifact, text)
    assert found & {"copy-not-awaited", "async-write-not-awaited"}
    assert "mbarrier-bytes-left" not in found  # it is right: the copy is only not complete yet


def test_a_bulk_store_that_the_last_wait_leaves_is_told(
    compiled: Callable[[str], Artifact],
) -> None:
    artifact = compiled("hopper")
    text = text_of(artifact)
    pattern = r"cp\.async\.bulk\.wait_group(\.read)?\s+0;"
    assert re.search(pattern, text)
    for kind in (" 1;", ".read 1;"):
        changed = re.sub(pattern, f"cp.async.bulk.wait_group{kind}", text)
        assert {f.rule for f in observe(artifact, text=changed)} == {"bulk-store-not-awaited"}


def test_a_finding_names_both_instructions_and_what_is_missing(
    compiled: Callable[[str], Artifact],
) -> None:
    artifact = compiled("hopper")
    (mutant,) = [m for m in mutants(text_of(artifact)) if m.what == "without fence.proxy.async"]
    finding = observe(artifact, text=mutant.text)[0]
    assert finding.first is not None
    assert finding.first.instruction.opcode.startswith(("stmatrix", "st.shared"))  # JAX 0.10
    assert finding.first.instruction.line < mutant.line < finding.second.instruction.line
    assert finding.second.instruction.opcode.startswith("cp.async.bulk.tensor")
    assert finding.message == (
        "no fence.proxy.async between the store and the bulk store that reads the same bytes"
    )
    assert finding.memory == "shared memory of block (0, 0, 0)"
    assert finding.begin is not None
    assert finding.end is not None
    assert 0 < finding.end - finding.begin <= 128 * 128 * 2
    assert finding.fault().rule == "missing-proxy-fence"
    assert finding.first.instruction.text in str(finding)


def test_findings_do_not_depend_on_luck(compiled: Callable[[str], Artifact]) -> None:
    artifact = compiled("hopper")
    (mutant,) = [m for m in mutants(text_of(artifact)) if m.what == "without fence.proxy.async"]
    for policy in POLICIES:
        assert [f.rule for f in observe(artifact, policy, mutant.text)] != []


def test_a_second_wait_for_a_barrier_is_a_deadlock_that_says_so(
    compiled: Callable[[str], Artifact],
) -> None:
    artifact = compiled("hopper")
    with pytest.raises(Deadlock) as caught:
        observe(artifact, text=wait_twice(text_of(artifact), 0).text)
    assert "waits for more phases than the barrier completes" in str(caught.value)
    assert len(str(caught.value).splitlines()) < 30


def test_an_arrival_too_many_asked_for_is_a_deadlock_that_says_who_is_left(
    compiled: Callable[[str], Artifact],
) -> None:
    artifact = compiled("hopper")
    made = [m for m in mutants(text_of(artifact)) if m.what == "one arrival more"]
    with pytest.raises(Deadlock, match="arrivals missing: 1") as caught:
        observe(artifact, text=made[0].text)
    message = str(caught.value)
    assert " arrivals" in message
    assert "mbarrier.try_wait" in message
    assert "warps 0-3" in message or "warps 0-7" in message
    assert caught.value.waiting


@pytest.mark.parametrize(
    ("added", "rule"),
    [
        ("{{ .reg .b32 v; ld.shared.b32 v, [{0}]; add.s32 v, v, 1; }}", "mbarrier-read"),
        ("{{ .reg .b32 v; mov.b32 v, 0; st.shared.b32 [{0}], v; }}", "mbarrier-overwritten"),
        ("mbarrier.init.shared::cta.b64 [{0}], {1};", "mbarrier-reinitialised"),
        ("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [{0}], 16;", "deadlock"),
    ],
)
def test_an_mbarrier_is_no_plain_memory(
    compiled: Callable[[str], Artifact], added: str, rule: str
) -> None:
    artifact = compiled("hopper")
    text = text_of(artifact)
    barrier = re.search(r"mbarrier\.init\S* \[(%r\d+)\], (%r\d+|\d+)", text)
    assert barrier is not None
    fence = "wgmma.fence.sync.aligned;"
    changed = text.replace(fence, f"{fence}\n{added.format(*barrier.groups())}", 1)
    assert changed != text
    assert rule in rules(artifact, changed)


@pytest.mark.parametrize(
    ("name", "store_of"), [("hopper", "stmatrix|st.shared"), ("softmax", "st.shared")]
)
def test_shared_memory_that_nothing_wrote_is_not_read(
    compiled: Callable[[str], Artifact], name: str, store_of: str
) -> None:
    artifact = compiled(name)
    text = re.sub(rf"(?m)^(?:{store_of}).*$", "", text_of(artifact), count=1)
    assert "uninitialized-read" in rules(artifact, text)


def test_warps_that_share_memory_need_a_barrier(compiled: Callable[[str], Artifact]) -> None:
    artifact = compiled("softmax")
    text = text_of(artifact)
    before, after = text.split("st.shared", 1)
    assert "race" in rules(
        artifact, before + "st.shared" + re.sub(r"bar\.sync.*;", "", after, count=1)
    )


def test_tensor_memory_is_read_after_the_product(compiled: Callable[[str], Artifact]) -> None:
    artifact = compiled("blackwell")
    text = text_of(artifact)
    fences = text.replace("tcgen05.fence::after_thread_sync;", "")
    assert rules(artifact, fences) == {"missing-tensor-fence"}
    waits = re.sub(
        r"(?s)(mbarrier\.try_wait[^;]*;)((?:(?!mbarrier\.try_wait).){0,120}tcgen05\.fence::after)",
        r"mov.pred P1, -1;\2",
        text,
    )
    assert waits != text
    assert rules(artifact, waits) & {"async-write-not-awaited", "too-many-arrivals"}
