"""What launches of variants gave, as text and as JSON."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pallasc.cli.launching.request import Value, make_inputs
from pallasc.cli.terminal.output import echo, refusing
from pallasc.errors import CheckError

if TYPE_CHECKING:
    from pallasc.cli.launching.launching import Chosen
    from pallasc.cli.launching.request import Value
    from pallasc.compiler.references.comparison import Comparison, LaunchFiles
    from pallasc.specs.artifacts.plan import Binding


_UNSAFE = re.compile(r"[^\w.=,@+\[\]-]")


@dataclass(slots=True)
class Outcome:
    """The result of one launch.

    Attributes:
        chosen: what was launched.
        inputs, outputs: its arrays.
        digests: SHA-256 of each output.
        files: where the outputs were written to, if they were.
        compared: the comparison of each output, None without a reference.
    """

    chosen: Chosen
    inputs: list[Value]
    outputs: list[Value]
    digests: list[str]
    files: list[Path] = field(default_factory=list)
    compared: tuple[Comparison, ...] | None = None

    @property
    def same(self) -> bool | None:
        """Whether all outputs match the reference's, None without a reference."""
        return None if self.compared is None else not any(o.mismatches for o in self.compared)

    def forget_bytes(self) -> None:
        """Drop the bytes of its arrays."""
        self.inputs = [replace(value, data=b"") for value in self.inputs]
        self.outputs = [replace(value, data=b"") for value in self.outputs]


Execute = Callable[["Chosen", list[Value]], list[Value]]
"""Runs a variant on inputs, and returns its outputs."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """Launches variants.

    Attributes:
        execute: runs a variant once.
        seed: chooses random inputs.
        files: those of other inputs, by path of the array.
        folder: where outputs are written to, if they are.
        many: each variant gets a folder of its own in there.
    """

    execute: Execute
    seed: int
    files: Mapping[str, Path]
    folder: Path | None
    many: bool

    def launch(self, chosen: Chosen) -> Outcome:
        """Launch a variant, and wait for its outputs.

        Raises:
            ArgumentError: a file does not fit.
            SpecError: a file cannot be read or written.
            PallascError: the launch fails.
        """
        signature, name = chosen.route.signature, chosen.variant.id
        devices = chosen.artifact.plan.device_count
        inputs = make_inputs(
            signature, seed=self.seed, files=self.files, name=name, devices=devices
        )
        outputs = self.execute(chosen, inputs)
        digests = [hashlib.sha256(value.data).hexdigest() for value in outputs]
        outcome = Outcome(chosen, inputs, outputs, digests)
        if self.folder is not None:
            own = self.folder / file_name(name) if self.many else self.folder
            outcome.files = [_write(own, value) for value in outputs]
        return outcome


def file_name(text: str) -> str:
    """Return an id or a path of an array as the name of a file."""
    return _UNSAFE.sub("_", text)


def _write(folder: Path, value: Value) -> Path:
    """Write an output as a file of numpy's.

    Raises:
        SpecError: it cannot be written.
    """
    from pallasc.compiler.references.arrays import npy_bytes

    array = value.binding
    path = folder / f"{file_name(array.path)}.npy"
    with refusing(path, hint="Give --output another path."):
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(npy_bytes(array.dtype, array.shape, value.data))
    echo(f"wrote {path}", err=True)
    return path


def launch_all(chosen: Sequence[Chosen], launcher: Launcher) -> list[Outcome]:
    """Launch everything and compare what has a reference; return outcomes in the same order.

    Raises:
        PallascError: a launch or a reference fails.
    """
    outcomes: dict[int, Outcome] = {}
    referring = [n for n, own in enumerate(chosen) if own.variant.reference is not None]
    for number, own in enumerate(chosen):
        if number not in referring:
            outcomes[number] = launcher.launch(own)
            outcomes[number].forget_bytes()
    for number, outcome in _compared([chosen[n] for n in referring], launcher):
        outcomes[referring[number]] = outcome
    return [outcomes[number] for number in sorted(outcomes)]


def _compared(chosen: Sequence[Chosen], launcher: Launcher) -> Iterator[tuple[int, Outcome]]:
    """Launch each variant when its reference can be run; yield its number and outcome."""
    if not chosen:
        return
    from pallasc.compiler.references.comparison import compare

    launched: dict[int, Outcome] = {}
    with tempfile.TemporaryDirectory(prefix="pallasc-run-") as folder:

        def launch(number: int) -> LaunchFiles:
            outcome = launched[number] = launcher.launch(chosen[number])
            files = _hand_over(outcome, Path(folder))
            outcome.forget_bytes()
            return files

        for number, outputs in compare([launchable.variant for launchable in chosen], launch):
            outcome = launched.pop(number)
            outcome.compared = outputs
            yield number, outcome


def _hand_over(outcome: Outcome, folder: Path) -> LaunchFiles:
    """Write the arrays for the process that compares, over those of the launch before."""
    from pallasc.compiler.references.comparison import ArrayFile, LaunchFiles

    def write(kind: str, values: Sequence[Value]) -> Iterator[ArrayFile]:
        for number, value in enumerate(values):
            (folder / f"{kind}{number}").write_bytes(value.data)
            yield ArrayFile(value.binding, f"{kind}{number}")

    inputs, outputs = write("input", outcome.inputs), write("output", outcome.outputs)
    return LaunchFiles(folder, tuple(inputs), tuple(outputs))


def check(outcomes: Sequence[Outcome]) -> None:
    """Check that no output differs from its reference.

    Raises:
        CheckError: an output does.
    """
    wrong = [outcome.chosen.variant.id for outcome in outcomes if outcome.same is False]
    if wrong:
        verb = "differs from its reference" if len(wrong) == 1 else "differ from their references"
        raise CheckError(f"{', '.join(wrong)} {verb}.")


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
