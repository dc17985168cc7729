"""Run a variant once without a GPU: its PTX is executed on the CPU, in a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

from pallasc.checks.emulation.emulate import check_installed, emulate, fault_error, subjects_of
from pallasc.cli.launching.launching import Chosen, build_missing, several
from pallasc.cli.launching.operands import Value, of_devices
from pallasc.cli.terminal.output import echo
from pallasc.compiler.builds.options import Options

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.checks.subject import Subject
    from pallasc.cli.launching.launching import CompileOptions
    from pallasc.cli.launching.request import Request
    from pallasc.specs.artifacts.artifact import Artifact
    from pallasc.specs.spec import Variant


@dataclass(frozen=True, slots=True)
class Emulation:
    """Emulates variants.

    Attributes:
        subjects: what is emulated, by the digest of the artifact and the variant's id.
        store: that of the build, None where there is no source.
        limits: time and memory.
    """

    subjects: Mapping[tuple[str, str], Subject]
    store: Store | None
    limits: Options

    def __call__(self, chosen: Chosen, inputs: list[Value]) -> list[Value]:
        """Run a variant on inputs; what it prints goes to the standard error output.

        Raises:
            CheckError: a kernel fails: an access out of bounds, a deadlock, an assertion.
            CompileError: it has an instruction that is not known, or was stopped at a limit.
        """
        subject = self.subjects[chosen.artifact.digest, chosen.variant.id]
        data = [value.data for value in inputs]
        emulated = emulate(subject, data, store=self.store, limits=self.limits)
        if emulated.printed:
            # The standard output belongs to the results, which may be JSON.
            echo(emulated.printed, err=True, nl=not emulated.printed.endswith("\n"))
        if emulated.fault is not None:
            raise fault_error(subject, emulated.fault)
        count = chosen.artifact.plan.device_count
        outputs = [of_devices(b, count) for b in chosen.route.signature.outputs]
        return [Value(b, out) for b, out in zip(outputs, emulated.outputs, strict=True)]


def collect_emulated(
    request: Request, *, every: bool, **options: Unpack[CompileOptions]
) -> tuple[list[Chosen], Emulation] | int:
    """Return what is emulated, and what does it; or the exit status where a build failed.

    Of variants that differ in their target only, the first is emulated.

    Raises:
        PallascError: as compiling does, or something that is needed is missing.
    """
    check_installed()
    first: dict[object, int] = {}
    for number, variant in enumerate(request.variants):
        first.setdefault((variant.name, variant.params), number)
    variants = [request.variants[number] for number in first.values()]
    _check_points(variants, every=every)
    limits = Options(**options)
    if request.store is None:
        pairs = [(request.variants[n], request.artifacts[n]) for n in first.values()]
    else:
        report = build_missing(variants, request.store, limits)
        if report.exit_code:
            return report.exit_code
        pairs = [(r.variant, r.artifact) for r in report.results if r.artifact is not None]
    subjects = subjects_of(pairs, store=request.store, limits=limits)
    by_key = {(s.artifact.digest, s.id): s for s in subjects}
    return [_chosen(*pair) for pair in pairs], Emulation(by_key, request.store, limits)


def _check_points(variants: Sequence[Variant], *, every: bool) -> None:
    """Check that a kernel has one point, unless all are to run."""
    kernels: dict[str, list[Variant]] = {}
    for variant in variants:
        kernels.setdefault(variant.name, []).append(variant)
    for points in kernels.values():
        if len(points) > 1 and not every:
            raise several(points, "emulated")


def _chosen(variant: Variant, artifact: Artifact) -> Chosen:
    from pallasc.runtime.calls.launch import Route
    from pallasc.runtime.matching.candidates import Candidate

    return Chosen(
        variant, artifact, Route([Candidate(variant.name, dict(variant.params), artifact)])
    )
