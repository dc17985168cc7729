"""`pallasc run --profile`: what profiled kernels measured, as Perfetto reads it."""

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pallasc.cli.main import main
from pallasc.cli.run import decode_profile, earliest
from pallasc.errors import CorruptError, SpecError
from pallasc.specs.artifacts.plan import PROFILE_EXIT as EXIT
from pallasc.specs.artifacts.plan import Profile

PROFILE = Profile(launch=0, buffer=1, words=16, traces=2, names=("Init", "load", "store"))

KERNELS = """
import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

def like(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)

def profiled(x):
    def body(x_ref, o_ref):
        with jax.named_scope("load"):
            value = x_ref[...]
        with jax.named_scope("store"):
            o_ref[...] = value + 1

    params = plgpu.CompilerParams(profile_space=8, profile_dir="/nowhere")
    return plgpu.kernel(
        body, out_type=like(x), grid=(2,), grid_names=("block",), compiler_params=params
    )(x)

def printing(x):
    def body(x_ref, o_ref):
        pl.debug_print("the sum is {}", x_ref[...].sum())
        o_ref[...] = x_ref[...]

    mesh = plgpu.Mesh(grid=(1,), grid_names=("block",))
    params = plgpu.CompilerParams()
    return pl.kernel(
        body, out_type=like(x), mesh=mesh, compiler_params=params, debug=True
    )(x)
"""

SPEC = """\
schema: 1
targets: [sm_90a]
kernels:
  - {name: profiled, entry: "kernels.py:profiled", args: {x: "f32[128]"}}
  - {name: printing, entry: "kernels.py:printing", args: {x: "f32[128]"}}
"""


def _trace(sm: int, start: int, events: Sequence[tuple[int, int]], words: int = 16) -> bytes:
    """Return one trace as a kernel writes it; events are (tag, clock)."""
    flat = [start, sm, 2 * len(events), *(word for event in events for word in event)]
    return struct.pack(f"<{words}I", *flat, *[0xDEADBEEF] * (words - len(flat)))


IDLE = _trace(0, 0, [])
NESTED = [(0, 100), (1, 110), (1 | EXIT, 130), (0 | EXIT, 150)]
LATE = (1 << 32) - 10


@pytest.mark.parametrize(
    ("events", "regions"),
    [
        (NESTED, [("Init", 0, 50), ("load", 10, 30)]),
        ([(1, LATE), (1 | EXIT, 20)], [("load", 0, 30)]),  # the clock starts again
        (
            [(0, 100), (1, 110), (1 | EXIT, 130), (2, 140)],  # the trace ran full
            [("Init", 0, 40), ("load", 10, 30), ("store", 40, 40)],
        ),
    ],
)
def test_regions_come_in_the_order_in_which_they_were_entered(
    events: Any, regions: list[tuple[str, int, int]]
) -> None:
    traces = decode_profile(PROFILE, 1, _trace(5, 1000, events) + IDLE)
    found = [(trace.block, trace.number, trace.sm, trace.start_ns) for trace in traces]
    assert found == [(0, 0, 5, 1000), (0, 1, 0, 0)]
    assert [(r.name, r.start, r.end) for r in traces[0].regions] == regions
    assert traces[1].regions == ()


@pytest.mark.parametrize("used", [1, 14, 1 << 31])
def test_a_kernel_that_wrote_too_much_needs_more_space(used: int) -> None:
    data = struct.pack("<3I", 0, 0, used).ljust(64, b"\0") + IDLE
    with pytest.raises(SpecError, match="room for 13") as caught:
        decode_profile(PROFILE, 1, data)
    assert caught.value.hint == "Give the kernel a larger profile_space."


