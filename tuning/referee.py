"""Judge the outputs of points: by reference values of the job, and by a vote of the points.

Reference values cover some elements; outputs of a key's points are compared in full.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pallasc.compiler.arrays import Comparison
    from pallasc.specs.artifacts.plan import Binding
    from pallasc.specs.artifacts.signature import Signature
    from pallasc.specs.bundle.bundle import Bundle
    from pallasc.specs.bundle.manifest import Entry
    from pallasc.specs.bundle.tuned import Reference


class _Group(NamedTuple):
    """Ids of points with the same results, the outputs of the first of them, and their tolerance.

    The tolerance is `rtol` and `atol`, None without a reference.
    """

    ids: list[str]
    bindings: Sequence[Binding]
    outputs: Sequence[bytes]
    tolerance: tuple[float, float] | None

    def difference(self, outputs: Sequence[bytes], whose: str) -> str:
        """Describe the first difference between these outputs and others, "" if there is none."""
        from pallasc.compiler.arrays import compare_outputs

        for binding, data, own in zip(self.bindings, outputs, self.outputs, strict=True):
            if data != own:
                compared = compare_outputs(binding, data, own, self.tolerance)
                if why := _text(binding, compared, whose):
                    return why
        return ""


@dataclass(slots=True)
class OutputReferee:
    """Judges the points of one contest.

    Attributes:
        bundle: the job.
        seed: seed of the inputs if there are no reference values.
        make_inputs: returns the inputs of a point, as `pallasc run` makes them.
        groups: points with the same results, among those that agree with the reference.
    """

    bundle: Bundle
    seed: int
    make_inputs: Callable[..., Sequence[Any]]
    groups: list[_Group] = field(default_factory=list)

    def inputs(self, entry: Entry, signature: Signature) -> list[bytes]:
        """Return the inputs of a point, as `pallasc run` makes them."""
        reference = self.bundle.reference(entry)
        seed = self.seed if reference is None else reference.seed
        made = self.make_inputs(signature, seed=seed, files={}, name=entry.id)
        return [value.data for value in made]

    def disagreement(self, entry: Entry, signature: Signature, outputs: Sequence[bytes]) -> str:
        """Describe how outputs differ from the reference values, "" if they do not."""
        reference = self.bundle.reference(entry)
        if reference is not None and (why := _difference(signature.outputs, outputs, reference)):
            return f"wrong result: {why}"
        for group in self.groups:
            if not group.difference(outputs, ""):
                group.ids.append(entry.id)
                return ""
        tolerance = None if reference is None else _of_two(reference)
        self.groups.append(_Group([entry.id], signature.outputs, outputs, tolerance))
        return ""

    def outvoted(self) -> dict[str, str]:
        """Return the points outside the largest group; all points if two groups are the largest."""
        groups = sorted(self.groups, key=lambda group: -len(group.ids))
        count = sum(len(group.ids) for group in groups)
        if len(groups) > 1 and len(groups[0].ids) == len(groups[1].ids):
            why = self._tie(count, *groups[:2])
            return {name: why for group in self.groups for name in group.ids}
        lost: dict[str, str] = {}
        for group in groups[1:]:
            who = f"{len(groups[0].ids)} of {count} points"
            why = groups[0].difference(group.outputs, f"{who} give") or f"differs from {who}"
            lost |= dict.fromkeys(group.ids, f"wrong result: {why}")
        return lost

    def _tie(self, count: int, first: _Group, second: _Group) -> str:
        known = "the job has no reference"
        if first.tolerance is not None:
            known = "the reference values do not tell which is right"
        where = first.difference(second.outputs, f"{first.ids[0]} gives")
        shown = f": of {second.ids[0]} {where}" if where else ""
        return (
            f"the {count} points give {len(self.groups)} different results, none of them more "
            f"often than all others, and {known}{shown}"
        )


def _of_two(reference: Reference) -> tuple[float, float]:
    """Return `rtol` and `atol` for comparing two results that both agree with a reference."""
    rtol = 2 * reference.rtol / max(0.5, 1 - reference.rtol)
    return rtol, (2 + rtol) * reference.atol


def _difference(bindings: Sequence[Binding], outputs: Sequence[bytes], reference: Reference) -> str:
    """Describe the first difference between outputs and the reference, "" if there is none."""
    from pallasc.compiler.arrays import compare_samples

    tolerance = reference.rtol, reference.atol
    for binding, data, own in zip(bindings, outputs, reference.outputs, strict=True):
        if own.positions:
            compared = compare_samples(binding, data, own.positions, own.values, tolerance)
            if why := _text(binding, compared, "the reference has"):
                return why
    return ""


def _text(binding: Binding, compared: Comparison, whose: str) -> str:
    """Describe the first difference of an output, "" if there is none.

    Args:
        binding: the output.
        compared: the differences.
        whose: introduces the expected value.
    """
    if compared.first is None:
        return ""
    place = ", ".join(map(str, compared.first.index))
    share = f"{compared.mismatches:,} of {compared.count:,} elements"
    return (
        f"{binding.path}[{place}] is {compared.first.got}, and {whose} "
        f"{compared.first.wanted}; {share} differ by more than rtol {compared.rtol:g} and atol "
        f"{compared.atol:g}"
    )
