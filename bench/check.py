"""`pallasc check`: which mutants of kernels it finds, and how long it takes.

Goals:

* The artifact level finds at least 95 % of the mutants of `bench/mutants`, with a line of the
  changed function. It reports nothing for unchanged kernels and equivalent mutants.
* Every deadlock is reported within 10 s.
* JAX's `hopper_matmul`, 256 × 128 × 192, takes at most 30 s, and a softmax of `f32[64, 4096]` at
  most 5 s, on one core.
* A second check of a thousand unchanged variants takes at most 1.5 times as long as their build.
  To prepare, the first variant is checked, and its results are copied for the others.

`--part` chooses parts. The part `interpreter`, where JAX's interpreter checks the same mutants,
only runs if it is named. `--store` names a folder for mutants and artifacts, so that an interrupted
run continues there. `--subject` chooses kernels, and `--most` limits the mutants per operator and
kernel.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "mutants"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "runtime"))

from equivalent_mutants import reason
from harness import PALLASC, Figure, in_turn, medians, ratio, run_benchmark, say, timed_process
from inputs import fill, without_sync, write_spec
from kernel_mutants import NEAR, NOT_FOUND, NOT_RUN, Case, Outcome, cases, measure
from msgspec import structs
from mutated_kernels import SUBJECTS

from pallasc.cache.store import Store
from pallasc.checks.findings import result_from_json
from pallasc.checks.levels import Options
from pallasc.checks.stored_results import StoredResults
from pallasc.compiler.api import compile as compile_kernel
from pallasc.compiler.builds.build import build
from pallasc.emulator.machine.machine import Machine, Policy
from pallasc.emulator.program import PlanRun
from pallasc.emulator.races.observer import Races
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.loading.decorator import Call
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml

FOUND, DEADLOCK_S, MATMUL_S, SOFTMAX_S = 95.0, 10.0, 30.0, 5.0
BLAMELESS = ("nothing", "warning")
UNCHANGED = 1000


def measure_all(options: argparse.Namespace, place: Path) -> Sequence[Figure]:
    """Measure the parts that `--part` names, by default all except the interpreter."""
    parts = options.part or ("mutants", "times", "warm")
    folder = options.store or place
    folder.mkdir(parents=True, exist_ok=True)
    figures: list[Figure] = []
    if {"mutants", "interpreter"} & set(parts):
        subjects = [s for s in SUBJECTS if not options.subject or s.name in options.subject]
        chosen = list(cases(subjects, most=options.most))
        outcomes = measure(chosen, folder, jobs=2)
        counted = count_mutants(chosen, outcomes)
        figures += of_mutants(chosen, [outcomes[case.id] for case in counted], outcomes)
        if "interpreter" in parts:
            wanted = [case for case in chosen if not case.mutant or case in counted]
            found = measure(wanted, folder, level="interpreter", jobs=2, timeout_s=30)
            figures += of_interpreter([found[case.id] for case in counted])
    if "times" in parts:
        figures += two_kernels(Store(folder / "store"))
    if "warm" in parts:
        figures += unchanged(place / "warm")
    return figures


def count_mutants(chosen: Sequence[Case], outcomes: Mapping[str, Outcome]) -> list[Case]:
    """Return the mutants that are not equivalent."""
    return [
        case
        for case in chosen
        if case.mutant and outcomes[case.id].found not in NOT_RUN and not reason(case)
    ]


def share(name: str, chosen: Sequence[Any], of: Sequence[Any], goal: float | None = None) -> Figure:
    """Return a share in percent."""
    return Figure(name, 100 * len(chosen) / len(of), "%", goal, at_least=True)


def of_mutants(
    chosen: Sequence[Case], own: Sequence[Outcome], outcomes: Mapping[str, Outcome]
) -> list[Figure]:
    """Return the shares of mutants that are found, and the number of false findings."""
    found = [o for o in own if o.found not in NOT_FOUND]
    inside = [o for o in found if o.in_function]
    for outcome in own:
        if outcome not in inside:
            say(f"not found in its function: {outcome.id} {outcome.message}")
    same = [outcomes[case.id] for case in chosen if case.mutant and reason(case)]
    blamed = [o for o in same if o.found not in (*NOT_FOUND, *NOT_RUN)]
    unchanged = [outcomes[case.id] for case in chosen if not case.mutant]
    blamed += [o for o in unchanged if o.found not in BLAMELESS]
    for outcome in blamed:
        say(f"blamed: {outcome.id} {outcome.message}")
    lines = [o for o in found if o.lines]
    near = [o for o in found if o.distance is not None and o.distance <= NEAR]
    deadlocks = [o.seconds for o in found if o.found == "deadlock"]
    kinds = ("numbers", "race", "deadlock", "fault")
    return [
        Figure("mutants that are not equivalent", len(own), goal=150, at_least=True),
        Figure("mutants that are equivalent", len(same)),
        share("found", found, own, FOUND),
        *(Figure(f"found as {kind}", sum(o.found == kind for o in found)) for kind in kinds),
        share("found with a line of the kernel's source", lines, own, FOUND),
        share(f"found with a line within {NEAR} lines of the change", near, own),
        share("found with a line of the function that is changed", inside, own, FOUND),
        Figure("unchanged kernels and equivalent mutants blamed", len(blamed), goal=0),
        Figure("slowest deadlock", max(deadlocks, default=0.0), "s", DEADLOCK_S),
    ]


def of_interpreter(own: Sequence[Outcome]) -> list[Figure]:
    """Return the shares of the same mutants that JAX's interpreter finds."""
    stopped = [o for o in own if o.stopped]
    cannot = [o for o in own if o.found == "not checked" and not o.stopped]
    found = [o for o in own if o.found not in (*NOT_FOUND, *NOT_RUN)]
    return [
        share("found by JAX's interpreter alone", found, own),
        share("interpreter: found nothing", [o for o in own if o.found == "nothing"], own),
        share("interpreter: stopped at the limit", stopped, own),
        share("interpreter: cannot run", cannot, own),
    ]


