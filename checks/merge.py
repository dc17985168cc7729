"""Merges equivalent findings: from unrolled loops, or a race seen from both sides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pallasc.checks.findings import CALLED, Finding, Place
from pallasc.errors import Location

if TYPE_CHECKING:
    from pallasc.checks.findings import LevelResult

MOST_PLACES = 28
_ASYNCHRONOUS = frozenset({"cp", "tcgen05", "wgmma"})
_OF_PAIRS = frozenset({"race", "missing-proxy-fence", "accumulator-before-wait"})
"""Rules about two accesses; which one comes second depends on the schedule and the level."""


def merged(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Merge equivalent findings; the message of a merged finding has the count.

    Findings of a rule about two accesses are equivalent if both lines match, in either order; other
    findings if their subject, their line and the lines of their places match.
    """
    groups: dict[object, list[Finding]] = {}
    for finding in findings:
        same = pair_of(finding) or _what_of(finding)
        groups.setdefault((finding.rule, finding.severity, same), []).append(finding)
    return tuple(_joined(*group) for group in groups.values())


def pair_of(finding: Finding) -> frozenset[object] | None:
    """Return the two places of a finding, None if its rule is not about two accesses."""
    partner = next((place for place in finding.places if place.text != CALLED), None)
    if finding.rule not in _OF_PAIRS or partner is None:
        return None
    own = Place(finding.instruction, finding.location, finding.ptx_line)
    return frozenset(_at(place, finding) for place in (own, partner))


def distinct_findings(results: Iterable[LevelResult]) -> Iterator[Finding]:
    """Yield the findings of a variant's levels; a pair of accesses is yielded only once."""
    told: set[object] = set()
    for result in results:
        own = [(pair_of(finding), finding) for finding in result.findings]
        yield from (f for pair, f in own if pair is None or (f.rule, pair) not in told)
        told.update((f.rule, pair) for pair, f in own)


def distinct(places: Iterable[Place]) -> tuple[Place, ...]:
    """Return at most `MOST_PLACES` places, without repeats of the same text at the same line."""
    found: dict[object, Place] = {}
    for place in places:
        at = place.location
        where = (at.file, at.line) if at else (place.cubin, place.kernel, place.ptx_line)
        found.setdefault((place.text, where), place)
    return tuple(found.values())[:MOST_PLACES]


def _joined(*group: Finding) -> Finding:
    """Return the first of equivalent findings, with the lines that only the others have.

    In a race between an asynchronous operation and an access that should wait for it, the access is
    first.
    """
    if len(group) == 1:
        return group[0]
    first, *more = sorted(group, key=_is_asynchronous)
    known = {_line(first.location), *(_line(place.location) for place in first.places)}
    others = [
        place
        for finding in more
        for place in finding.places
        if place.location is not None and _line(place.location) not in known
    ]
    places = distinct((*first.places, *others))
    return replace(first, message=f"{first.message}; {len(more)} more like it", places=places)


def _is_asynchronous(finding: Finding) -> bool:
    return _opcode(finding).partition(".")[0] in _ASYNCHRONOUS


def _what_of(finding: Finding) -> object:
    """Return the key of a finding's subject and location.

    Without a source line, the opcode is the key, which unrolled loops repeat. Without an
    instruction as well, only the message distinguishes findings.
    """
    own = _line(finding.location)
    places = tuple(line for place in finding.places if (line := _line(place.location)))
    if own is None and not finding.instruction:
        return finding.kernel, finding.message
    return finding.subject, own or (finding.cubin, finding.kernel, _opcode(finding)), places


def _opcode(finding: Finding) -> str:
    """Return the opcode of an instruction, skipping its guard."""
    words = finding.instruction.split()
    return next((word.rstrip(",;") for word in words if not word.startswith("@")), "")


def _at(place: Place, finding: Finding) -> object:
    if place.location is None and place.ptx_line:
        return place.cubin or finding.cubin, place.kernel or finding.kernel, place.ptx_line
    return _line(place.location) or place.text


def _line(location: Location | None) -> tuple[str, int] | None:
    return None if location is None else (location.file, location.line)
