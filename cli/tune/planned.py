"""A planned job as text and JSON: the points of each key, and why others were dropped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pallasc.cli.artifacts.metrics_text import amount
from pallasc.cli.terminal.output import count
from pallasc.specs.canonical import plain

if TYPE_CHECKING:
    from pallasc.analysis.tuning.facts import Facts
    from pallasc.analysis.tuning.plan import LostKey, Planned
    from pallasc.specs.spec import Variant


def planned_text(planned: Planned) -> str:
    """Return the points of each key by rank, then those that were dropped, a line each."""
    from pallasc.analysis.tuning.plan import key_of

    variants = [result.variant for result in planned.report.results]
    keys: dict[object, list[int]] = {}
    for number, variant in enumerate(variants):
        keys.setdefault(key_of(variant), []).append(number)
    ranks = dict(planned.pruned.kept)
    reasons = {each.number: each.why for each in planned.pruned.dropped}
    lines: list[str] = []
    for numbers in keys.values():
        kept = sorted((number for number in numbers if number in ranks), key=ranks.__getitem__)
        first = variants[numbers[0]]
        lines.append(f"{_heading(first)}: {len(kept)} of {count(len(numbers), 'point')}")
        for number in kept:
            words = _words(planned.facts[number])
            lines.append(f"  {ranks[number]:>3}  {_use(variants[number])}: {words}")
        for number in numbers:
            if number in reasons:
                lines.append(f"    -  {_use(variants[number])}: {reasons[number]}")
    return "\n".join(lines)


def totals_text(planned: Planned) -> str:
    """Return what was written and how many points each rule dropped, lines for people."""
    from pallasc.analysis.tuning.plan import counts
    from pallasc.analysis.tuning.rules import KINDS

    lines = [*_left_out(planned)]
    if planned.pruned.dropped:
        words = [f"{number:,} {KINDS[kind]}" for kind, number in counts(planned.pruned).items()]
        points = count(len(planned.report.results), "point")
        lines.append(f"dropped {len(planned.pruned.dropped):,} of {points}: {', '.join(words)}")
    if planned.written is not None:
        bundle = planned.written.bundle
        points = count(len(bundle.variants), "point")
        lines.append(f"wrote {bundle.path}: {points}, {bundle.size:,} bytes")
    else:
        lines.append("no job is written")
    return "\n".join(lines)


def _left_out(planned: Planned) -> Iterator[str]:
    """Yield what the job does not have, and why."""
    for name in planned.untuned:
        yield f"note: {name} has no `tune` and is left out"
    kept = (planned.report.results[each.number] for each in planned.pruned.kept)
    without = {
        (result.variant.name, samples.why): None
        for result, samples in zip(kept, planned.samples, strict=True)
        if samples.data is None
    }
    for name, why in without:
        yield f"note: {name} has no reference values: {why}"


def planned_json(planned: Planned) -> dict[str, object]:
    """Return what `--json` prints."""
    results, written = planned.report.results, planned.written
    job: dict[str, object] | None = None
    if written is not None:
        bundle = written.bundle
        job = {"file": str(bundle.path), "bytes": bundle.size, "digest": bundle.digest}
    points = [
        {
            **_point_json(results[each.number].variant, planned.facts[each.number]),
            "rank": each.rank,
            "reference": samples.data is not None,
            **({} if samples.data is not None else {"why_no_reference": samples.why}),
        }
        for each, samples in zip(planned.pruned.kept, planned.samples, strict=True)
    ]
    dropped = [
        {
            **_point_json(results[each.number].variant, planned.facts[each.number]),
            "rule": each.kind,
            "why": each.why,
        }
        for each in planned.pruned.dropped
    ]
    return {
        "job": job,
        "points": points,
        "dropped": dropped,
        "lost": [_lost_json(key) for key in planned.lost],
        "untuned": list(planned.untuned),
    }


def _lost_json(key: LostKey) -> dict[str, object]:
    variant = key.variant
    by = variant.tuning.by if variant.tuning is not None else ()
    return {
        "kernel": variant.name,
        "key": {name: value for name, value in variant.params if name in by},
        "target": variant.target.name,
        "why": list(key.reasons),
    }


def _point_json(variant: Variant, facts: Facts | None) -> dict[str, object]:
    known = None if facts is None else facts.to_json()
    digest = None if known is None else known.pop("digest")
    return {
        "id": variant.id,
        "kernel": variant.name,
        "params": dict(variant.params),
        "target": variant.target.name,
        "digest": digest,
        "facts": known,
    }


def _heading(variant: Variant) -> str:
    """Return `matmul m=1024, dtype=bf16 on h100-sxm`."""
    by = variant.tuning.by if variant.tuning else ()
    text = ", ".join(f"{k}={plain(v)}" for k, v in variant.params if k in by)
    return f"{variant.name}{f' {text}' if text else ''} on {variant.target.name}"


def _use(variant: Variant) -> str:
    """Return the parameters in which points of a key differ."""
    by = variant.tuning.by if variant.tuning else ()
    return ", ".join(f"{k}={plain(v)}" for k, v in variant.params if k not in by)


def _words(facts: Facts | None) -> str:
    """Return the figures of a point that ranks are made from."""
    if facts is None:
        return "nothing is known"
    parts = [f"{facts.waves:.3g} waves", count(facts.mbarriers, "barrier")]
    if facts.instructions is not None:
        parts.insert(0, count(facts.instructions, "instruction"))
    if facts.load_bytes is not None:
        parts.append(f"{amount(facts.load_bytes)}B loaded")
    if facts.spill_bytes:
        parts.append(f"spills {count(facts.spill_bytes, 'byte')}")
    return ", ".join(parts)
