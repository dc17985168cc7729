"""`pallasc check`: which mutants of kernels it finds, and how long it takes.

Goals: at least 95 % of the mutants of `tests/check` are found by the artifact level, and with a
line of the function that is changed; no unchanged kernel is blamed, and no equivalent mutant
(`--equivalent` looks at these alone); every deadlock ends within 10 s; JAX's `hopper_matmul`,
256 × 128 × 192, takes at most 30 s and a softmax of `f32[64, 4096]` at most 5 s on one core; a
second check of a thousand unchanged variants takes at most 1.5 times a build of them.
Of the kernels of `docs/coverage.md`, at least 95 % of those that compile for sm_90a and for sm_100a
give the numbers of their reference when they are executed, and what JAX compiles wrongly is found:
that is counted from the results that `make coverage` writes, and `--coverage-only` counts nothing
else.
`--interpreter` has JAX's interpreter look at the same mutants.

With `--folder`, a run that was interrupted goes on where it was: the store in it has the artifacts
and the results of all that has not changed since.
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
from kernel_mutants import NEAR, NOT_FOUND, NOT_RUN, Case, Outcome, cases, measure
from mutated_kernels import SUBJECTS

from pallasc.cache.store import Store
from pallasc.compiler.api import compile as compile_kernel
from pallasc.emulator.machine.machine import Machine, Policy
from pallasc.emulator.races.observer import Races
from pallasc.emulator.run_plan import PlanRun
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.loading.decorator import Call

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "specs" / "library"
COVERAGE = ROOT / "tests" / "coverage" / "results-0.12.json"
FOUND, DEADLOCK_S, MATMUL_S, SOFTMAX_S = 95.0, 10.0, 30.0, 5.0
BLAMELESS = ("nothing", "warning")
AGREE, COVERED = 95.0, ("sm_90a", "sm_100a")


def measure_all(options: argparse.Namespace) -> Sequence[Figure]:
    """Measure everything."""
    if options.coverage_only:
        return _of_coverage(json.loads(COVERAGE.read_text(encoding="utf-8")))
    subjects = [s for s in SUBJECTS if not options.subjects or s.name in options.subjects]
    chosen = list(cases(subjects, most=options.most))
    if options.equivalent:
        chosen = [case for case in chosen if case.mutant is None or reason(case)]
    with tempfile.TemporaryDirectory(prefix="pallasc-bench-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        outcomes = measure(chosen, folder, jobs=options.jobs)
        if options.equivalent:
            return _equivalent(chosen, outcomes)
        report = {name: asdict(outcome) for name, outcome in outcomes.items()}
        counted = _counted(chosen, outcomes)
        figures = _of_mutants(chosen, counted, outcomes)
        if options.interpreter:
            wanted = [case for case in chosen if case.mutant is None or case in counted]
            said = measure(
                wanted, folder, level="interpreter", jobs=options.jobs, timeout_s=options.timeout
            )
            figures += _of_interpreter([said[case.id] for case in counted])
            for name, outcome in said.items():
                report[name]["interpreter"] = asdict(outcome)
        if options.outcomes:
            options.outcomes.write_text(json.dumps(report, indent=1), encoding="utf-8")
        if options.mutants_only:
            return figures
        figures += _of_coverage(json.loads(COVERAGE.read_text(encoding="utf-8")))
        figures += _timed(Store(folder / "store"))
    warm = warm_check.measure(argparse.Namespace(rounds=5))
    return [*figures, *warm]


def _counted(chosen: Sequence[Case], outcomes: Mapping[str, Outcome]) -> list[Case]:
    """Return the mutants that are not equivalent."""
    return [
        case
        for case in chosen
        if case.mutant and outcomes[case.id].found not in NOT_RUN and not reason(case)
    ]


def _of_mutants(
    chosen: Sequence[Case], counted: Sequence[Case], outcomes: Mapping[str, Outcome]
) -> list[Figure]:
    own = [outcomes[case.id] for case in counted]
    found = [o for o in own if o.found not in NOT_FOUND]
    deadlocks = [o.seconds for o in found if o.found == "deadlock"]
    blamed = [c.id for c in chosen if not c.mutant and outcomes[c.id].found not in BLAMELESS]
    near = [o.distance is not None and o.distance <= NEAR for o in found]
    for outcome in own:
        if outcome not in found:
            print(f"not found: {outcome.id} {outcome.message}", file=sys.stderr)
        elif not outcome.in_function:
            print(f"in another function: {outcome.id}", file=sys.stderr)
    count = len(own)
    return [
        Figure("mutants that are not equivalent", count, goal=150, at_least=True),
        *_left_out(chosen, outcomes),
        Figure("found", 100 * len(found) / count, "%", FOUND, at_least=True),
        *(
            Figure(f"found as {kind}", sum(o.found == kind for o in found))
            for kind in ("numbers", "race", "deadlock", "fault")
        ),
        Figure(
            "found with a line of the kernel's source",
            100 * sum(bool(o.lines) for o in found) / count,
            "%",
            FOUND,
            at_least=True,
        ),
        Figure(
            f"found with a line within {NEAR} lines of the change", 100 * sum(near) / count, "%"
        ),
        Figure(
            "found with a line of the function that is changed",
            100 * sum(o.in_function for o in found) / count,
            "%",
            FOUND,
            at_least=True,
        ),
        Figure("unchanged kernels blamed", len(blamed), goal=0),
        Figure("slowest deadlock", max(deadlocks, default=0.0), "s", DEADLOCK_S),
    ]


def _left_out(chosen: Sequence[Case], outcomes: Mapping[str, Outcome]) -> list[Figure]:
    """Count the mutants that are left out, each for one reason."""
    mutants = [case for case in chosen if case.mutant]
    others = [outcomes[case.id] for case in mutants if not reason(case)]
    return [
        *_equivalent(chosen, outcomes),
        Figure("mutants with the same code", sum(o.found == "same code" for o in others)),
        Figure("mutants that do not compile", sum(o.found == "not compiled" for o in others)),
        Figure(
            "mutants whose compilation is stopped at the limit",
            sum(o.found == "not compiled" and o.stopped for o in others),
        ),
    ]


def _equivalent(chosen: Sequence[Case], outcomes: Mapping[str, Outcome]) -> list[Figure]:
    """Count the mutants that are equivalent, and those of them that are blamed."""
    same = [outcomes[case.id] for case in chosen if case.mutant and reason(case)]
    blamed = [outcome for outcome in same if outcome.found not in (*NOT_FOUND, *NOT_RUN)]
    for outcome in blamed:
        print(f"equivalent, and blamed: {outcome.id} {outcome.message}", file=sys.stderr)
    return [
        Figure("mutants that are equivalent", len(same)),
        Figure("of those, blamed", len(blamed), goal=0),
    ]


def _of_interpreter(said: Sequence[Outcome]) -> list[Figure]:
    def share(chosen: Sequence[Outcome]) -> float:
        return 100 * len(chosen) / len(said)

    found = [o for o in said if o.found not in (*NOT_FOUND, *NOT_RUN)]
    stopped = [o for o in said if o.stopped]
    cannot = [o for o in said if o.found == "not checked" and not o.stopped]
    return [
        Figure("found by JAX's interpreter alone", share(found), "%"),
        Figure("interpreter: found nothing", share([o for o in said if o.found == "nothing"]), "%"),
        Figure("interpreter: stopped at the limit", share(stopped), "%"),
        Figure("interpreter: cannot run", share(cannot), "%"),
    ]


def _of_coverage(results: Mapping[str, Any]) -> list[Figure]:
    """Count the kernels of the coverage table whose numbers agree, of those that compile."""
    kernels = results["cases"].values()
    figures, wrong = [], []
    for arch in COVERED:
        said = [
            kernel["emulated"][arch] for kernel in kernels if arch in kernel.get("emulated", {})
        ]
        share = 100 * said.count("ok") / len(said)
        figures.append(
            Figure(f"coverage kernels that agree, {arch}", share, "%", AGREE, at_least=True)
        )
    for kernel in kernels:
        wrong += [
            kernel["emulated"][arch]
            for arch, built in kernel["targets"].items()
            if built.startswith("fault: ")
        ]
    missed = sum(not text.startswith("found: ") for text in wrong)
    return [
        *figures,
        Figure("coverage variants that JAX compiles wrongly", len(wrong)),
        Figure("of those, not found", missed, goal=0),
    ]


def _timed(store: Store) -> list[Figure]:
    """Time two kernels at the artifact level, in this process: in processor time."""
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
    machine = Machine(Policy(), observer=Races())
    began_s = time.process_time()
    PlanRun(artifact, machine).run([arrays])
    return time.process_time() - began_s


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--most", type=int, default=99, help="mutants of an operator and kernel")
    parser.add_argument("--subjects", nargs="*", default=(), help="kernels, by default all")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where mutants and store lie, to go on later")
    parser.add_argument("--interpreter", action="store_true", help="JAX's interpreter, too")
    parser.add_argument("--timeout", type=int, default=30, help="seconds of the interpreter")
    parser.add_argument("--outcomes", type=Path, help="write each mutant's outcome as JSON")
    parser.add_argument("--mutants-only", action="store_true", help="no timings")
    parser.add_argument("--equivalent", action="store_true", help="equivalent mutants alone")
    parser.add_argument("--coverage-only", action="store_true", help="no mutants, no timings")


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", measure_all, _options))
