"""Build every case, look for what it declares, run it without a GPU, and tell what came out.

Each is run by JAX's interpreter, and its PTX is emulated for each architecture.

Usage: run.py [--write | --merge] [--output FILE] [--sample] [--store FOLDER] [NAME...]. With
`--write` the results of this JAX version, `results-<version>.json`, are written where every case is
as declared, and what is declared with every version, `cases.json`; what is not as declared is
printed. `--merge` replaces those of the named cases alone. With `--sample` every fifteenth case
is built, for one of its architectures: the first, or every second one another. A store that is
named is kept, and `pallasc inspect` shows what is in it.
"""

# ruff: noqa: E402 - modules of this folder are imported by name, as a spec's own are.

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))

import declared
import exported
import outcomes
from covering import CASES, Case, Found

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.compiler.builds.report import VariantResult
from pallasc.compiler.lowering.kernel_output import unpack
from pallasc.specs.spec import Variant

_MOST_S = 3600
"""Of what hangs: no machine is so busy."""


def results(
    names: Sequence[str], folder: Path, store: Path, *, sample: bool = False
) -> dict[str, Any]:
    """Return what the cases give, as the files of results hold it."""
    chosen = list(declared.variants(names))
    architectures = declared.architectures(chosen)
    if sample:
        wanted = _sample(architectures)
        chosen = [v for v in chosen if v.target.arch in wanted.get(v.name, ())]
        names = sorted(wanted)
    with _interpreting(names, folder) as numbers:
        # A sample is built beside other tests: there one worker at a time costs least.
        jobs = 1 if sample else None
        report = build(chosen, store=Store(store), options=Options(jobs=jobs, timeout_s=_MOST_S))
        emulations = _emulations(report.results, store, jobs)
    version = exported.version()
    built = _by_case(report.results)
    found = _found(report.results)
    return {
        "jax": exported.jax_version(),
        "exports": exported.exports(),
        "declared": {name: _declared(CASES[name]) for name in sorted(architectures)},
        "cases": {
            name: _result(CASES[name], built[name], found, numbers.get(name), version)
            | _emulated(CASES[name], built[name], emulations, version)
            for name in sorted(built)
        },
    }


@contextmanager
def _interpreting(names: Sequence[str], folder: Path) -> Iterator[dict[str, str]]:
    """Run the interpreter beside what is done within; its numbers are there at the end."""
    numbers: dict[str, str] = {}
    output, written = folder / "numbers.json", folder / "interpreter.log"
    command = [sys.executable, "-P", FOLDER / "interpret.py", output, *names]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment["XLA_FLAGS"] = "--xla_backend_optimization_level=0"  # each runs but once
    environment["PYTHONPATH"] = os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")])
    with written.open("w") as log:
        interpreter = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        yield numbers
        with suppress(subprocess.TimeoutExpired):
            interpreter.wait(_MOST_S)
    finally:
        interpreter.kill()
        interpreter.wait()
    if interpreter.returncode:
        raise SystemExit(f"run.py: the interpreter failed:\n{written.read_text()}")
    numbers.update(json.loads(output.read_text()))


def _sample(by_case: Mapping[str, Sequence[str]]) -> dict[str, set[str]]:
    """Return an architecture of every fifteenth case, also for the cases it is compared with."""
    wanted = dict(list(declared.sample(by_case).items())[::15])
    pairs = [(name, look.beside) for name in by_case for look in CASES[name].looks if look.beside]
    for _ in pairs:  # what a case is compared with may be compared itself
        for name, other in pairs:
            if name in wanted:
                wanted[other] = wanted.get(other, set()) | wanted[name]
    return wanted


def _by_case(all_results: Iterable[VariantResult]) -> dict[str, list[VariantResult]]:
    by_case: dict[str, list[VariantResult]] = {}
    for result in all_results:
        by_case.setdefault(result.variant.name, []).append(result)
    return by_case


