"""Build whole programs, with one build for each set of XLA flags and JAX settings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.compiler.builds.report import OnEvent, Report, VariantResult
from pallasc.compiler.programs.describe import jax_versions
from pallasc.errors import ToolError
from pallasc.specs.spec import Machine, Variant


def build_programs(
    variants: Sequence[Variant],
    *,
    store: Store,
    options: Options,
    on_event: OnEvent = lambda event: None,
    only_lower: bool = False,
    tuned: bytes = b"",
) -> Report:
    """Build programs, and compile those that are not in the store.

    Args:
        variants: the programs.
        store: the store to read from and add to.
        options: options of the builds; each machine file sets the environment of its build.
        on_event: as for `build`.
        only_lower: lower the programs to compute their keys, and compile nothing.
        tuned: recorded autotuning results of XLA.

    Raises:
        ToolError: the installed JAX has another version than a machine's; also as for `build`.
    """
    groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
    changed = list(variants)
    for index, variant in enumerate(variants):
        program = variant.program
        if program is None:
            continue
        _check_versions(program.machine, variant)
        own = replace(program, only_lower=only_lower, tuned=tuned)
        changed[index] = replace(variant, program=own)
        groups.setdefault(tuple(sorted(program.machine.environment.items())), []).append(index)
    results: dict[int, VariantResult] = {}
    reports = []
    for environment, indices in groups.items():
        how = replace(options, environment=_environment(dict(environment)))
        report = build([changed[i] for i in indices], store=store, options=how, on_event=on_event)
        reports.append(report)
        results.update(zip(indices, report.results, strict=True))
        if report.interrupted or (report.exit_code and not options.keep_going):
            break
    return Report(
        tuple(results.get(i) or VariantResult(each, "skipped") for i, each in enumerate(changed)),
        sum(report.seconds for report in reports),
        tuple(dict.fromkeys(note for report in reports for note in report.notes)),
        any(report.interrupted for report in reports),
        context=reports[-1].context if reports else None,
        remote=reports[-1].remote if reports else None,
    )


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """Return this process's variables, with a machine's XLA flags and JAX settings."""
    kept = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS" and not k.startswith("JAX_")}
    return {**kept, **own}


def _check_versions(machine: Machine, variant: Variant) -> None:
    here = jax_versions()
    other = [
        f"{name} {getattr(machine, name)}, and {version} is installed here"
        for name, version in here.items()
        if version != getattr(machine, name)
    ]
    # Without JAX, programs can still be hits, like kernels.
    if other and any(here.values()):
        raise ToolError(
            f"{variant.id}: its machine file was written with {'; '.join(other)}.",
            location=variant.location,
            hint="Install the machine's versions, or write the file again: pallasc machine",
        )
