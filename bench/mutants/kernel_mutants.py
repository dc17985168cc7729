"""Measure which mutants of kernels a level of `pallasc check` finds.

Each mutant is written as a module, and each kernel has a spec for its mutants, which `pallasc
check` builds and checks like a user's spec. Artifacts and results stay in a store in the folder, so
that an interrupted run continues there.
"""

import ast
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import references
from kernel_mutations import Mutant, mutants, sample
from mutated_kernels import Subject

NEAR = 5
"""Maximum number of lines between a mutation and a finding that counts as near."""
NOT_FOUND = ("nothing", "warning", "not checked")
NOT_RUN = ("same code", "not compiled")
_KINDS = {
    "deadlock": "deadlock",
    "wrong-numbers": "numbers",
    "compiled-wrongly": "numbers",
    "depends-on-order": "numbers",
    "uninitialized-read": "numbers",
    "race": "race",
    "unfinished-copy": "race",
    "missing-proxy-fence": "race",
    "accumulator-before-wait": "race",
}
"""Kinds of findings by rule; findings of other rules are faults."""


@dataclass(frozen=True, slots=True)
class Case:
    """A mutant of a subject, or the subject itself."""

    subject: Subject
    number: int  # 0: unchanged
    mutant: Mutant | None

    @property
    def id(self) -> str:
        """The name of the case."""
        what = "unchanged" if self.mutant is None else self.mutant.name
        return f"{self.subject.name}/{what}"

    @property
    def module(self) -> str:
        """The name of the module with the case's source."""
        return f"{self.subject.name}_{self.number:03d}"

    @property
    def source(self) -> str:
        """The source of the module."""
        return self.subject.source() if self.mutant is None else self.mutant.source


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a level for a case.

    Attributes:
        id: the case's id.
        found: kind of the first finding: "numbers", "race", "deadlock", or "fault"; "warning": only
            notes, which correct kernels also have; "nothing"; "same code" as the unchanged kernel;
            "not compiled"; "not checked".
        rule: rule of the first finding.
        message: message of the first finding, or why the case was not checked or not compiled.
        seconds: how long the level took.
        lines: lines of the case's source that findings name, the lines of the first finding first.
        distance: lines between the mutation and the nearest of `lines`; None if there are none.
        in_function: True if one of `lines` is in the function that is changed.
        stopped: True if the compilation or the check took too long.
    """

    id: str
    found: str
    rule: str = ""
    message: str = ""
    seconds: float = 0.0
    lines: tuple[int, ...] = ()
    distance: int | None = None
    in_function: bool = False
    stopped: bool = False


def cases(chosen: Iterable[Subject], *, most: int = 99) -> Iterator[Case]:
    """Yield subjects, each followed by its mutants."""
    for subject in chosen:
        yield Case(subject, 0, None)
        found = mutants(subject.source(), subject.functions, own=subject.own, swaps=subject.swaps)
        kept = {id(mutant) for mutant in sample(found, most)}
        for number, mutant in enumerate(found, 1):
            if id(mutant) in kept:
                yield Case(subject, number, mutant)


def write(folder: Path, subject: Subject, wanted: Sequence[Case]) -> Path:
    """Write a subject's inputs, the modules of its cases and their spec; return the spec's path."""
    own = Path(references.__file__).read_text(encoding="utf-8")
    (folder / "references.py").write_text(own, encoding="utf-8")
    np.savez(folder / f"{subject.name}.npz", **subject.inputs())  # type: ignore[arg-type]
    rtol, atol = subject.tolerance
    kernels = []
    for case in wanted:
        (folder / f"{case.module}.py").write_text(case.source, encoding="utf-8")
        kernel = {
            "name": case.module,
            "entry": f"{case.module}:{subject.entry}",
            "args": dict(subject.args),
            "static": dict(subject.static),
            "targets": [subject.target],
            "reference": f"references:{subject.reference}",
        }
        kernels.append({**kernel, "tolerance": {"rtol": rtol, "atol": atol}})
    path = folder / f"spec_{subject.name}.yaml"
    path.write_text(json.dumps({"schema": 1, "kernels": kernels}), encoding="utf-8")
    return path


def measure(
    chosen: Sequence[Case],
    folder: Path,
    *,
    level: str = "artifact",
    jobs: int = 2,
    timeout_s: int = 120,
) -> dict[str, Outcome]:
    """Check cases at a level; return the outcomes by the cases' ids.

    "same code" is detected only for kernels whose unchanged case is in `chosen`, too.
    """
    outcomes: dict[str, Outcome] = {}
    for subject in {case.subject.name: case.subject for case in chosen}.values():
        own = [case for case in chosen if case.subject is subject]
        print(f"{level}: {len(own)} of {subject.name}", file=sys.stderr)
        variants = _checked(write(folder, subject, own), level, jobs, timeout_s)
        unchanged = {variants.get(case.module, {}).get("digest") for case in own if not case.number}
        for case in own:
            variant = variants.get(case.module, {})
            if case.mutant is not None and variant.get("digest") in unchanged - {None}:
                outcomes[case.id] = Outcome(case.id, "same code")
            else:
                outcomes[case.id] = outcome(case, variant)
    return outcomes


def _checked(spec: Path, level: str, jobs: int, timeout_s: int) -> dict[str, dict[str, Any]]:
    """Run `pallasc check`, and return its report on each variant by the variant's name."""
    command = [sys.executable, "-P", "-m", "pallasc", "check", str(spec), "--json"]
    command += ["--level", level, "--jobs", str(jobs)]
    command += ["--inputs", str(spec.with_name(f"{spec.stem.removeprefix('spec_')}.npz"))]
    command += ["--timeout", str(timeout_s), "--store", str(spec.parent / "store")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return {variant["name"]: variant for variant in json.loads(done.stdout)["variants"]}


def outcome(case: Case, variant: Mapping[str, Any]) -> Outcome:
    """Return the outcome of a case from the report on its variant."""
    if not variant.get("results"):
        message = (variant.get("error") or {}).get("message", "")
        return Outcome(case.id, "not compiled", message=message, stopped="(--timeout)" in message)
    (result,) = variant["results"]
    seconds, stopped = result["seconds"], result["stopped"]
    if result["status"] == "not checked":
        reason = result["reason"]
        return Outcome(case.id, "not checked", "", reason, seconds, stopped=stopped)
    blamed = [each for each in result["findings"] if each["severity"] != "note"]
    if not blamed:
        found = "warning" if result["findings"] else "nothing"
        return Outcome(case.id, found, seconds=seconds)
    lines = tuple(dict.fromkeys(line for each in blamed for line in _lines(each, case)))
    return Outcome(
        case.id,
        _KINDS.get(blamed[0]["rule"], "fault"),
        blamed[0]["rule"],
        blamed[0]["message"],
        seconds,
        lines,
        *_nearness(case, lines),
    )


def _lines(finding: Mapping[str, Any], case: Case) -> Iterator[int]:
    """Yield the lines of a case's module that a finding names."""
    for each in (finding, *finding["places"]):
        location = each["location"]
        if location is not None and Path(location["file"]).name == f"{case.module}.py":
            yield location["line"]


def _nearness(case: Case, lines: Sequence[int]) -> tuple[int | None, bool]:
    """Return `Outcome.distance` and `Outcome.in_function` for the lines of findings."""
    mutant = case.mutant
    if mutant is None or not lines:
        return None, False
    changed = (
        range(mutant.line, mutant.last + 1)
        if mutant.target == mutant.line
        else (mutant.line, mutant.target)
    )
    distance = min(abs(line - each) for line in lines for each in changed)
    spans = [
        range(
            min(each.lineno for each in (node, *node.decorator_list)),
            (node.end_lineno or node.lineno) + 1,
        )
        for node in ast.walk(ast.parse(case.source))
        if isinstance(node, ast.FunctionDef) and node.name == mutant.function
    ]
    around = [span for span in spans if mutant.line in span]
    return distance, any(line in span for span in around for line in lines)
