"""What `pallasc run` prints of a launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pallasc.cli.launching.operands import Value
    from pallasc.cli.launching.outcomes import Outcome
    from pallasc.compiler.references.comparison import Comparison
    from pallasc.specs.artifacts.plan import Binding

_SHOWN_DIGITS = 16


def outcome_text(outcome: Outcome, place: str, seed: int) -> str:
    """Return the id of what was launched and where, then a line for each of its arrays."""
    rows = [(_array(value.binding), _source(value, seed)) for value in outcome.inputs]
    for number, value in enumerate(outcome.outputs):
        facts = [_verdict(outcome, number), f"sha256 {outcome.digests[number][:_SHOWN_DIGITS]}"]
        rows.append((_array(value.binding), "; ".join(facts)))
    name_width = max((len(path) for (path, _), _ in rows), default=0)
    type_width = max((len(kind) for (_, kind), _ in rows), default=0)
    return "\n".join(
        [
            f"{outcome.chosen.variant.id} on {place}",
            *(f"  {p:<{name_width}}  {kind:<{type_width}}  {fact}" for (p, kind), fact in rows),
        ]
    )


def _array(binding: Binding) -> tuple[str, str]:
    return binding.path, f"{binding.dtype}[{', '.join(map(str, binding.shape))}]"


def _source(value: Value, seed: int) -> str:
    return f"random, seed {seed}" if value.source is None else str(value.source)


def _verdict(outcome: Outcome, number: int) -> str:
    if outcome.compared is None:
        return "not compared (no reference)"
    return difference_text(outcome.compared[number])


def difference_text(compared: Comparison) -> str:
    """Return in words how far an output is from the reference's."""
    errors = (("largest absolute", compared.max_abs), ("relative", compared.max_rel))
    distances = [f"{name} error {error:.3g}" for name, error in errors if error is not None]
    allowed = f"rtol {compared.rtol:.3g}, atol {compared.atol:.3g}"
    end = f"{', '.join(distances) or 'no finite numbers'} ({allowed})"
    first = compared.first
    if first is None:
        return f"matches the reference: {end}"
    wrong = f"{compared.mismatches:,} of {compared.count:,} elements"
    return (
        f"differs in {wrong}, first at {list(first.index)}: {first.got}, expected {first.wanted}; "
        f"{end}"
    )


def outcome_json(outcome: Outcome, seed: int) -> dict[str, object]:
    """Return what `--json` prints of a launch."""
    variant = outcome.chosen.variant
    nothing: list[None] = [None] * len(outcome.outputs)
    return {
        "id": variant.id,
        "name": variant.name,
        "params": dict(variant.params),
        "target": variant.target.name,
        "digest": outcome.chosen.artifact.digest,
        "seed": seed,
        "devices": outcome.chosen.artifact.plan.device_count,
        "reference": variant.reference,
        "same": outcome.same,
        "inputs": [
            {**_array_json(array.binding), "file": str(array.source) if array.source else None}
            for array in outcome.inputs
        ],
        "outputs": [
            {
                **_array_json(value.binding),
                "sha256": digest,
                "file": None if file is None else str(file),
                "compared": None if compared is None else compared.to_json(),
            }
            for value, digest, file, compared in zip(
                outcome.outputs,
                outcome.digests,
                outcome.files or nothing,
                outcome.compared or nothing,
                strict=True,
            )
        ],
    }


def _array_json(binding: Binding) -> dict[str, object]:
    return {"path": binding.path, "dtype": binding.dtype, "shape": list(binding.shape)}