def _found(all_results: Iterable[VariantResult]) -> dict[str, dict[str, Found]]:
    """Return what was found by architecture and case."""
    found: dict[str, dict[str, Found]] = {}
    for result in all_results:
        if result.artifact is not None:
            others = found.setdefault(result.variant.target.arch, {})
            text = unpack(result.printed)
            others[_label(result.variant)] = Found(result.artifact, text, others)
    return found


def _label(variant: Variant) -> str:
    """Return the case's name, with the parameters where it has a matrix."""
    return variant.id.partition("@")[0]


def _declared(case: Case) -> dict[str, Any]:
    """Return what is told of a case besides what came out; it is the same with every JAX."""
    return {
        "file": case.file,
        "covers": sorted(case.covers),
        "looked_for": list(dict.fromkeys(look.says for look in case.looks)),
        **({"note": case.note} if case.note else {}),
    }


def _result(
    case: Case,
    built: Sequence[VariantResult],
    found: Mapping[str, Mapping[str, Found]],
    said: str | None,
    version: str,
) -> dict[str, Any]:
    targets: dict[str, str] = {}
    for variant_result in built:
        arch = variant_result.variant.target.arch
        own = found[arch][_label(variant_result.variant)] if variant_result.artifact else None
        message = variant_result.error.message if variant_result.error else variant_result.status
        if targets.get(arch, "ok") == "ok":
            targets[arch] = outcomes.outcome(case, arch, version, message, own)
    result: dict[str, Any] = {"targets": dict(sorted(targets.items()))}
    if said is not None:
        result["numbers"] = outcomes.numbers(case, version, said)
    return result


def _emulations(
    all_results: Iterable[VariantResult], store: Path, jobs: int | None
) -> dict[str, str]:
    """Emulate what was compiled; return what came out by the variants' names, "" for agreement."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    import emulate  # it imports JAX, which the build needs not

    return dict(emulate.emulations(all_results, store, jobs=jobs or os.cpu_count() or 1))


def _emulated(
    case: Case, built: Sequence[VariantResult], said: Mapping[str, str], version: str
) -> dict[str, Any]:
    """Return the outcomes of emulating a case by architecture, where it compiles for one."""
    found: dict[str, str] = {}
    for result in built:
        arch = result.variant.target.arch
        if result.variant.id in said and found.get(arch, "ok") == "ok":
            found[arch] = outcomes.emulated(case, version, arch, said[result.variant.id])
    return {"emulated": dict(sorted(found.items()))} if found else {}


def _text(all_results: Mapping[str, Any]) -> str:
    return json.dumps(all_results, indent=1, sort_keys=True) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Run the cases; print or write the results."""
    parser = argparse.ArgumentParser(prog="run.py")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--merge", action="store_true")
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--store", type=Path)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args(arguments)
    if options.sample and (options.write or options.merge):
        parser.error("--sample builds a part, and results are written of all architectures")
    with tempfile.TemporaryDirectory(prefix="pallasc-coverage-") as folder:
        store = options.store or Path(folder) / "store"
        came_out = results(options.names, Path(folder), store, sample=options.sample)
    lines = outcomes.wrong(came_out)
    print(*lines, sep="\n", end="\n" if lines else "", file=sys.stderr)
    if options.output:
        options.output.write_text(_text(came_out))
        return 0
    if not lines and (options.merge or (options.write and not options.names)):
        _write(came_out, merge=options.merge)
    elif options.names:
        print(_text(came_out["cases"]), end="")
    return 1 if lines else 0


def _write(came_out: dict[str, Any], *, merge: bool) -> None:
    """Write what came out, and what is declared; `merge` leaves other cases as they were."""
    file, cases = FOLDER / f"results-{exported.version()}.json", FOLDER / "cases.json"
    declared_here = came_out.pop("declared")
    if merge:
        came_out["cases"] = {**json.loads(file.read_text())["cases"], **came_out["cases"]}
        declared_here = {**json.loads(cases.read_text()), **declared_here}
    file.write_text(_text(came_out))
    cases.write_text(_text(declared_here))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
