"""The events of a build, its report, and its notes on hidden inputs and on tuned kernels.

Kernels see only the variables that their specs declare, and an empty home folder (`recorders`). If
a kernel's code asks for another variable that is set here, or for a file that exists in the user's
home, the user may expect an effect, so the build warns.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, field

from pallasc.cache.manifests import Diagnostic
from pallasc.errors import CheckError, PallascError, SpecError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.settings import why_not_declared
from pallasc.specs.spec import Variant

if TYPE_CHECKING:
    from pallasc.cache.remote.settings import RemoteStats
    from pallasc.compiler.toolchain.setup import Context
    from pallasc.specs.tuning import Row

Status = Literal["hit", "lowered", "shared", "compiled", "failed", "skipped", "missing"]
NOT_COMPILED = ("hit", "lowered", "shared")


class VariantResult(Struct, frozen=True):
    """The result of one variant.

    Attributes:
        variant: the variant.
        status: `hit`: found in the store. `lowered`: found in the store after lowering it again.
            `shared`: the same request as an earlier variant of this build. `skipped`: the build
            stopped before. `missing`: not in the store, in a build that compiles nothing.
        seconds: time of compiling it, or of looking it up.
        action_key: its action key, None if unknown.
        artifact: the artifact, None if there is none.
        error: reason of a failure.
        reason: reason of a miss.
        explanation: what changed since the nearest entry of the store, with `explain`.
        died: whether the process that compiled it ended or was stopped.
        compiling: whether XLA reported the failure; XLA's output is in the error.
        saved_s: compile time that a hit saved, 0 if unknown.
        output: end of the output of the compiling process, if it failed.
        printed: output of tracing and lowering, packed (`kernel_output.unpack`).
        manifest_key: key of the manifest that lists its inputs, "" if unknown.
        diagnostics: warnings of tracing, lowering and compiling, also of an earlier build.
        missed: variables and files that its code requested but could not see (`hidden_notes`).
        request_key: its request key, "" if unknown.
        remote: whether a hit came from the remote store, in this build.
    """

    variant: Variant
    status: Status
    seconds: float = 0.0
    action_key: str | None = None
    artifact: Artifact | None = None
    error: PallascError | None = None
    reason: str = ""
    output: str = ""
    saved_s: float = 0.0
    died: bool = False
    compiling: bool = False
    explanation: tuple[str, ...] = ()
    printed: str = ""
    manifest_key: str = ""
    diagnostics: tuple[Diagnostic, ...] = ()
    missed: Mapping[str, str] = field(default_factory=dict)
    request_key: str = ""
    remote: bool = False


class Event(Struct, frozen=True):
    """A change in the state of a variant; `done` of `total` are finished."""

    kind: Literal["started", "hit", "lowered", "shared", "compiled", "failed", "missing"]
    variant: Variant
    result: VariantResult | None
    done: int
    total: int


class Tick(Struct, frozen=True):
    """A periodic event, for displays.

    Attributes:
        running: variants being compiled and their times so far in seconds, longest first.
        done: number of finished variants.
        total: number of all variants.
        compiled_s: compile times of this build's variants in seconds.
        jobs: number of compiling processes.
    """

    running: tuple[tuple[Variant, float], ...]
    done: int
    total: int
    compiled_s: tuple[float, ...] = ()
    jobs: int = 1


OnEvent = Callable[[Event | Tick], None]


class Report(Struct, frozen=True):
    """The results of a build.

    Attributes:
        results: results, in the order of the variants.
        seconds: duration of the build.
        notes: warnings about the store and about nondeterministic compilations.
        interrupted: whether the build was interrupted; unfinished variants are `skipped`.
        errors: errors of spec files that could not be executed.
        context: the toolchain's identity, for keys needed after the build; None if there is no
            toolchain.
        remote: statistics of the remote store, None if there is none.
    """

    results: tuple[VariantResult, ...]
    seconds: float
    notes: tuple[str, ...] = ()
    interrupted: bool = False
    errors: tuple[PallascError, ...] = ()
    context: Context | None = None
    remote: RemoteStats | None = None

    def having(self, status: Status) -> tuple[VariantResult, ...]:
        """Return the results with a status."""
        return tuple(result for result in self.results if result.status == status)

    @property
    def hits(self) -> tuple[VariantResult, ...]:
        """Variants for which nothing was compiled: `hit`, `lowered` and `shared`."""
        return tuple(result for result in self.results if result.status in NOT_COMPILED)

    @property
    def compiled(self) -> tuple[VariantResult, ...]:
        """Variants that were compiled."""
        return self.having("compiled")

    @property
    def failed(self) -> tuple[VariantResult, ...]:
        """Variants that failed."""
        return self.having("failed")

    @property
    def exit_code(self) -> int:
        """130 if interrupted, else 1 if any failure has the code 1, else the first failure's."""
        if self.interrupted:
            return 130
        errors = [*(result.error for result in self.failed), *self.errors]
        codes = [error.exit_code for error in errors if error]
        return 1 if 1 in codes else next(iter(codes), 0)


