"""`pallasc bench`, on the stand-in driver, whose events tell the time that a test says."""

import json
from typing import Any

import pytest

from pallasc.cli.bench import moved_bytes, parse_flop
from pallasc.errors import SpecError
from pallasc.specs.artifacts.plan import Binding, Buffer, LaunchPlan

F32 = "add[m=1024,dtype=f32]@h100-sxm"


def test_an_input_updated_in_place_moves_twice() -> None:
    buffers = (Buffer("input", 40), Buffer("input", 80), Buffer("output", 120))
    inputs = (Binding("a", "f32", (10,), 0), Binding("b", "f32", (20,), 1))
    outputs = (Binding("out.0", "f32", (10,), 0), Binding("out.1", "f32", (30,), 2))
    plan = LaunchPlan(buffers, inputs, outputs, (), [0, 1], {"tuple": [0, 1]})
    assert moved_bytes(plan) == 40 + 80 + 120 + 40


def test_operations_are_a_positive_number_or_a_product() -> None:
    params = {"m": 3, "n": 4, "d": "bf16"}
    texts = ("12", "1.5e3", "{2 * m * n}", "{m}")
    assert [parse_flop(text, params) for text in texts] == [12, 1500, 24, 3]
    for text in ("", "x", "0", "-3", "nan", "inf", "{m - 3}", "{d}"):
        with pytest.raises(SpecError, match="must be a positive number of operations"):
            parse_flop(text, params)


# ---- the command


@pytest.fixture
def bench(run: Any, built: Any) -> Any:
    """Measure what was built."""
    return lambda *arguments: run("bench", *built.arguments, *arguments)


def test_times_and_shares_are_a_table(gpu: Any, bench: Any) -> None:
    result = bench("-k", "dtype=f32", "--cold", "--repeats", "5")
    assert (result.code, result.err) == (0, "")
    # 3 arrays of 16 MiB in 20 µs, of 3,352 GB/s.
    assert result.out.splitlines() == [
        "GPU 0 (NVIDIA H100 80GB HBM3, sm_90), driver for CUDA 13.0; 5 launches, the L2 cache "
        "emptied before each",
        "VARIANT                           MEDIAN       MIN       P90   GB/S  OF MEMORY",
        f"{F32}  20.00 µs  20.00 µs  20.00 µs  2,517       75 %",
        "h100-sxm: 3,352 GB/s of memory",
    ]
    result = bench("--all", "--repeats", "5", "--flops", "{1000 * m * 4096}")
    lines = result.out.splitlines()
    assert lines[0].endswith("; 5 launches, the L2 cache warm")
    assert [line.split()[-3:] for line in lines[1:4]] == [
        ["OF", "MEMORY", "TFLOP/S"],
        ["2,517", "-", "209.7"],
        ["1,258", "-", "209.7"],
    ]
    assert lines[4:] == [
        "h100-sxm: 3,352 GB/s of memory; 66.9 TFLOP/s in FP32 without tensor cores",
        "Arrays of up to 50 MiB stay in the L2 cache; --cold reads them from memory.",
    ]


def test_json_has_every_time(gpu: Any, bench: Any) -> None:
    taken_ns = iter([20_000, 10_000, 40_000, 30_000])

    def take(_: Any) -> None:
        gpu.configure(kernel_ns=next(taken_ns))

    gpu.kernel("*")(take)
    arguments = ("--json", "--repeats", "3", "--warmup", "1", "--cold", "--flops", "1e9")
    report = json.loads(bench("-k", "dtype=f32", *arguments).out)
    assert report["limits"]["model"] == "h100-sxm"
    assert [report[name] for name in ("cold", "repeats", "warmup", "seed")] == [True, 3, 1, 0]
    (row,) = report["results"]
    times = [row[name] for name in ("median_us", "min_us", "p90_us")]
    assert sorted(row["times_us"]) == pytest.approx([10, 30, 40])
    assert times == pytest.approx([30, 10, 40])
    assert (row["id"], row["moved_bytes"], row["flop"]) == (F32, 3 << 24, 1e9)
    assert row["gb_per_s"] == pytest.approx((3 << 24) / 30e3)
    assert row["memory_share"] == pytest.approx((3 << 24) / 30e3 / 3352.32)
    assert row["tflop_per_s"] == pytest.approx(1e9 / 30e6)


def test_a_gpu_of_no_known_model_has_no_limits(gpu: Any, bench: Any) -> None:
    gpu.devices("9.0")
    few = ("-k", "dtype=f32", "--repeats", "2", "--warmup", "0")
    result = bench("--cold", *few)
    assert result.out.splitlines()[2].split()[-1] == "-"
    assert result.out.splitlines()[3:] == [
        "Stand-in H100 is not a known model, so its limits are unknown."
    ]
    assert json.loads(bench("--json", *few).out)["limits"] is None
