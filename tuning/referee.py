"""Judge the outputs of points: by reference values of the job, and by a vote of the points.

Reference values cover some elements; outputs of a key's points are compared in full.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pallasc.compiler.references.comparison import Comparison
    from pallasc.specs.artifacts.plan import Binding
    from pallasc.specs.artifacts.signature import Signature
    from pallasc.specs.bundle.bundle import Bundle
    from pallasc.specs.bundle.manifest import Entry
    from pallasc.specs.bundle.tuned import Reference


@dataclass(frozen=True, slots=True)
class _Group:
    """Points with the same results, and the outputs of the first of them.

    Attributes:
        ids: ids of the points.
        bindings: the outputs.
        outputs: their bytes.
        tolerance: `rtol` and `atol` for equal results, None without a reference.
    """

    ids: list[str]
    bindings: tuple[Binding, ...]
    outputs: list[bytes]
    tolerance: tuple[float, float] | None

    def difference(self, outputs: Sequence[bytes], whose: str) -> str:
        """Describe the first difference between these outputs and others, "" if there is none."""
        from pallasc.compiler.references.comparison import compare_outputs

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
        for number, (binding, data) in enumerate(zip(signature.outputs, outputs, strict=True)):
            if why := _reference_difference(binding, data, reference, number):
                return f"wrong result: {why}"
        self._join(entry.id, signature, outputs, reference)
        return ""

    def outvoted(self) -> dict[str, str]:
        """Return the points outside the largest group; all points if two groups are the largest."""
        sizes = [len(group.ids) for group in self.groups]
        most, count = max(sizes, default=0), sum(sizes)
        largest = [group for group in self.groups if len(group.ids) == most]
        if len(largest) > 1:
            why = self._tie(count, *largest[:2])
            return {name: why for group in self.groups for name in group.ids}
        lost: dict[str, str] = {}
        for group in self.groups:
            if group is not largest[0]:
                who = f"{most} of {count} points"
                why = largest[0].difference(group.outputs, f"{who} give") or f"differs from {who}"
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

    def _join(
        self,
        name: str,
        signature: Signature,
        outputs: Sequence[bytes],
        reference: Reference | None,
    ) -> None:
        """Add a point to the first group with the same results, else to a new one."""
        for group in self.groups:
            if not group.difference(outputs, ""):
                group.ids.append(name)
                return
        tolerance = None if reference is None else _of_two(reference)
        self.groups.append(_Group([name], tuple(signature.outputs), list(outputs), tolerance))


def _of_two(reference: Reference) -> tuple[float, float]:
    """Return `rtol` and `atol` for comparing two results that both agree with a reference."""
    rtol = 2 * reference.rtol / max(0.5, 1 - reference.rtol)
    return rtol, (2 + rtol) * reference.atol


def _reference_difference(
    binding: Binding, data: bytes, reference: Reference | None, number: int
) -> str:
    if reference is None or not reference.outputs[number].positions:
        return ""
    from pallasc.compiler.references.comparison import compare_samples

    sampled = reference.outputs[number]
    compared = compare_samples(
        binding, data, sampled.positions, sampled.values, (reference.rtol, reference.atol)
    )
    return _text(binding, compared, "the reference has", sampled.positions)


def _text(
    binding: Binding, compared: Comparison, whose: str, positions: Sequence[int] | None = None
) -> str:
    """Describe the first difference of an output, "" if there is none.

    Args:
        binding: the output.
        compared: the differences.
        whose: introduces the expected value.
        positions: the compared elements, None for all.
    """
    if compared.first is None:
        return ""
    index: Sequence[int] = compared.first.index
    if positions is not None:
        index = _index(positions[index[0]], binding.shape)
    place = ", ".join(map(str, index))
    share = f"{compared.mismatches:,} of {compared.count:,} elements"
    return (
        f"{binding.path}[{place}] is {compared.first.got}, and {whose} "
        f"{compared.first.wanted}; {share} differ by more than rtol {compared.rtol:g} and atol "
        f"{compared.atol:g}"
    )


def _index(position: int, shape: Sequence[int]) -> list[int]:
    index: list[int] = []
    for size in reversed(shape):
        position, own = divmod(position, size)
        index.insert(0, own)
    return index