_HOME = f"~{os.sep}"


def hidden_notes(missed: Iterable[tuple[str, Mapping[str, str]]]) -> list[str]:
    """Return a note on each hidden variable or file that kernels asked for and that exists here.

    Args:
        missed: pairs of a kernel and the field `missed` of its manifest.
    """
    requests: dict[str, tuple[str, str]] = {}
    for kernel, places in missed:
        for name, place in places.items():
            requests.setdefault(name, (kernel, place))
    return [_note(name, *asked) for name, asked in sorted(requests.items()) if _is_here(name)]


def fatal_warning(result: VariantResult, patterns: Iterable[re.Pattern[str]]) -> CheckError | None:
    """Return the error for the first warning of a result that a pattern matches, or None.

    An artifact without a Mosaic kernel, and the notes on hidden inputs, count as warnings.
    """
    kernels = result.artifact.kernels if result.artifact else ()
    found = [*result.diagnostics]
    is_program = result.variant.program is not None
    if not is_program and all(kernel.origin != "mosaic" for kernel in kernels):
        text = "it holds no Pallas Mosaic GPU kernel"
        found.append(Diagnostic("compile", "pallasc", "", text))
    kernel = result.variant.name
    for name, place in result.missed.items():
        if _is_here(name):
            text = _note(name, kernel, "")
            found.append(Diagnostic("lower", "pallasc", str(place), text))
    for pattern in patterns:
        for diagnostic in found:
            if pattern.search(str(diagnostic)):
                return CheckError(
                    f"it compiles with a warning: {diagnostic}",
                    location=diagnostic.place(result.variant.base_dir),
                    hint=f"--fail-on-warning {pattern.pattern!r} matches it.",
                )
    return None


def _is_here(name: str) -> bool:
    if name.startswith(_HOME):
        return os.path.isfile(os.path.expanduser(name))
    return name in os.environ


def _note(name: str, kernel: str, place: str) -> str:
    where = f" ({place})" if place else ""
    why = why_not_declared(name)
    hint = f"it {why}." if why else f'to pass it on, write env: ["{name}"] in the spec.'
    if name.startswith(_HOME):
        hint = 'kernels have an empty home. To use yours, write env: ["HOME"] in the spec.'
    return f"{kernel} asks for {name}{where}, which exists here but is not passed on: {hint}"


def padding_error(result: VariantResult) -> SpecError | None:
    """Return an error if a variant's arrays cannot be padded as its spec requires, else None."""
    tuning, artifact = result.variant.tuning, result.artifact
    if tuning is None or artifact is None:
        return None
    from pallasc.specs.tuning import check_padding

    plan = artifact.plan
    shapes = {array.path: array.shape for array in (*plan.inputs, *plan.outputs)}
    try:
        check_padding(tuning.pad, dict(result.variant.params), shapes)
    except ValueError as error:
        return SpecError(
            f"{result.variant.id}: {error}.",
            location=result.variant.where("tune.pad"),
            hint="pallasc inspect SPECS --plan shows the arrays of each variant.",
        )
    return None


def stale_row_notes(results: Iterable[VariantResult]) -> list[str]:
    """Return a note for each table with rows that were measured with outdated artifacts.

    A row is outdated if every variant that it selects has an artifact, and none has the row's
    digest.
    """
    rows: dict[int, tuple[Row, int, list[str]]] = {}
    for result in results:
        tuning, artifact = result.variant.tuning, result.artifact
        if tuning is None or artifact is None:
            continue
        for row in tuning.rows:
            if row.artifact is not None:
                rows.setdefault(id(row), (row, tuning.sharing, []))[2].append(artifact.digest)
    stale: dict[str, list[int]] = {}
    for row, sharing, digests in rows.values():
        if len(digests) == sharing and row.artifact not in digests and row.place is not None:
            stale.setdefault(row.place.file, []).append(row.place.line)
    return [
        f"{file}:{min(lines)}: {'this row was' if len(lines) == 1 else f'{len(lines)} rows were'} "
        "measured with an artifact that differs from the current one; the times may not hold."
        for file, lines in sorted(stale.items())
    ]
