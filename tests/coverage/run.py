"""Build every case, look for the declared properties, and execute its PTX without a GPU.

Usage: run.py [--write] [--output FILE] [--sample] [--store FOLDER] [NAME...]. With `--write`, the
results of this JAX version, `results-<version>.json`, are written if every case is as declared, and
the declared entries, `cases.json`; with names, only for these cases. Differences are printed. With
`--sample` every fifteenth case is built, for one of its architectures: the first, or for every
second one another. `pallasc inspect` shows the content of `--store`.
"""

# ruff: noqa: E402 - modules of this folder are imported by name, as a spec's own are.

import argparse
import dataclasses
import inspect
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))

import declared
import outcomes
from covering import CASES, Found

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.compiler.builds.report import VariantResult
from pallasc.compiler.lowering.kernel_output import unpack

_MOST_S = 3600
"""Limit for a kernel that hangs; no machine is so busy."""

JAX = metadata.version("jax")
VERSION = ".".join(JAX.split(".")[:2])


def results(names: Sequence[str], store: Path, *, sample: bool = False) -> dict[str, Any]:
    """Return the results of the cases, in the form of the files of results."""
    chosen = list(declared.variants(names))
    architectures = declared.architectures(chosen)
    if sample:
        wanted = _sample(architectures)
        chosen = [v for v in chosen if v.target.arch in wanted.get(v.name, ())]
    # A sample is built beside other tests: there one worker at a time costs least.
    jobs = 1 if sample else None
    report = build(chosen, store=Store(store), options=Options(jobs=jobs, timeout_s=_MOST_S))
    os.environ["JAX_PLATFORMS"] = "cpu"
    import emulate  # it imports JAX, which the build does not need

    said = dict(emulate.emulations(report.results, store, jobs=jobs or os.cpu_count() or 1))
    return {
        "jax": JAX,
        "exports": _exports(),
        "declared": {name: {"covers": sorted(CASES[name].covers)} for name in architectures},
        "cases": _outcomes(report.results, said),
    }


def _sample(by_case: Mapping[str, Sequence[str]]) -> dict[str, set[str]]:
    """Return an architecture of every fifteenth case, also for the cases it is compared with."""
    wanted = dict(list(declared.sample(by_case).items())[::15])
    pairs = [(name, look.beside) for name in by_case for look in CASES[name].looks if look.beside]
    for _ in pairs:  # the other case may be compared itself
        for name, other in pairs:
            if name in wanted:
                wanted[other] = wanted.get(other, set()) | wanted[name]
    return wanted


def _outcomes(
    all_results: Iterable[VariantResult], said: Mapping[str, str]
) -> dict[str, dict[str, dict[str, str]]]:
    """Return the outcomes by case, by "targets" or "emulated", and by architecture."""
    found: dict[str, dict[str, Found]] = {}
    for result in all_results:
        if result.artifact is not None:
            others = found.setdefault(result.variant.target.arch, {})
            text = unpack(result.printed)
            others[result.variant.name] = Found(result.artifact, text, others)
    cases: dict[str, dict[str, dict[str, str]]] = {}
    for result in all_results:
        name, arch = result.variant.name, result.variant.target.arch
        message = result.error.message if result.error else result.status
        own = found.get(arch, {}).get(name)
        held = cases.setdefault(name, {"targets": {}})
        held["targets"][arch] = outcomes.outcome(CASES[name], arch, VERSION, message, own)
        if result.variant.id in said:
            ended = outcomes.emulated(CASES[name], said[result.variant.id])
            held.setdefault("emulated", {})[arch] = ended
    return cases


def _exports() -> dict[str, list[str]]:
    """Return the public names of the installed Pallas: in modules, fields of a class, keywords."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import mosaic_gpu as plgpu

    return {
        "pl": _public(pl),
        "plgpu": _public(plgpu),
        "plgpu.CompilerParams": sorted(f.name for f in dataclasses.fields(plgpu.CompilerParams)),
        "plgpu.kernel": sorted(inspect.signature(plgpu.kernel).parameters),
        "pl.kernel": sorted(inspect.signature(pl.kernel).parameters),
    }


def _public(module: object) -> list[str]:
    """Return a module's names, also those that it calls deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old = [name for name in vars(module).get("_deprecations", ()) if hasattr(module, name)]
    return sorted({name for name in (*dir(module), *old) if not name.startswith("_")})


def main(arguments: Sequence[str]) -> int:
    """Run the cases; print or write the results."""
    parser = argparse.ArgumentParser(prog="run.py")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--store", type=Path)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args(arguments)
    if options.sample and options.write:
        parser.error("--sample builds a part, and results are written of all architectures")
    with tempfile.TemporaryDirectory(prefix="pallasc-coverage-") as folder:
        store = options.store or Path(folder) / "store"
        came_out = results(options.names, store, sample=options.sample)
    lines = outcomes.wrong(came_out["cases"])
    print(*lines, sep="\n", end="\n" if lines else "", file=sys.stderr)
    if options.output:
        _write(options.output, came_out)
    elif options.names and not options.write:
        json.dump(came_out["cases"], sys.stdout, indent=1)
    elif options.write and not lines:
        kept, cases = FOLDER / f"results-{VERSION}.json", FOLDER / "cases.json"
        declared_here = came_out.pop("declared")
        if options.names:
            came_out["cases"] = json.loads(kept.read_text())["cases"] | came_out["cases"]
            declared_here = json.loads(cases.read_text()) | declared_here
        _write(kept, came_out)
        _write(cases, declared_here)
    return 1 if lines else 0


def _write(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
