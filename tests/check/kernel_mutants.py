"""Find out which mutants of kernels the levels of `pallasc check` see.

    python tests/check/kernel_mutants.py                  # the artifact level
    python tests/check/kernel_mutants.py --interpreter    # JAX's interpreter beside it
    python tests/check/kernel_mutants.py -k hopper --json found.json

Mutants are built once: artifacts are kept in the store of `--folder`, and so are the interpreter's
results.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import mutant_references as references
import numpy as np
from kernel_mutations import Mutant, mutants, sample
from mutated_kernels import SUBJECTS, Subject

from pallasc.cache.store import Store
from pallasc.compiler.again.find_lines import find_lines
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.compiler.toolchain.setup import prepare
from pallasc.emulator.machine.faults import Fault
from pallasc.emulator.machine.machine import Machine, Policy
from pallasc.emulator.run_plan import PlanRun
from pallasc.errors import PallascError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml
from pallasc.specs.spec import Variant

SECONDS = 20
POLICIES = (
    Policy(seconds=SECONDS, busy=True),
    Policy(eagerness=1, seconds=SECONDS),
    *(Policy(seed=n, shuffle=True, eagerness=0.3 / 4**n, seconds=SECONDS) for n in range(3)),
)
"""As late as can be, at once, and at random times in random order."""
NOT_FOUND = ("nothing", "unknown")
NOT_RUN = ("same code", "not compiled")


@dataclass(frozen=True, slots=True)
class Case:
    """A mutant of a subject, or the subject itself."""

    subject: Subject
    number: int  # 0: unchanged
    mutant: Mutant | None

    @property
    def id(self) -> str:
        """Its name."""
        what = "unchanged" if self.mutant is None else self.mutant.name
        return f"{self.subject.name}/{what}"

    @property
    def module(self) -> str:
        """The module that holds its source."""
        return f"{self.subject.name}_{self.number:03d}"

    @property
    def source(self) -> str:
        """The text of that module."""
        return self.subject.source() if self.mutant is None else self.mutant.source


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case.

    Attributes:
        id: of the case.
        found: "numbers", "race", "deadlock", "fault"; "warning": a race that kernels have which
            work; "nothing"; "same code" as the unchanged kernel; "not compiled"; "unknown": it
            could not be run.
        rule: of a fault or a race.
        message: what was found.
        how: the schedule that found it: its number, or "races".
        seconds: of all that ran.
        kernel: where it was found.
        ptx_line: the line of the kernel's PTX, 0 for none.
        line: the user's line, 0 where it is not known.
        lines: that and the lines of the frames around it.
        static: rules of the static level.
    """

    id: str
    found: str
    rule: str = ""
    message: str = ""
    how: str = ""
    seconds: float = 0.0
    kernel: str = ""
    ptx_line: int = 0
    line: int = 0
    lines: tuple[int, ...] = ()
    static: tuple[str, ...] = ()


def cases(chosen: Iterable[Subject], *, most: int = 99) -> Iterator[Case]:
    """Yield subjects, each followed by its mutants."""
    for subject in chosen:
        yield Case(subject, 0, None)
        found = mutants(subject.source(), subject.functions, own=subject.own, swaps=subject.swaps)
        numbered = [m for m in found if not subject.only or m.function in subject.only]
        kept = {id(mutant) for mutant in sample(numbered, most)}
        for number, mutant in enumerate(found, 1):
            if id(mutant) in kept:
                yield Case(subject, number, mutant)


def write(folder: Path, wanted: Sequence[Case], name: str = "spec") -> Path:
    """Write the modules of cases and a spec that names them; return the spec."""
    own = Path(references.__file__).read_text(encoding="utf-8")
    (folder / "mutant_references.py").write_text(own, encoding="utf-8")
    kernels = []
    for case in wanted:
        subject = case.subject
        (folder / f"{case.module}.py").write_text(case.source, encoding="utf-8")
        kernel = {
            "name": case.module,
            "entry": f"{case.module}:{subject.entry}",
            "args": dict(subject.args),
            "static": dict(subject.static),
            "targets": [subject.target],
            "reference": f"mutant_references:{subject.reference}",
        }
        rtol, atol = subject.tolerance
        kernels.append({**kernel, "tolerance": {"rtol": rtol, "atol": atol}})
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps({"schema": 1, "kernels": kernels}), encoding="utf-8")
    return path


Built = tuple[Variant, Artifact | None]


def built(spec: Path, store: Store, *, jobs: int) -> list[Built]:
    """Compile what a spec names."""
    variants = expand(load_yaml(spec))
    report = build(variants, store=store, options=Options(jobs=jobs, timeout_s=120))
    return [(result.variant, result.artifact) for result in report.results]


# The artifact level.


