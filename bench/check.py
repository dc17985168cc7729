"""`pallasc check`: which mutants of kernels it finds, and how long it takes.

Goals: at least 95 % of the mutants of `tests/check` are found by the artifact level, no unchanged
kernel is blamed, every deadlock ends within 10 s; JAX's `hopper_matmul`, 256 × 128 × 192, takes at
most 30 s and a softmax of `f32[64, 4096]` at most 5 s on one core; the static level checks at least
200 variants a second from the store; a second check of a thousand unchanged variants takes at most
1.5 times a build of them. `--interpreter` has JAX's interpreter look at the same mutants.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "check"))

import warm_check
from equivalent_mutants import reason
from harness import Figure, run_benchmark
from kernel_mutants import Case, Outcome, cases, interpreted, measure, race_observer
from mutated_kernels import SUBJECTS

from pallasc.cache.store import Store
from pallasc.checks.static import level as static
from pallasc.checks.subject import Options, Subject
from pallasc.compiler.api import compile as compile_kernel
from pallasc.compiler.inputs.lookup import blob_reader
from pallasc.emulator.machine.machine import Machine, Policy
from pallasc.emulator.run_plan import PlanRun
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.loading.decorator import Call

FOUND, DEADLOCK_S, MATMUL_S, SOFTMAX_S, STATIC = 95.0, 10.0, 30.0, 5.0, 200.0
NOT_RUN = ("same code", "not compiled")
BLAMELESS = ("nothing", "warning")


def measure_all(options: argparse.Namespace) -> Sequence[Figure]:
    """Measure everything."""
    with tempfile.TemporaryDirectory(prefix="pallasc-bench-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        chosen = list(cases(SUBJECTS, most=options.most))
        outcomes = measure(chosen, folder, jobs=options.jobs)
        figures = _of_mutants(chosen, outcomes)
        report = {name: asdict(outcome) for name, outcome in outcomes.items()}
        if options.interpreter:
            counted = _counted(chosen, outcomes)
            said = interpreted(folder, counted, jobs=options.jobs, timeout_s=options.timeout)
            figures += _of_interpreter(said)
            for name, (kind, text) in said.items():
                report[name] |= {"interpreter": kind, "interpreter_text": text}
        if options.outcomes:
            options.outcomes.write_text(json.dumps(report, indent=1), encoding="utf-8")
        figures += _timed(Store(folder / "store"))
        figures += _static(Store(folder / "store"))
    warm = warm_check.measure(argparse.Namespace(rounds=5))
    return [*figures, *warm]


def _counted(chosen: Sequence[Case], outcomes: Mapping[str, Outcome]) -> list[Case]:
    """Return the mutants that are not equivalent."""
    return [
        case
        for case in chosen
        if case.mutant and outcomes[case.id].found not in NOT_RUN and not reason(case)
    ]


def _of_mutants(chosen: Sequence[Case], outcomes: Mapping[str, Outcome]) -> list[Figure]:
    counted = [outcomes[case.id] for case in _counted(chosen, outcomes)]
    found = [o for o in counted if o.found not in ("nothing", "unknown")]
    deadlocks = [o.seconds for o in found if o.found == "deadlock"]
    blamed = [c.id for c in chosen if not c.mutant and outcomes[c.id].found not in BLAMELESS]
    for outcome in counted:
        if outcome not in found:
            print(f"not found: {outcome.id} {outcome.message}", file=sys.stderr)
    return [
        Figure("mutants that are not equivalent", len(counted), goal=150, at_least=True),
        Figure("found", 100 * len(found) / len(counted), "%", FOUND, at_least=True),
        *(
            Figure(f"found as {kind}", sum(o.found == kind for o in found))
            for kind in ("numbers", "race", "deadlock", "fault")
        ),
        Figure("found with the user's line", 100 * _share(o.line > 0 for o in found), "%"),
        Figure("unchanged kernels blamed", len(blamed), goal=0),
        Figure("slowest deadlock", max(deadlocks, default=0.0), "s", DEADLOCK_S),
    ]


def _share(each: Any) -> float:
    values = list(each)
    return sum(values) / len(values)


def _of_interpreter(said: Mapping[str, tuple[str, str]]) -> list[Figure]:
    count = len(said)
    none = ("nothing", "cannot run", "hangs", "not compiled")
    found = sum(kind not in none for kind, _ in said.values())
    shares = {kind: 100 * sum(k == kind for k, _ in said.values()) / count for kind in none[:3]}
    return [
        Figure("found by JAX's interpreter alone", 100 * found / count, "%"),
        *(Figure(f"interpreter: {kind}", share, "%") for kind, share in shares.items()),
    ]


def _timed(store: Store) -> list[Figure]:
    """Time two kernels at the artifact level, in this process."""
    import jax.experimental.pallas.ops.gpu.hopper_matmul_mgpu as hopper

    from pallasc.specs.library.softmax import softmax

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
        Figure("JAX's hopper_matmul, 256 × 128 × 192", _emulated(matmul), "s", MATMUL_S),
        Figure("softmax, f32[64, 4096]", _emulated(rows), "s", SOFTMAX_S),
    ]


def _emulated(artifact: Artifact) -> float:
    import numpy as np

    random = np.random.default_rng(0)
    types = {"f16": np.float16, "f32": np.float32}
    arrays = [
        random.uniform(-1, 1, binding.shape).astype(types[binding.dtype])
        for binding in artifact.plan.inputs
    ]
    machine = Machine(Policy())
    race_observer(machine)
    began_s = time.perf_counter()
    PlanRun(artifact, machine).run([arrays])
    return time.perf_counter() - began_s


def _static(store: Store) -> list[Figure]:
    """Time the static level for what the store holds, in processor time."""
    keys = [path.name for path in (store.folder / "ac").rglob("?" * 64)]
    began_s = time.process_time()
    for key in keys:
        held = store.get_artifact(key)
        if held is not None:
            artifact = Artifact(held.artifact, blob_reader(store.get_blob))
            static.run(Subject(key, artifact), Options())
    rate = len(keys) / (time.process_time() - began_s)
    return [Figure("static level, a core", rate, "variants/s", STATIC, at_least=True)]


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--most", type=int, default=1, help="mutants of an operator and kernel")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where mutants and store lie")
    parser.add_argument("--interpreter", action="store_true", help="JAX's interpreter, too")
    parser.add_argument("--timeout", type=int, default=30, help="seconds of the interpreter")
    parser.add_argument("--outcomes", type=Path, help="write each mutant's outcome as JSON")


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", measure_all, _options))
