"""Judge the outputs of points: by reference values of the job, or by what most points give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pallasc.runtime.tuning.points import NO_REFERENCE

if TYPE_CHECKING:
    from pallasc.compiler.references.comparison import Comparison
    from pallasc.runtime.tuning.job import Match
    from pallasc.specs.artifacts.plan import Binding
    from pallasc.specs.artifacts.signature import Signature
    from pallasc.specs.bundle.bundle import Bundle
    from pallasc.specs.bundle.manifest import Entry
    from pallasc.specs.bundle.reference import Reference

_BOTH_MAY_BE_OFF = 2.0
"""Two results within a tolerance of the reference differ by at most twice that."""


@dataclass(frozen=True, slots=True)
class Judge:
    """Makes the referees of a job.

    Attributes:
        bundle: the job.
        seed: chooses inputs where there are no reference values.
    """

    bundle: Bundle
    seed: int

    def __call__(self, match: Match) -> OutputReferee:
        """Return the referee of a contest."""
        votes = not any(map(self.bundle.reference, match.entries.values()))
        return OutputReferee(self.bundle, self.seed, votes=votes)


@dataclass(frozen=True, slots=True)
class _Group:
    """Points that give the same, and the outputs of the first of them."""

    ids: list[str]
    outputs: list[bytes]


@dataclass(slots=True)
class OutputReferee:
    """Judges the points of one contest.

    Attributes:
        bundle, seed: as of `Judge`.
        votes: no point of the contest has reference values.
        first: the id of the first valid point.
        outputs: its outputs.
        groups: of a vote, who gives the same as whom, and what: the first of each with its outputs.
    """

    bundle: Bundle
    seed: int
    votes: bool = False
    first: str = ""
    outputs: list[bytes] = field(default_factory=list)
    groups: list[_Group] = field(default_factory=list)

    def inputs(self, entry: Entry, signature: Signature) -> list[bytes]:
        """Return the inputs of a point, as `pallasc run` makes them."""
        from pallasc.cli.launching.operands import make_inputs

        reference = self.bundle.reference(entry)
        seed = self.seed if reference is None else reference.seed
        made = make_inputs(signature, seed=seed, files={}, name=entry.id)
        return [value.data for value in made]

    def disagreement(self, entry: Entry, signature: Signature, outputs: Sequence[bytes]) -> str:
        """Return how outputs differ from what they must be, "" where they do not."""
        if self.votes:
            self._join(entry.id, signature, outputs)
            return ""
        reference = self.bundle.reference(entry)
        for number, (binding, data) in enumerate(zip(signature.outputs, outputs, strict=True)):
            why = _beside_reference(binding, data, reference, number)
            if not why and self.outputs and data != self.outputs[number]:
                why = self._beside_first(binding, data, reference, self.outputs[number])
            if why:
                return why
        if not self.outputs:
            self.first, self.outputs = entry.id, list(outputs)
        return ""

    def outvoted(self) -> dict[str, str]:
        """Return the points that are not of the largest group, all where two are the largest."""
        sizes = [len(group.ids) for group in self.groups]
        most, count = max(sizes, default=0), sum(sizes)
        if sizes.count(most) > 1:
            why = (
                f"the {count} points give {len(sizes)} different results, none of them more often "
                f"than all others, and {NO_REFERENCE}"
            )
            return {name: why for group in self.groups for name in group.ids}
        return {
            name: f"wrong result: differs from {most} of {count} points, and {NO_REFERENCE}"
            for group in self.groups
            for name in group.ids
            if len(group.ids) < most
        }

    def _join(self, name: str, signature: Signature, outputs: Sequence[bytes]) -> None:
        """Add a point to the first group whose first point gives the same, else to a new one."""
        for group in self.groups:
            each = zip(signature.outputs, outputs, group.outputs, strict=True)
            if not any(own != a and self._beside_first(b, own, None, a) for b, own, a in each):
                group.ids.append(name)
                return
        self.groups.append(_Group([name], list(outputs)))

    def _beside_first(
        self, binding: Binding, data: bytes, reference: Reference | None, wanted: bytes
    ) -> str:
        from pallasc.compiler.references.raw_outputs import compare_outputs

        tolerance = None
        if reference is not None:
            tolerance = _BOTH_MAY_BE_OFF * reference.rtol, _BOTH_MAY_BE_OFF * reference.atol
        compared = compare_outputs(binding, data, wanted, tolerance)
        text = _text(binding, compared, f"{self.first} gives")
        if not text or reference is not None:
            return text
        return f"{text}; the job has no reference that says which is right"


def _beside_reference(
    binding: Binding, data: bytes, reference: Reference | None, number: int
) -> str:
    if reference is None or not reference.outputs[number].positions:
        return ""
    from pallasc.compiler.references.raw_outputs import compare_samples

    sampled = reference.outputs[number]
    compared = compare_samples(
        binding, data, sampled.positions, sampled.values, (reference.rtol, reference.atol)
    )
    return _text(binding, compared, "the reference has", sampled.positions)


def _text(
    binding: Binding, compared: Comparison, whose: str, positions: Sequence[int] | None = None
) -> str:
    """Return the first difference of an output in words, "" where there is none.

    Args:
        binding: the output.
        compared: the differences.
        whose: what the expected value is introduced with.
        positions: which elements were compared, None for all.
    """
    if compared.first is None:
        return ""
    index: Sequence[int] = compared.first.index
    if positions is not None:
        index = _index(positions[index[0]], binding.shape)
    place = ", ".join(map(str, index))
    share = f"{compared.mismatches:,} of {compared.count:,} elements"
    return (
        f"wrong result: {binding.path}[{place}] is {compared.first.got}, and {whose} "
        f"{compared.first.wanted}; {share} differ by more than rtol {compared.rtol:g} and atol "
        f"{compared.atol:g}"
    )


def _index(position: int, shape: Sequence[int]) -> list[int]:
    index: list[int] = []
    for size in reversed(shape):
        position, own = divmod(position, size)
        index.insert(0, own)
    return index
