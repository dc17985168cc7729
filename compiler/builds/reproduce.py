"""Compile variants twice, each alone in a process, and compare the bytes, also with the store.

Both builds start with an empty store. No process has compiled anything before, so a variant whose
artifact in the build itself was affected by earlier compilations is found. The hash seed is the
same: it is fixed for all workers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import replace

from pallasc.cache import files, format, stat_digest
from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import DEFAULTS, Options
from pallasc.compiler.builds.report import OnEvent, Report, VariantResult
from pallasc.errors import CheckError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.canonical import canonical_json, digest
from pallasc.specs.spec import Variant

Outcome = Literal["same", "different", "failed", "skipped"]

_MOST_DIFFERENCES = 20
_LONGEST_VALUE = 80


@dataclass(frozen=True, slots=True)
class ReproduceResult:
    """The result of compiling one variant twice.

    Attributes:
        variant: id of the variant.
        outcome: `failed` if it did not compile both times, `skipped` if the build stopped.
        first: digest of the first artifact, None if there is none.
        second: digest of the second.
        stored: digest of the artifact of the build itself, which may be from the store.
        differences: differing fields of the record, and offsets in blobs.
        error: reason of the failure.
    """

    variant: str
    outcome: Outcome
    first: str | None = None
    second: str | None = None
    differences: tuple[str, ...] = ()
    error: str | None = None
    stored: str | None = None

    def to_json(self) -> dict[str, object]:
        """Return plain data."""
        return {**asdict(self), "differences": list(self.differences)}


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The results, in the order of the variants, and whether it was interrupted."""

    results: tuple[ReproduceResult, ...]
    interrupted: bool = False


def with_reproduction(report: Report, reproduction: Reproduction) -> Report:
    """Return a build's report in which variants that were not reproduced have failed."""
    wrong = {result.variant: result for result in reproduction.results if result.outcome != "same"}
    results = tuple(
        replace(result, status="failed", error=_fault(found, result))
        if (found := wrong.get(result.variant.id))
        else result
        for result in report.results
    )
    interrupted = report.interrupted or reproduction.interrupted
    return replace(report, results=results, interrupted=interrupted)


def _fault(wrong: ReproduceResult, result: VariantResult) -> CheckError:
    if wrong.outcome == "different":
        listed = "".join(f"\n  {difference}" for difference in wrong.differences)
        message = f"compiled twice, it gave different bytes:{listed}"
        if wrong.first == wrong.second:
            message = f"compiled again, it gave other bytes than in the store:{listed}"
    else:
        message = f"it could not be compiled twice more: {wrong.error or wrong.outcome}"
    hint = None
    if wrong.first is not None and wrong.first == wrong.second:
        hint = (
            "The stored artifact was modified, its key misses an input, or it was compiled after "
            "a variant that changed its process."
        )
    return CheckError(message, location=result.variant.location, hint=hint)


def sample_of(variants: Sequence[Variant], count: int) -> list[Variant]:
    """Return `count` of the variants, in their order; the choice is deterministic."""
    ranked = sorted(variants, key=lambda variant: digest(variant.id.encode()))
    names = {variant.id for variant in ranked[:count]}
    return [variant for variant in variants if variant.id in names]


def reproduce(
    variants: Sequence[Variant],
    count: int,
    *,
    store: Store,
    stored: Mapping[str, Artifact] | None = None,
    options: Options = DEFAULTS,
    on_event: OnEvent = lambda event: None,
) -> Reproduction:
    """Compile `count` of the variants twice, each time alone in a process, and compare all three.

    Args:
        variants: the variants to choose from.
        count: number of variants to compile.
        store: store whose cached digests of the toolchain's files are copied; not used otherwise.
        stored: artifacts by id to compare, too.
        options: options, of which `jobs`, `ptxas` and the limits are used.
        on_event: as for `build`; called for both builds.

    Raises:
        ToolError: the toolchain is incomplete.
    """
    sample = sample_of(variants, count)
    plain = Options(
        jobs=options.jobs,
        ptxas=options.ptxas,
        timeout_s=options.timeout_s,
        memory_bytes=options.memory_bytes,
        alone=True,
    )
    stored, results = stored or {}, []
    with tempfile.TemporaryDirectory(prefix="pallasc-reproduce-") as folder:
        for name, order in (("first", sample), ("second", sample[::-1])):
            empty = _empty_store(Path(folder) / name, store)
            report = build(order, store=empty, options=plain, on_event=on_event)
            if report.interrupted:
                return Reproduction((), interrupted=True)
            results.append({result.variant.id: result for result in report.results})
        first, second = results
        compared = [_compared(first[v.id], second[v.id], stored.get(v.id)) for v in sample]
        return Reproduction(tuple(compared))


def _empty_store(root: Path, source: Store) -> Store:
    """Return an empty store with the cached digests of files, which take seconds to compute."""
    store = Store(root, trust=source.trust)
    with suppress(OSError):
        cached = files.read(source.folders, stat_digest.PLACE, limit_bytes=format.MAX_RECORD_BYTES)
        if cached is not None and not cached.fault:
            with files.temporary(store.folders, cached.data) as place:
                store.folders.rename(place, stat_digest.PLACE)
    return store


def _compared(
    first: VariantResult, second: VariantResult, stored: Artifact | None
) -> ReproduceResult:
    name, error = first.variant.id, first.error or second.error
    artifacts = (first.artifact, second.artifact, stored)
    one, two, old = (artifact.digest if artifact else None for artifact in artifacts)
    if first.artifact is None or second.artifact is None:
        outcome: Outcome = "skipped" if error is None else "failed"
        return ReproduceResult(name, outcome, one, two, error=str(error) if error else None)
    differing = [*islice(differences(first.artifact, second.artifact), _MOST_DIFFERENCES)]
    if not differing and stored is not None:
        differing = [*islice(differences(stored, first.artifact), _MOST_DIFFERENCES)]
    outcome = "different" if differing else "same"
    return ReproduceResult(name, outcome, one, two, tuple(differing), stored=old)


def differences(first: Artifact, second: Artifact) -> Iterator[str]:
    """Describe the differences between two artifacts: fields of the record, and offsets in blobs.

    Blobs with equal names are equal: names are digests, checked when blobs are read.
    """
    records = first.record, second.record
    seen: set[tuple[str, str]] = set()
    for path, a, b in _fields({**records[0], "blobs": None}, {**records[1], "blobs": None}, ""):
        texts = isinstance(a, str) and isinstance(b, str)
        if not (texts and a in records[0]["blobs"] and b in records[1]["blobs"]):
            yield f"{path}: {_short(a)} and {_short(b)}"
        elif (a, b) not in seen:
            seen.add((a, b))
            one, other = first.blob(a), second.blob(b)
            pairs = enumerate(zip(one, other, strict=False))
            at = next((n for n, (x, y) in pairs if x != y), min(len(one), len(other)))
            yield f"{path}: bytes differ from offset {at} on ({len(one)} and {len(other)} bytes)"
    blobs = [record["blobs"] for record in records]
    if not seen and blobs[0] != blobs[1]:
        yield f"blobs: {_short(blobs[0])} and {_short(blobs[1])}"


def _fields(first: object, second: object, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield path and both values of each differing leaf of two JSON values."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in sorted({*first, *second}):
            yield from _fields(first.get(key), second.get(key), f"{path}.{key}" if path else key)
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for index, pair in enumerate(zip(first, second, strict=True)):
            yield from _fields(*pair, f"{path}[{index}]")
    elif first != second or type(first) is not type(second):
        yield path, first, second


def _short(value: Any) -> str:
    text = canonical_json(value).decode()
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"