def judge(case: Case, artifact: Artifact) -> Outcome:
    """Run an artifact by all schedules until something is found."""
    began_s = time.monotonic()
    inputs = case.subject.inputs()
    expected = getattr(references, case.subject.reference)(**inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    arrays = [inputs[binding.path] for binding in artifact.plan.inputs]
    outcome, warned = Outcome(case.id, "nothing"), None
    for how, policy in enumerate(POLICIES):
        outcome = _run(case, artifact, arrays, expected, policy, races=not how)
        if outcome.found == "warning" and warned is None:
            warned = replace(outcome, how=str(how))
        elif outcome.found not in ("nothing", "warning"):
            outcome = replace(outcome, how=str(how))
            break
    else:
        outcome = warned or outcome
    seconds = time.monotonic() - began_s
    return replace(outcome, seconds=seconds, static=_static(artifact))


def _run(
    case: Case,
    artifact: Artifact,
    arrays: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    policy: Policy,
    *,
    races: bool,
) -> Outcome:
    machine = Machine(policy)
    observer = race_observer(machine) if races else None
    try:
        with np.errstate(all="ignore"):
            (results,) = PlanRun(artifact, machine).run([arrays])
    except Fault as fault:
        found = "deadlock" if fault.rule == "deadlock" else "fault"
        line = fault.instruction.line if fault.instruction is not None else 0
        return Outcome(case.id, found, fault.rule, str(fault), ptx_line=line)
    except Exception as error:
        return Outcome(case.id, "unknown", type(error).__name__, str(error))
    raced = Outcome(case.id, "nothing")
    for race in sorted(getattr(observer, "findings", ()), key=lambda race: race.is_warning):
        line = race.second.instruction.line
        kind = "warning" if race.is_warning else "race"
        raced = Outcome(case.id, kind, race.rule, str(race), ptx_line=line)
        break
    for result, right in zip(results, expected, strict=True):
        if wrong := difference(result, right, *case.subject.tolerance):
            text = f"{wrong}\n{raced.message}".strip()
            return replace(raced, found="numbers", message=text)
    return raced


def race_observer(machine: Machine) -> Any:
    """Have a machine's races found; return what finds them, None where nothing does."""
    try:
        from pallasc.emulator.races.observer import Races
    except ImportError:
        return None
    machine.observer = Races()
    return machine.observer


def difference(found: np.ndarray, right: np.ndarray, rtol: float, atol: float) -> str:
    """Return what is wrong with numbers, "" for nothing."""
    ours, theirs = found.astype(np.float64), right.astype(np.float64)
    close = np.isclose(ours, theirs, rtol=rtol, atol=atol)
    if close.all():
        return ""
    first = tuple(int(i) for i in np.argwhere(~close)[0])
    return f"{(~close).sum()} of {close.size} differ; at {first} {ours[first]}, not {theirs[first]}"


def _static(artifact: Artifact) -> tuple[str, ...]:
    from pallasc.checks.static.level import run
    from pallasc.checks.subject import Options as CheckOptions
    from pallasc.checks.subject import Subject as Checked

    try:
        result = run(Checked("", artifact, None), CheckOptions())
    except PallascError:
        return ()
    return tuple(sorted({finding.rule for finding in result.findings}))


_work: dict[str, tuple[Case, Artifact]] = {}


def _judge_one(name: str) -> Outcome:
    return judge(*_work[name])


def judged(pairs: Sequence[tuple[Case, Artifact]], *, jobs: int) -> dict[str, Outcome]:
    """Return the outcome of each case, by its id."""
    _work.clear()
    _work.update({case.id: (case, artifact) for case, artifact in pairs})
    if jobs == 1:
        return {name: _judge_one(name) for name in _work}
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(jobs, mp_context=fork) as pool:
        found = {}
        for name, outcome in zip(_work, pool.map(_judge_one, _work), strict=True):
            print(f"{outcome.seconds:5.1f} s  {outcome.found:9} {name}", file=sys.stderr)
            found[name] = outcome
        return found


def located(
    outcomes: Mapping[str, Outcome],
    pairs: Sequence[tuple[Case, Variant, Artifact]],
    store: Store,
    *,
    jobs: int,
) -> dict[str, Outcome]:
    """Return outcomes with the user's lines, which are found by compiling once more."""
    wanted = [(c, v, a) for c, v, a in pairs if outcomes[c.id].ptx_line]
    texts = [{k.name: a.blob(k.ptx).decode() for k in a.kernels if k.ptx} for _, _, a in wanted]
    with prepare() as setup:
        kernels = [(v, ptx) for (_, v, _), ptx in zip(wanted, texts, strict=True)]
        tables = find_lines(kernels, setup, store, jobs=jobs, timeout_s=120)
    found = dict(outcomes)
    for (case, _, _), by_kernel in zip(wanted, tables, strict=True):
        outcome = outcomes[case.id]
        for table in by_kernel.values():
            stack = [at.line for at in table.stack(outcome.ptx_line) if case.module in at.file]
            if stack:
                found[case.id] = replace(outcome, line=stack[0] or 0, lines=tuple(stack))
    return found


# JAX's interpreter.


def interpreted(
    folder: Path, wanted: Sequence[Case], *, jobs: int, timeout_s: int
) -> dict[str, tuple[str, str]]:
    """Return what JAX's interpreter alone says about each case: an outcome and its text."""
    found: dict[str, tuple[str, str]] = {}
    subjects = {case.subject.name: case.subject for case in wanted}
    for name, subject in subjects.items():
        own = [case for case in wanted if case.subject is subject]
        spec = write(folder, own, name=f"spec_{name}")
        np.savez(folder / f"{name}.npz", **subject.inputs())  # type: ignore[arg-type]
        command = [sys.executable, "-P", "-m", "pallasc", "check", str(spec), "--json"]
        command += ["--level", "interpreter", "--inputs", str(folder / f"{name}.npz")]
        command += ["--store", str(folder / "store"), "--jobs", str(jobs)]
        command += ["--timeout", str(timeout_s)]
        print(f"interpreting {len(own)} of {name}", file=sys.stderr)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        report = json.loads(done.stdout)
        by_name = {variant["name"]: variant for variant in report["variants"]}
        for case in own:
            found[case.id] = _interpreter_outcome(by_name.get(case.module, {}))
    return found


def _interpreter_outcome(variant: Mapping[str, Any]) -> tuple[str, str]:
    for result in variant.get("results", ()):
        if result["findings"]:
            first = result["findings"][0]
            return first["rule"], first["message"]
        if result["stopped"]:
            return "hangs", json.dumps(result["error"])
        if result["status"] == "not checked":
            return "cannot run", result["reason"]
        return "nothing", ""
    return "not compiled", ""


# All of it.


def measure(
    chosen: Sequence[Case], folder: Path, *, jobs: int, lines: bool = True
) -> dict[str, Outcome]:
    """Build cases and run the artifact level; return the outcome of each by its id."""
    store = Store(folder / "store")
    began_s = time.monotonic()
    results = built(write(folder, chosen), store, jobs=jobs)
    print(f"{len(chosen)} built in {time.monotonic() - began_s:.0f} s", file=sys.stderr)
    outcomes: dict[str, Outcome] = {}
    unchanged: dict[str, tuple[Any, ...]] = {}
    pairs = []
    for case, (variant, artifact) in zip(chosen, results, strict=True):
        if artifact is None:
            outcomes[case.id] = Outcome(case.id, "not compiled")
            continue
        code = _code(artifact)
        if case.mutant is None:
            unchanged[case.subject.name] = code
        elif code == unchanged.get(case.subject.name):
            outcomes[case.id] = Outcome(case.id, "same code")
            continue
        pairs.append((case, variant, artifact))
    began_s = time.monotonic()
    outcomes.update(judged([(case, artifact) for case, _, artifact in pairs], jobs=jobs))
    print(f"{len(pairs)} run in {time.monotonic() - began_s:.0f} s", file=sys.stderr)
    if lines:
        outcomes = located(outcomes, pairs, store, jobs=jobs)
    return {case.id: outcomes[case.id] for case in chosen}


def _code(artifact: Artifact) -> tuple[Any, ...]:
    """Return what decides what an artifact does."""
    return artifact.plan, tuple(artifact.blob(k.ptx) for k in artifact.kernels if k.ptx)


def table(chosen: Sequence[Case], outcomes: Mapping[str, Outcome]) -> str:
    """Return how many mutants of each kernel were found, and how."""
    kinds = ("numbers", "race", "warning", "deadlock", "fault", "nothing", "unknown")
    rows = [("kernel", "mutants", *kinds, "same code", "not compiled")]
    for name in dict.fromkeys(case.subject.name for case in chosen):
        counts = Counter(
            outcomes[case.id].found for case in chosen if case.mutant and case.subject.name == name
        )
        total = sum(counts[kind] for kind in kinds)
        others = (counts["same code"], counts["not compiled"])
        rows.append((name, *map(str, (total, *(counts[kind] for kind in kinds), *others))))
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows
    )


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", default="", help="kernels whose name has this")
    parser.add_argument("--most", type=int, default=99, help="of each operator and kernel")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--interpreter", action="store_true", help="JAX's interpreter, too")
    parser.add_argument("--timeout", type=int, default=30, help="seconds of the interpreter")
    parser.add_argument("--no-lines", action="store_true", help="do not find the user's lines")
    parser.add_argument("--json", type=Path, help="write all outcomes")
    options = parser.parse_args()
    chosen = list(cases((s for s in SUBJECTS if options.k in s.name), most=options.most))
    with tempfile.TemporaryDirectory(prefix="pallasc-mutants-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = measure(chosen, folder, jobs=options.jobs, lines=not options.no_lines)
        print(table(chosen, found))
        report = {name: asdict(outcome) for name, outcome in found.items()}
        if options.json:
            options.json.write_text(json.dumps(report, indent=1), encoding="utf-8")
        if options.interpreter:
            own = [c for c in chosen if found[c.id].found not in ("same code", "not compiled")]
            said = interpreted(folder, own, jobs=options.jobs, timeout_s=options.timeout)
            print(Counter(kind for kind, _ in said.values()))
            for name, (kind, text) in said.items():
                report[name] |= {"interpreter": kind, "interpreter_text": text}
        if options.json:
            options.json.write_text(json.dumps(report, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
