"""Compile variants twice in fresh processes, and compare byte for byte, with what is stored too.

Both times the store is empty, and the second time the variants go through the workers in the
opposite order, so that what a process has compiled before is different too. The hash seed is not:
workers have a fixed one, so no build could differ in it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

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
    """One variant compiled twice.

    Attributes:
        variant: its id.
        outcome: `failed` where it did not compile both times, `skipped` where the build stopped.
        first, second: digests of both artifacts, None where there is none.
        stored: digest of the one that the build gave, from the store perhaps.
        differences: fields of the record that differ, and where the bytes of blobs do.
        error: why it failed.
    """

    variant: str
    outcome: Outcome
    first: str | None = None
    second: str | None = None
    differences: tuple[str, ...] = ()
    error: str | None = None
    stored: str | None = None

    def to_json(self) -> dict[str, object]:
        """Return it as plain data."""
        return {**asdict(self), "differences": list(self.differences)}


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The results, in the order of the variants, and whether somebody stopped it."""

    results: tuple[ReproduceResult, ...]
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """130 if interrupted, 1 if a variant differs or failed, else 0."""
        if self.interrupted:
            return 130
        return 0 if all(result.outcome == "same" for result in self.results) else 1


def with_reproduction(report: Report, found: Reproduction) -> Report:
    """Return a build's report in which what did not come out twice alike has failed."""
    wrong = {result.variant: result for result in found.results if result.outcome != "same"}
    results = tuple(
        replace(result, status="failed", error=_fault(wrong[result.variant.id], result))
        if result.variant.id in wrong
        else result
        for result in report.results
    )
    return replace(report, results=results, interrupted=report.interrupted or found.interrupted)


def _fault(wrong: ReproduceResult, result: VariantResult) -> CheckError:
    if wrong.outcome == "different":
        listed = "".join(f"\n  {difference}" for difference in wrong.differences)
        message = f"compiled twice, it gave different bytes:{listed}"
        if wrong.first == wrong.second:
            message = f"compiled again, it gave other bytes than the store has:{listed}"
    else:
        message = f"it could not be compiled twice more: {wrong.error or wrong.outcome}"
    hint = None
    if wrong.first is not None and wrong.first == wrong.second:
        hint = "The store's is damaged or forged, or the toolchain's record misses something."
    return CheckError(message, location=result.variant.location, hint=hint)


def chosen(variants: Sequence[Variant], count: int) -> list[Variant]:
    """Return `count` of the variants in their order, always the same ones: by digest of the id."""
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
    """Compile `count` of the variants twice, each time in fresh processes, and compare all three.

    Args:
        variants: of these.
        count: how many.
        store: knows the digests of the toolchain's files; nothing is taken from it or put there.
        stored: what a build gave for them, by id; what it holds is compared too.
        options: how they are compiled: `jobs`, `ptxas` and the limits count.
        on_event: as for `build`, of both builds.

    Raises:
        ToolError: the toolchain is not complete.
    """
    sample = chosen(variants, count)
    plain = replace(DEFAULTS, jobs=options.jobs, ptxas=options.ptxas)
    plain = replace(plain, timeout_s=options.timeout_s, memory_bytes=options.memory_bytes)
    with tempfile.TemporaryDirectory(prefix="pallasc-reproduce-") as folder:
        reports: list[Report] = []
        for name, order in (("first", sample), ("second", sample[::-1])):
            empty = _empty_store(Path(folder) / name, store)
            reports.append(build(order, store=empty, options=plain, on_event=on_event))
            if reports[-1].interrupted:
                return Reproduction((), interrupted=True)
        first, second = ({r.variant.id: r for r in report.results} for report in reports)
        return Reproduction(
            tuple(_compared(first[v.id], second[v.id], (stored or {}).get(v.id)) for v in sample)
        )


def _empty_store(root: Path, known: Store) -> Store:
    """Return a store that only knows the digests of files, which take seconds to make."""
    store = Store(root, trust=known.trust)
    with suppress(OSError):
        found = files.read(known.folders, stat_digest.PLACE, limit_bytes=format.MAX_RECORD_BYTES)
        if found is not None and not found.fault:
            with files.temporary(store.folders, found.data) as place:
                files.publish_last(store.folders, place, stat_digest.PLACE)
    return store


def _compared(
    first: VariantResult, second: VariantResult, stored: Artifact | None
) -> ReproduceResult:
    name, error = first.variant.id, first.error or second.error
    digests = _digest(first.artifact), _digest(second.artifact)
    if first.artifact is not None and second.artifact is not None:
        found = tuple(islice(differences(first.artifact, second.artifact), _MOST_DIFFERENCES))
        if not found and stored is not None:
            found = tuple(islice(differences(stored, first.artifact), _MOST_DIFFERENCES))
        outcome: Outcome = "different" if found else "same"
        return ReproduceResult(name, outcome, *digests, found, stored=_digest(stored))
    if error is None:
        return ReproduceResult(name, "skipped")
    return ReproduceResult(name, "failed", *digests, error=str(error))


def _digest(artifact: Artifact | None) -> str | None:
    return artifact.digest if artifact else None


def differences(first: Artifact, second: Artifact) -> Iterator[str]:
    """Yield in words where two artifacts differ: fields of the record, and offsets in blobs.

    Blobs are named by their digests, which were checked when they were read, so that only those
    can differ whose names do.
    """
    records = first.record, second.record
    seen: set[tuple[str, str]] = set()
    without = [{**record, "blobs": None} for record in records]
    for path, a, b in _fields(without[0], without[1], ""):
        if not (_is_blob(a, records[0]) and _is_blob(b, records[1])):
            yield f"{path}: {_short(a)} and {_short(b)}"
        elif (a, b) not in seen:
            seen.add((a, b))
            yield f"{path}: {_bytes(first.blob(a), second.blob(b))}"
    blobs = [record["blobs"] for record in records]
    if not seen and blobs[0] != blobs[1]:
        yield f"blobs: {_short(blobs[0])} and {_short(blobs[1])}"


def _is_blob(value: Any, record: Mapping[str, Any]) -> bool:
    return isinstance(value, str) and value in record["blobs"]


def _fields(first: Any, second: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield path and both values of each leaf in which two pieces of JSON differ."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in sorted({*first, *second}):
            yield from _fields(first.get(key), second.get(key), f"{path}.{key}" if path else key)
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for index, pair in enumerate(zip(first, second, strict=True)):
            yield from _fields(*pair, f"{path}[{index}]")
    elif first != second or type(first) is not type(second):
        yield path, first, second


def _bytes(first: bytes, second: bytes) -> str:
    """Say where two blobs differ first."""
    pairs = enumerate(zip(first, second, strict=False))
    at = next((index for index, (a, b) in pairs if a != b), min(len(first), len(second)))
    return f"bytes differ from offset {at} on ({len(first)} and {len(second)} bytes)"


def _short(value: Any) -> str:
    text = canonical_json(value).decode()
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"
