"""The choice of a variant, as a pure decision, and what is listed where no variant fits."""

from typing import Any

import made
import pytest
from msgspec.structs import replace

from pallasc.errors import ArgumentError, SelectionError
from pallasc.runtime.device.devices import Device
from pallasc.runtime.kernel import Kernel
from pallasc.runtime.matching.candidates import Candidate
from pallasc.runtime.matching.selection import arch_refusal, refusal
from pallasc.runtime.matching.tuned import Selector
from pallasc.specs.gpus import MODELS


def _device(model: str = "h100-sxm", *, driver: int = 13000, **changes: Any) -> Device:
    target = MODELS[model]
    fields: dict[str, Any] = {
        name: getattr(target, name) for name in ("major", "minor", "sm_count", "smem_optin_bytes")
    }
    fields |= {"ordinal": 0, "name": target.description, "driver_version": driver, **changes}
    return Device(**fields)


def _candidate(target: str = "h100-sxm", params: Any = None, **changes: Any) -> Candidate:
    return Candidate("sum", params or {}, made.add(target=target, code=b"none", **changes))


@pytest.mark.parametrize(
    ("arch", "runs", "refused"),
    [
        ("sm_90a", [(9, 0)], [(8, 0), (8, 9), (10, 0), (12, 0)]),
        ("sm_100a", [(10, 0)], [(10, 3), (9, 0), (11, 0)]),
        ("sm_100f", [(10, 0), (10, 3), (10, 7)], [(9, 0), (10, 1), (11, 0), (12, 0)]),
        ("sm_103f", [(10, 3)], [(10, 0), (10, 1), (12, 1)]),
        ("sm_110f", [(11, 0)], [(10, 0), (10, 1), (11, 1), (12, 0)]),
        ("sm_101f", [(10, 1)], [(10, 3), (11, 0)]),
        ("sm_120f", [(12, 0), (12, 1)], [(10, 0), (11, 0)]),
        ("sm_121f", [(12, 1)], [(12, 0)]),
        ("sm_100", [(10, 0), (10, 3)], [(10, 1), (11, 0)]),
        ("sm_80", [(8, 0), (8, 6), (8, 9)], [(7, 5), (9, 0), (8, 7)]),
        ("sm_86", [(8, 6), (8, 9)], [(8, 0), (8, 7)]),
        ("sm_87", [(8, 7)], [(8, 9), (8, 6)]),
        ("sm_120", [(12, 0), (12, 1)], [(10, 0), (9, 0)]),
        ("compute_90", [], [(9, 0)]),
        ("None", [], [(9, 0)]),
    ],
)
def test_an_architecture_runs_on_what_it_was_made_for(
    arch: str, runs: list[tuple[int, int]], refused: list[tuple[int, int]]
) -> None:
    for major, minor in runs:
        assert arch_refusal(arch, major, minor) is None
    for major, minor in refused:
        assert arch_refusal(arch, major, minor)


def test_what_several_devices_run_together_is_refused_in_one_sentence() -> None:
    made_for_four = _candidate()
    plan = made_for_four.artifact.plan
    made_for_four.artifact.__dict__["plan"] = replace(plan, mesh=(("x", 2), ("y", 2)))
    reason = "it runs on 4 devices together, which this runtime cannot launch"
    assert refusal(made_for_four, _device(), None) == reason
    with pytest.raises(SelectionError, match=reason):
        Selector([made_for_four]).select(_device())
    with pytest.raises(SelectionError, match=reason):
        Selector([made_for_four]).fitting(_device())
    assert Selector([made_for_four, alone := _candidate()]).select(_device()) is alone


def test_the_likest_variant_is_taken() -> None:
    candidates = [_candidate(name) for name in ("h200", "h100-pcie", "h100-sxm", "gh200", "b200")]
    for model in ("h200", "h100-pcie", "h100-sxm", "gh200", "b200"):
        assert Selector(candidates).select(_device(model)).artifact.target.name == model


@pytest.mark.parametrize(
    ("model", "name"),
    [("h200", "NVIDIA H200"), ("gh200", "NVIDIA GH200 480GB"), ("b300", "NVIDIA B300 SXM6 AC")],
)
def test_a_model_is_known_by_any_name_that_drivers_give_it(model: str, name: str) -> None:
    candidates = [_candidate(each) for each in ("h100-sxm", "h200", "gh200", "gb300", "b300")]
    assert Selector(candidates).select(_device(model, name=name)).artifact.target.name == model


def test_a_model_with_as_many_multiprocessors_stands_in() -> None:
    candidates = [_candidate("h100-pcie"), _candidate("h200")]
    assert Selector(candidates).select(_device("h100-sxm")).artifact.target.name == "h200"


def test_an_unknown_model_takes_the_nearest_number_of_multiprocessors() -> None:
    candidates = [_candidate("h100-pcie"), _candidate("h100-sxm")]
    device = _device(name="NVIDIA H100 NVL", sm_count=120)
    assert Selector(candidates).select(device).artifact.target.name == "h100-pcie"


