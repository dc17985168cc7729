"""Races are found in kernels that lack one synchronisation, and in no kernel that lacks none."""

import re
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
from compiled_plans import artifacts

from pallasc.cache.store import Store
from pallasc.emulator.machine.machine import Machine, Policy
from pallasc.emulator.machine.memory import Fault
from pallasc.emulator.program import PlanRun
from pallasc.emulator.races.observer import Races
from pallasc.emulator.races.threads import Finding
from pallasc.specs.artifacts.artifact import Artifact

POLICIES = [
    Policy(),
    Policy(seed=2, shuffle=True, eagerness=0.5),
    Policy(seed=3, shuffle=True, eagerness=1),
]


LIBRARY = "pallasc.specs.library"
STEPS = {"max_concurrent_steps": 2}
PRODUCT = ("bf16[128, 320]", "bf16[320, 128]")
QUANTIZED = ("bf16[128, 256]", "i8[256, 128]", "f32[128]")
KERNELS: dict[str, tuple[str, tuple[str, ...], str, dict[str, int]]] = {
    "hopper": (f"{LIBRARY}.hopper_matmul:matmul", PRODUCT, "sm_90a", STEPS),
    "blackwell": (f"{LIBRARY}.blackwell_matmul:matmul", PRODUCT, "sm_100a", STEPS),
    "dequant": (f"{LIBRARY}.hopper_matmul:dequant_matmul", QUANTIZED, "sm_90a", STEPS),
    "softmax": (f"{LIBRARY}.rows:softmax", ("f32[4, 1024]",), "sm_90a", {"rows_per_block": 4}),
}
Compiled = dict[str, Artifact]


@pytest.fixture(scope="module")
def compiled(store: Store) -> Compiled:
    """Compile small kernels of the library."""
    kernels = [
        {"name": name, "entry": entry, "args": args, "static": static, "targets": [target]}
        for name, (entry, args, target, static) in KERNELS.items()
    ]
    return artifacts(kernels, store)


CHANGES = {
    "one arrival more": ("mbarrier.init", "add.s32 v, {}, 1;"),
    "one arrival less": ("mbarrier.init", "sub.s32 v, {}, 1;"),
    "half the bytes": ("expect_tx", "shr.b32 v, {}, 1;"),
}
"""The instruction whose last operand changes, and how."""


def mutants(ptx: str, what: str) -> Iterator[tuple[int, str]]:
    """Yield each text in which one line is changed, with the number of that line."""
    lines = ptx.split("\n")
    for at, line in enumerate(lines):
        changed = _changed(line.strip(), what)
        if changed is not None:
            yield at + 1, "\n".join([*lines[:at], changed, *lines[at + 1 :]])


def _changed(line: str, what: str) -> str | None:
    removed = what.removeprefix("without ")
    if removed == "mbarrier.try_wait":
        return "mov.pred P1, -1;" if removed in line else None
    if removed != what:
        return "" if re.match(rf"(@!?%p\d+ )?{re.escape(removed)}\b", line) else None
    if what == "wait_group 1":
        found = re.match(r"(wgmma|cp\.async(\.bulk)?)\.wait_group\S*\s+0;", line)
        return line.replace("0;", "1;") if found else None
    opcode, change = CHANGES[what]
    operand = re.search(r"\[[^\]]*\], (%r\d+|\d+)", line) if opcode in line else None
    if operand is None:
        return None
    value = change.format(operand[1])
    return f"{{ .reg .b32 v; {value} {line[: operand.start(1)]}v{line[operand.end(1) :]} }}"


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
    machine = Machine(policy or Policy(), observer=races)
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
    compiled: Compiled, name: str
) -> None:
    for policy in POLICIES:
        assert observe(compiled[name], policy) == []


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
def test_every_mutant_of_a_kind_is_found(compiled: Compiled, name: str, what: str) -> None:
    made = list(mutants(text_of(compiled[name]), what))
    assert made
    rule = FOUND[name, what]
    assert [line for line, text in made if rule not in rules(compiled[name], text)] == []


SOME = {
    ("hopper", "without wgmma.wait_group"): "overwritten-in-flight",
    ("hopper", "wait_group 1"): "overwritten-in-flight",
    ("dequant", "without bar.sync"): "overwritten-in-flight",
    ("dequant", "without mbarrier.try_wait"): "async-write-not-awaited",
}


@pytest.mark.parametrize(("name", "what"), SOME)
def test_a_mutant_of_a_kind_is_found_where_others_change_nothing(
    compiled: Compiled, name: str, what: str
) -> None:
    made = mutants(text_of(compiled[name]), what)
    assert any(SOME[name, what] in rules(compiled[name], text) for _, text in made)


def test_each_warp_needs_a_fence_of_its_own_before_it_loads_from_tensor_memory(
    compiled: Compiled,
) -> None:
    """That of one warp is not for the others, though they pass a barrier after it."""
    text = text_of(compiled["blackwell"])
    load = text[: text.index("tcgen05.ld")].count("\n") + 1
    fences = [m for line, m in mutants(text, "without tcgen05.fence") if line < load]
    assert "missing-tensor-fence" in rules(compiled["blackwell"], fences[-1])


@pytest.mark.parametrize("policy", POLICIES)
def test_a_finding_names_both_instructions_and_what_is_missing(
    compiled: Compiled, policy: Policy
) -> None:
    ((line, text),) = mutants(text_of(compiled["hopper"]), "without fence.proxy.async")
    finding = observe(compiled["hopper"], policy, text)[0]
    assert finding.first is not None
    assert finding.first.instruction.opcode.startswith(("stmatrix", "st.shared"))  # JAX 0.10
    assert finding.first.instruction.line < line < finding.second.instruction.line
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


@pytest.mark.parametrize(
    ("added", "rule"),
    [
        ("{{ .reg .b32 v; ld.shared.b32 v, [{0}]; add.s32 v, v, 1; }}", "mbarrier-read"),
        ("{{ .reg .b32 v; mov.b32 v, 0; st.shared.b32 [{0}], v; }}", "mbarrier-overwritten"),
        ("mbarrier.init.shared::cta.b64 [{0}], {1};", "mbarrier-reinitialised"),
        ("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [{0}], 16;", "deadlock"),
    ],
)
def test_an_mbarrier_is_no_plain_memory(compiled: Compiled, added: str, rule: str) -> None:
    artifact = compiled["hopper"]
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
    compiled: Compiled, name: str, store_of: str
) -> None:
    artifact = compiled[name]
    text = re.sub(rf"(?m)^(?:{store_of}).*$", "", text_of(artifact), count=1)
    assert "uninitialized-read" in rules(artifact, text)