@pytest.mark.parametrize(
    "events", [[(3, 0)], [(1 | EXIT, 0)], [(0, 0), (1, 1), (0 | EXIT, 2), (1 | EXIT, 3)]]
)
def test_what_is_no_trace_is_refused(events: Any) -> None:
    with pytest.raises(CorruptError):
        decode_profile(PROFILE, 1, _trace(0, 0, events) + IDLE)
    with pytest.raises(CorruptError):
        decode_profile(PROFILE, 2, IDLE * 3)


def test_the_first_begin_is_found_across_the_end_of_the_timer() -> None:
    data = [_trace(0, start, []) for start in ((1 << 32) - 5, 3, 10, 20)]
    assert earliest(decode_profile(PROFILE, 2, b"".join(data))) == (1 << 32) - 5
    assert earliest([]) == 0


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a spec with a profiled kernel and one that prints, and a store with both."""
    folder = tmp_path_factory.mktemp("profiled")
    (folder / "kernels.py").write_text(KERNELS)
    (folder / "kernels.yaml").write_text(SPEC)
    arguments = (folder / "kernels.yaml", "--store", folder / "store")
    assert main(["build", *map(str, arguments)]) == 0
    return SimpleNamespace(arguments=arguments)


def _profiled(launch: Any) -> None:
    """Add one, and write what was measured."""
    launch.array(1, "float32", (128,))[...] = launch.array(0, "float32", (128,)) + 1
    words = 8 * 2 * 2
    profile = launch.array(2, "uint32", (2 * words,))
    events = [(0, 10), (0 | EXIT, 20), (1, 30), (1 | EXIT, 50), (2, 60), (2 | EXIT, 90)]
    for block in range(2):
        data = _trace(3 + block, 1000 * block, events, words)
        profile[block * words : (block + 1) * words] = struct.unpack(f"<{words}I", data)


def test_run_writes_the_trace_of_a_profiled_kernel(
    gpu: Any, run: Any, kernels: Any, tmp_path: Path
) -> None:
    gpu.kernel("*")(_profiled)
    trace = tmp_path / "trace.json"
    result = run("run", *kernels.arguments, "-k", "profiled", "--profile", trace)
    assert (result.code, result.err) == (0, "")
    document = json.loads(trace.read_text())
    assert sorted(document) == ["displayTimeUnit", "traceEvents"]
    assert document["displayTimeUnit"] in ("ms", "ns")
    regions = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert [event["name"] for event in regions] == ["Init", "load", "store"] * 2
    assert [event["args"]["cycles"] for event in regions] == [10, 20, 30] * 2
    assert {event["pid"] for event in regions} == {4, 5}
    assert (regions[0]["ts"], regions[3]["ts"]) == (0, 1.0)
    names = {e["args"]["name"] for e in document["traceEvents"] if e["ph"] == "M"}
    assert "profiled@h100-sxm body_mosaic_gpu_kernel, SM 3" in names
    missing = tmp_path / "missing.json"
    result = run("run", *kernels.arguments, "-k", "printing", "--profile", missing)
    assert (result.code, missing.exists()) == (2, False)
    assert "no kernel of printing@h100-sxm is profiled" in result.err


def test_inspect_shows_the_place_of_a_profile_and_what_tracing_printed_of_a_hit(
    run: Any, kernels: Any
) -> None:
    text = run("inspect", *kernels.arguments, "-k", "profiled", "--plan").out
    assert text.splitlines()[-1] == (
        "profile of launch 0, body_mosaic_gpu_kernel: buffer 3, 1 traces/block of 32 words, "
        "regions Init, load, store"
    )
    result = run("inspect", *kernels.arguments, "--debug-output", "-k", "printing")
    assert (result.code, result.err) == (0, "")
    assert "debug_print" in result.out
    assert "module @" in result.out
    assert result.out.splitlines()[-2:] == [
        "body_mosaic_gpu_kernel prints when it runs:",
        r'  "the sum is %f\n"',
    ]
    quiet = run("inspect", *kernels.arguments, "--debug-output", "-k", "profiled")
    assert quiet.out == "nothing was printed\n"
