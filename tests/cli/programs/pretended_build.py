"""Results of a build that never was; as a program, shows that build on the standard error output.

The program takes a pipe's path. Each line from the pipe lets it go on by one step, and ends a
second of the build's own time, so that what it shows is the same on every machine. A line "crash"
makes it raise.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import click

from pallasc.cli.main import as_interrupts
from pallasc.cli.output.build_text import summary
from pallasc.cli.output.progress import stderr_progress
from pallasc.compiler.builds.report import Event, Report, Tick, VariantResult
from pallasc.errors import CompileError, Location, PallascError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.gpus import resolve_target
from pallasc.specs.spec import Budget, Variant
from pallasc.specs.templates import Scalar

IN_SPEC = Location("kernels.yaml", 4, 5)
KERNEL = {
    "name": "kernel",
    "cubin": "c" * 64,
    "ptx": None,
    "origin": "mosaic",
    "registers": 40,
    "stack_bytes": 0,
    "spill_store_bytes": 0,
    "spill_load_bytes": 0,
    "static_smem_bytes": 0,
    "dynamic_smem_bytes": 512,
    "barriers": 1,
}


def variant(
    name: str = "add",
    *,
    budget: Budget | None = None,
    place: Location = IN_SPEC,
    **params: Scalar,
) -> Variant:
    return Variant(
        name=name,
        params=tuple(params.items()),
        target=resolve_target("sm_90a"),
        entry="kernels.py:add",
        args=[],
        static={},
        reference=None,
        tolerance=None,
        budget=budget or Budget(),
        files=(),
        location=place,
        base_dir=".",
    )


def artifact(*, cubin_bytes: int = 9512, **changes: int | None) -> Artifact:
    return Artifact(
        {
            "schema": 1,
            "target": {"name": "h100-sxm"},
            "toolchain": {},
            "plan": {"steps": []},
            "kernels": [{**KERNEL, **changes}],
            "blobs": {KERNEL["cubin"]: cubin_bytes},
        },
        lambda key: b"",
    )


def hit(of: Variant | None = None, *, saved_s: float = 0.0) -> VariantResult:
    return VariantResult(of or variant(), "hit", 0.001, "a" * 64, artifact(), saved_s=saved_s)


def compiled(of: Variant | None = None, seconds: float = 1.236, **changes: int) -> VariantResult:
    return VariantResult(
        of or variant(), "compiled", seconds, "a" * 64, artifact(**changes), reason="it is new"
    )


def failed(
    of: Variant | None = None, error: PallascError | None = None, *, output: str = ""
) -> VariantResult:
    error = error or CompileError("it broke.")
    return VariantResult(of or variant(), "failed", 0.5, error=error, output=output)


def missing(of: Variant | None = None) -> VariantResult:
    return VariantResult(of or variant(), "missing", reason="it is new")


def skipped(of: Variant | None = None) -> VariantResult:
    return VariantResult(of or variant(), "skipped")


def finished(result: VariantResult, done: int = 3, total: int = 24) -> Event:
    return Event(result.status, result.variant, result, done, total)  # type: ignore[arg-type]


def started(of: Variant | None = None, done: int = 2, total: int = 24) -> Event:
    return Event("started", of or variant(), None, done, total)


class Clock:
    """A clock that only goes on when it is told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


LONG = "a_matmul_whose_name_alone_is_long"
TOTAL = 40


def steps() -> Iterator[list[Event | Tick]]:
    """Yield lists of events, a second apart: 30 hits, a compilation, a failure, a rest."""
    of = [variant(LONG, m=m, n=4096, dtype="bf16", activation="silu_and") for m in range(TOTAL)]
    broken = CompileError(
        "ValueError: no kernel for\nan odd shape", location=Location("kernels.py", 2)
    )
    yield [
        *(finished(hit(of[m], saved_s=2.0), m + 1, TOTAL) for m in range(30)),
        started(of[30], 30, TOTAL),
        started(of[31], 30, TOTAL),
    ]
    yield [Tick(((of[30], 1.0), (of[31], 1.0)), 30, TOTAL, (), 2)]
    yield [
        finished(compiled(of[30], 1.5), 31, TOTAL),
        finished(failed(of[31], broken), 32, TOTAL),
        started(of[32], 32, TOTAL),
        Tick(((of[32], 0.4),), 32, TOTAL, (1.5,), 2),
    ]
    yield [Tick(((of[32], 1.4),), 32, TOTAL, (1.5,), 2)]


def report_of(
    results: Iterable[VariantResult],
    *,
    interrupted: bool = False,
    notes: Iterable[str] = (),
    seconds: float = 1.23,
) -> Report:
    return Report(tuple(results), seconds, tuple(notes), interrupted)


def main(pipe: str) -> None:
    clock = Clock()
    results: list[VariantResult] = []
    stopped = False
    with stderr_progress(clock=clock) as progress, open(pipe, encoding="utf-8") as orders:
        try:
            for events in steps():
                for event in events:
                    progress(event)
                    if isinstance(event, Event) and event.result is not None:
                        results.append(event.result)
                if orders.readline() == "crash\n":
                    raise PallascError("it crashed.")
                clock.now_s += 1
        except KeyboardInterrupt:
            stopped = True
    results += [skipped(variant(LONG, m=m)) for m in range(len(results), TOTAL)]
    click.echo(summary(report_of(results, interrupted=stopped), progress.screen), err=True)


if __name__ == "__main__":
    with as_interrupts():
        main(sys.argv[1])