def test_the_exact_architecture_goes_before_the_family_and_that_before_older_ones() -> None:
    exact = _candidate("b300")
    family = _candidate("b200", arch="sm_100f")
    assert Selector([family, exact]).select(_device("b300")) is exact
    assert Selector([family]).select(_device("b300")) is family
    old, newer = _candidate("a100-sxm"), _candidate("a6000")
    device = _device("l40s")
    assert Selector([old, newer]).select(device) is newer
    assert Selector([old]).select(device) is old


@pytest.mark.parametrize(
    ("grid", "smem", "sms", "fits"),
    [
        ((132, 1, 1), 200_000, 132, True),
        ((132, 1, 1), 200_000, 114, False),
        ((132, 1, 1), 200_000, 144, True),
        ((114, 1, 1), 200_000, 114, True),
        ((133, 1, 1), 200_000, 114, True),  # waits for a free multiprocessor there as well
        ((132, 1, 1), 100_000, 114, True),  # two to a multiprocessor
        ((264, 1, 1), 100_000, 114, False),
        ((4096, 1, 1), 0, 16, True),
    ],
)
def test_blocks_at_a_time(grid: tuple[int, int, int], smem: int, sms: int, fits: bool) -> None:
    step = made.launch("three", 0, 1, 2, grid=grid, dynamic_smem_bytes=smem)
    candidate = Candidate("sum", {}, made.artifact(step, code=b"none"))
    assert (refusal(candidate, _device(sm_count=sms), None) is None) == fits


def test_each_point_has_one_fitting_candidate() -> None:
    ones = [_candidate(name, params={"n": n}) for n in (1, 2) for name in ("h200", "h100-sxm")]
    found = Selector(ones).fitting(_device())
    assert [(variant.params["n"], variant.artifact.target.name) for variant in found] == [
        (1, "h100-sxm"),
        (2, "h100-sxm"),
    ]
    with pytest.raises(SelectionError, match="no variant of sum fits"):
        Selector(ones).fitting(_device("b200"))


def _sizes(*, count: int) -> Kernel:
    """Return a kernel with a variant for each of many shapes, of two targets each."""
    candidates = [
        Candidate("sum", {"m": m}, made.add(target=target, inputs=_inputs(m)))
        for m in range(1, count + 1)
        for target in ("h100-sxm", "b200")
    ]
    return Kernel("sum", candidates)


def _inputs(rows: int) -> dict[str, str]:
    return {"a": f"f32[{rows}, 64]", "b": "f32[4, 64]"}


@pytest.mark.parametrize("prepares", [False, True])
def test_the_five_nearest_shapes_are_listed(runtime: Any, framework: Any, prepares: bool) -> None:
    kernel = _sizes(count=60)
    start = kernel.prepare if prepares else kernel
    with pytest.raises(ArgumentError) as caught:
        start(framework.tensor("f32[300, 64]"), framework.tensor("f32[4, 64]"))
    assert str(caught.value).splitlines() == [
        "sum has no variant for f32[300, 64], f32[4, 64].",
        "  The nearest of its 120 variants:",
        *(f"    sum[m={m}]@h100-sxm, where a is f32[{m}, 64]" for m in (60, 59, 58, 57, 56)),
    ]


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"m": 21}, "variant with m=21.\n  Values of m: {9..20} and 8 more."),
        ({"m": "7"}, "variant with m='7'.\n  Values of m: {1..12} and 8 more."),
        ({"blok": 8}, "parameter 'blok'.\n  Did you mean 'block'? Values of block: 8, 16."),
        ({"xyz": 8}, "parameter 'xyz'.\n  Its parameters: block, m."),
        ({"m": 2, "block": 16}, "variant with m=2, block=16.\n  Values of m: {1..12} and 8 more."
         "\n  Values of block: 8, 16."),
        ({"m": 21, "block": 32}, "variant with m=21, block=32.\n  Values of m: {9..20} and 8 more."
         "\n  Values of block: 8, 16."),
    ],
)  # fmt: skip
def test_wrong_parameters_name_the_right_values(params: dict[str, Any], told: str) -> None:
    candidates = [
        Candidate("sum", {"m": m, "block": 8 + 8 * (m % 2)}, made.add(target=target, code=b"none"))
        for m in range(1, 21)
        for target in ("h100-sxm", "b200")
    ]
    with pytest.raises(ArgumentError) as caught:
        Kernel("sum", candidates).variant(**params)
    for first in (1, 9):
        numbers = ", ".join(str(number) for number in range(first, first + 12))
        told = told.replace(f"{{{first}..{first + 11}}}", numbers)
    assert str(caught.value) == f"sum has no {told}"


def test_of_many_that_cannot_run_five_are_listed(runtime: Any, framework: Any) -> None:
    candidates = [Candidate("sum", {"t": t}, made.add(target="b200")) for t in range(100)]
    x = framework.tensor("f32[4, 64]")
    with pytest.raises(SelectionError) as caught:
        Kernel("sum", candidates)(x, x)
    lines = caught.value.message.splitlines()
    assert [line[:16] for line in lines[1:6]] == [f"  sum[t={t}]@b200:" for t in range(5)]
    assert lines[6] == "  … and 95 more"
