"""Results of a build that never was, and a clock."""

from collections.abc import Iterable

from msgspec.structs import asdict

from pallasc.compiler.builds.report import Event, Report, VariantResult
from pallasc.errors import CompileError, Location, PallascError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.canonical import Scalar
from pallasc.specs.gpus import MODELS, resolve_target
from pallasc.specs.spec import Budget, Variant

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
    name: str = "add", *, budget: Budget | None = None, place: Location = IN_SPEC, **params: Scalar
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
            "target": asdict(MODELS["h100-sxm"]),
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


def report_of(
    results: Iterable[VariantResult],
    *,
    interrupted: bool = False,
    notes: Iterable[str] = (),
    seconds: float = 1.23,
) -> Report:
    return Report(tuple(results), seconds, tuple(notes), interrupted)
