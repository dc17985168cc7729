"""Compile variants again, each alone in a process, and compare the bytes with a build's.

The second build starts with an empty store. Each of its processes compiles one variant, so the
comparison finds artifacts that earlier compilations in the same process have changed. Python's hash
seed is the same in both builds, since it is fixed for all workers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import DEFAULTS, Options
from pallasc.compiler.builds.report import OnEvent, Report, VariantResult
from pallasc.errors import CheckError
from pallasc.specs.canonical import canonical_json

_MOST_DIFFERENCES = 20
_LONGEST_VALUE = 80


class Reproduction(Struct, frozen=True):
    """The result of compiling one variant again, as `--json` prints it.

    Attributes:
        variant: id of the variant.
        outcome: `failed` if it did not compile again, `skipped` if the build stopped.
        built: digest of the artifact of the build, which may be from the store.
        again: digest of the artifact that was compiled again, None if there is none.
        differences: fields of the record that differ; digests stand for the blobs.
        error: reason of the failure.
    """

    variant: str
    outcome: Literal["same", "different", "failed", "skipped"]
    built: str | None = None
    again: str | None = None
    differences: tuple[str, ...] = ()
    error: str | None = None


def reproduce(
    report: Report,
    count: int,
    *,
    store: Store,
    options: Options = DEFAULTS,
    on_event: OnEvent = lambda event: None,
) -> tuple[Report, list[Reproduction]]:
    """Compile the first variants of a build again, each alone in a process, in the opposite order.

    Args:
        report: report of a build without failures.
        count: number of variants to compile.
        store: the store of the build; nothing is read from it or added to it.
        options: options, of which `jobs`, `ptxas` and the limits are used.
        on_event: as for `build`.

    Returns:
        A copy of the report, in which variants that were not reproduced have failed, and `seconds`
        includes the second build. Also, a result for each variant of the second build.

    Raises:
        ToolError: the toolchain is incomplete.
    """
    sample = [result.variant for result in report.results[:count]]
    alone = Options(
        jobs=options.jobs,
        ptxas=options.ptxas,
        timeout_s=options.timeout_s,
        memory_bytes=options.memory_bytes,
        alone=True,
    )
    with tempfile.TemporaryDirectory(prefix="pallasc-reproduce-") as folder:
        empty = Store(folder, trust=store.trust)
        second = build(sample[::-1], store=empty, options=alone, on_event=on_event)
        again = {result.variant.id: result for result in second.results}
        pairs = [(r, again[r.variant.id]) for r in report.results if r.variant.id in again]
        compared = {built.variant.id: _compared(built, other) for built, other in pairs}
    results = tuple(_judged(result, compared.get(result.variant.id)) for result in report.results)
    interrupted = report.interrupted or second.interrupted
    seconds = report.seconds + second.seconds
    report = replace(report, results=results, seconds=seconds, interrupted=interrupted)
    return report, list(compared.values())


def _compared(built: VariantResult, again: VariantResult) -> Reproduction:
    name, before, after = built.variant.id, built.artifact, again.artifact
    if before is None or after is None:
        error = str(again.error) if again.error else None
        return Reproduction(name, "failed" if error else "skipped", error=error)
    found = tuple(islice(differences(before.record, after.record), _MOST_DIFFERENCES))
    outcome: Literal["different", "same"] = "different" if found else "same"
    return Reproduction(name, outcome, before.digest, after.digest, found)


def _judged(result: VariantResult, found: Reproduction | None) -> VariantResult:
    """Return a variant's result, which is a failure if it was not reproduced."""
    if found is None or found.outcome == "same":
        return result
    hint = None
    message = f"it could not be compiled again: {found.error or found.outcome}"
    if found.outcome == "different":
        listed = "".join(f"\n  {difference}" for difference in found.differences)
        message = f"compiled again, it gave different bytes:{listed}"
        hint = (
            "Compiling is not deterministic, an earlier variant changed its process, its key "
            "misses an input, or the store was modified."
        )
    error = CheckError(message, location=result.variant.location, hint=hint)
    return replace(result, status="failed", error=error)


def differences(first: object, second: object, path: str = "") -> Iterator[str]:
    """Describe each differing leaf of two JSON values; in a record, digests stand for blobs."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in sorted({*first, *second}):
            below = f"{path}.{key}" if path else key
            yield from differences(first.get(key), second.get(key), below)
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for index, pair in enumerate(zip(first, second, strict=True)):
            yield from differences(*pair, f"{path}[{index}]")
    elif first != second or type(first) is not type(second):
        yield f"{path}: {_short(first)} and {_short(second)}"


def _short(value: Any) -> str:
    text = canonical_json(value).decode()
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"