def two_kernels(store: Store) -> list[Figure]:
    """Measure the processor time of two kernels at the artifact level, in this process."""
    import jax.experimental.pallas.ops.gpu.hopper_matmul_mgpu as hopper

    from pallasc.specs.library.rows import softmax

    config = Call(
        f"{hopper.__name__}:TuningConfig",
        tile_m=64,
        tile_n=64,
        tile_k=64,
        max_concurrent_steps=2,
    )
    matmul = compile_kernel(
        hopper.matmul, "f16[256, 192]", "f16[192, 128]", None, target="h100-sxm", store=store,
        isolated=True, config=config,
    )  # fmt: skip
    rows = compile_kernel(softmax, "f32[64, 4096]", target="h100-sxm", store=store, isolated=True)
    return [
        Figure("JAX's hopper_matmul, 256 × 128 × 192", emulated(matmul), "s", MATMUL_S),
        Figure("softmax, f32[64, 4096]", emulated(rows), "s", SOFTMAX_S),
    ]


def emulated(artifact: Artifact) -> float:
    """Execute an artifact, and return the processor time in seconds."""
    import numpy as np

    random = np.random.default_rng(0)
    types = {"f16": np.float16, "f32": np.float32}
    arrays = [
        random.uniform(-1, 1, binding.shape).astype(types[binding.dtype])
        for binding in artifact.plan.inputs
    ]
    machine = Machine(Policy(), observer=Races())
    began_s = time.process_time()
    PlanRun(artifact, machine).run([arrays])
    return time.process_time() - began_s


def unchanged(folder: Path) -> list[Figure]:
    """Time a check and a build of unchanged variants in turn."""
    spec, store = write_spec(folder / "spec", UNCHANGED), Store(folder / "store")
    fill(store, spec)
    check_first(spec, store)
    tail = [str(spec), "--store", str(store.root)]
    works = {what: partial(timed_process, [*PALLASC, what, *tail]) for what in ("check", "build")}
    times = in_turn(works, 5)
    return [
        *medians(times, f"{UNCHANGED:,} unchanged variants, "),
        Figure("check / build", ratio(times, *works), goal=1.5),
    ]


def check_first(spec: Path, store: Store) -> None:
    """Check the first variant, and copy its results for the others."""
    variants = expand(load_yaml(spec))
    command = [*PALLASC, "check", spec, "--json", "--store", store.root, "-k", variants[0].id]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    report = build(variants, store=store)
    assert report.context is not None
    stored = StoredResults(store, report.context)
    names = [path.name for path in (store.folder / "man").rglob("?" * 64)]
    manifests = [manifest for manifest in map(store.find_manifest, names) if manifest is not None]
    made = next(manifest for manifest in manifests if manifest.check)
    sources = structs.replace(made, action="", check="").to_json()
    with without_sync():
        for row in json.loads(done.stdout)["variants"][0]["results"]:
            result = replace(result_from_json(row), seconds=1.0)
            for held in report.results[1:]:
                stored.put(stored.subject(Options(), held, held.variant), result, sources)


PARTS = ("mutants", "times", "warm", "interpreter")


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, measure_all, part=PARTS, store=Path, subject=(), most=99))
