"""From specs to what is launched on the GPU at hand: one variant of each kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pallasc.errors import DeviceError, SelectionError, SpecError

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.cli.launching.request import Meant
    from pallasc.compiler.builds.report import Report
    from pallasc.runtime.calls.routes import Route
    from pallasc.runtime.device.devices import Device
    from pallasc.specs.artifacts.artifact import Artifact
    from pallasc.specs.spec import Variant

F = TypeVar("F", bound=Callable[..., Any])

_MOST_LISTED = 20


def launch_options(function: F) -> F:
    """Add the options of everything that launches: which variants, which GPU, which numbers."""
    for option in (
        click.option(
            "--input",
            "inputs",
            multiple=True,
            metavar="NAME=FILE",
            help="Take an array from a .npy file; repeatable.",
        ),
        click.option(
            "--seed",
            type=int,
            default=0,
            show_default=True,
            metavar="N",
            help="Choose the random numbers of the other inputs.",
        ),
        click.option(
            "--device",
            "ordinal",
            type=click.IntRange(min=0),
            default=0,
            show_default=True,
            metavar="N",
            help="The GPU, by its number.",
        ),
        click.option(
            "--all",
            "every",
            is_flag=True,
            help="Launch every point of the matrix, instead of one variant of each kernel.",
        ),
    ):
        function = option(function)
    return function


@dataclass(frozen=True, slots=True)
class Chosen:
    """A variant that is launched.

    Attributes:
        variant: the variant.
        artifact: what it was compiled into.
        route: launches it.
    """

    variant: Variant
    artifact: Artifact
    route: Route


def parse_inputs(texts: Iterable[str]) -> dict[str, Path]:
    """Return the file of each array in `NAME=FILE`.

    Raises:
        click.UsageError: one is written otherwise, or given twice.
    """
    found: dict[str, Path] = {}
    for text in texts:
        name, equals, file = text.partition("=")
        if not (name and equals and file):
            raise click.UsageError(f"--input {text!r} is not NAME=FILE.")
        if name in found:
            raise click.UsageError(f"--input gives {name} twice.")
        found[name] = Path(file)
    return found


def check_single(files: Mapping[str, Path], chosen: Sequence[Chosen]) -> None:
    """Check that files are given to one variant only.

    Raises:
        SpecError: there are several.
    """
    if files and len(chosen) > 1:
        raise SpecError(
            f"--input is for one variant, and {len(chosen)} are launched.",
            hint=f'Choose one with -k, such as -k "{chosen[0].variant.name}".',
        )


def fitting(variants: Sequence[Variant], device: Device, *, every: bool) -> list[Variant]:
    """Return the variants that a GPU's architecture can run.

    Several may be left of a point of the matrix, for models of the same architecture.

    Args:
        variants: what was asked for.
        device: the GPU.
        every: several points of a kernel are wanted.

    Raises:
        SelectionError: no variant of a kernel can run there.
        SpecError: several points of a kernel can.
    """
    kernels: dict[str, list[Variant]] = {}
    for variant in variants:
        kernels.setdefault(variant.name, []).append(variant)
    found = []
    for own in kernels.values():
        fit = _fitting_of_one(own, device)
        points = {variant.params: variant for variant in reversed(fit)}
        if len(points) > 1 and not every:
            raise _several([*reversed(points.values())], device)
        found += fit
    return found


def _fitting_of_one(variants: Sequence[Variant], device: Device) -> list[Variant]:
    from pallasc.runtime.matching.selection import arch_refusal

    reasons = [arch_refusal(one.target.arch, device.major, device.minor) for one in variants]
    fit = [one for one, reason in zip(variants, reasons, strict=True) if reason is None]
    if not fit:
        rows = [f"{one.id}: {reason}" for one, reason in zip(variants, reasons, strict=True)]
        raise SelectionError(
            f"no variant of {variants[0].name} fits {device}:{_listed(rows)}",
            location=variants[0].location,
            hint=_target_hint(device),
        )
    return fit


def _target_hint(device: Device) -> str | None:
    """Return which target to ask for: the GPU's own model, else an architecture that it runs."""
    from pallasc.cli.launching.chip import model_of
    from pallasc.runtime.matching.selection import arch_refusal
    from pallasc.specs.gpus import DEFAULT_MODELS

    model = model_of(device)
    own = f"sm_{device.major}{device.minor}"
    runs = [one for one in DEFAULT_MODELS if arch_refusal(one, device.major, device.minor) is None]
    runs.sort(key=lambda arch: arch.rstrip("af") == own)
    names = [*reversed(runs)] if model is None else [model.name]
    return f"Compile for it: --target {names[0]}." if names else None


def _several(points: Sequence[Variant], device: Device) -> SpecError:
    """Return the error for points between which only the user can choose."""
    from pallasc.specs.spelling import plain

    first = dict(points[0].params)
    differing = [
        name for name in first if len({plain(dict(one.params).get(name)) for one in points}) > 1
    ]
    example = " and ".join(f"{name}={plain(first[name])}" for name in differing)
    return SpecError(
        f"{len(points)} variants of {points[0].name} can be launched on {device}:"
        f"{_listed([one.id for one in points])}",
        location=points[0].location,
        hint=f'Choose one, such as -k "{example}", or launch all with --all.',
    )


def _listed(rows: Sequence[str]) -> str:
    more = [f"… and {len(rows) - _MOST_LISTED} more"] if len(rows) > _MOST_LISTED else []
    return "".join(f"\n  {row}" for row in [*rows[:_MOST_LISTED], *more])


def build_missing(
    variants: Sequence[Variant],
    store: Store,
    *,
    jobs: int | None,
    ptxas: Path | None,
    require_store: bool,
) -> Report:
    """Compile what is not in the store yet, and say so on the standard error output.

    Raises:
        ToolError: the toolchain is not complete; or what has to be compiled cannot be stored, and
            `require_store` is given.
    """
    from pallasc.cli.render.live import stderr_progress
    from pallasc.cli.render.summary import summary
    from pallasc.compiler.builds.build import build

    with stderr_progress(hits=False) as progress:
        store.warn_by(lambda text: progress.say(f"warning: {text}"))
        report = build(
            variants,
            store=store,
            jobs=jobs,
            ptxas=ptxas,
            require_store=require_store,
            on_event=progress,
        )
    if len(report.hits) < len(report.results):
        progress.screen.write(f"{summary(report, progress.screen)}\n")
    return report


def collect(
    meant: Meant,
    device: Device,
    *,
    every: bool,
    jobs: int | None,
    ptxas: Path | None,
    require_store: bool,
) -> list[Chosen] | int:
    """Return what is launched, or the exit status where a build failed.

    Args:
        meant: what was asked for.
        device: where it is launched.
        every: several points of a kernel are wanted.
        jobs: worker processes; like the next two, nothing for a bundle.
        ptxas: the assembler.
        require_store: what is compiled must be stored.

    Raises:
        PallascError: as compiling and choosing do.
    """
    fit = fitting(meant.variants, device, every=every)
    if meant.store is None:
        kept = set(map(id, fit))
        pairs = zip(meant.variants, meant.artifacts, strict=True)
        return choose([pair for pair in pairs if id(pair[0]) in kept], device)
    report = build_missing(fit, meant.store, jobs=jobs, ptxas=ptxas, require_store=require_store)
    if report.exit_code:
        return report.exit_code
    made = [(one.variant, one.artifact) for one in report.results]
    return choose([(variant, own) for variant, own in made if own is not None], device)


def choose(variants: Iterable[tuple[Variant, Artifact]], device: Device) -> list[Chosen]:
    """Return what is launched: of each point the variant that suits the GPU best.

    Raises:
        SelectionError: no variant of a point can run there.
    """
    from pallasc.runtime.calls.routes import Route
    from pallasc.runtime.matching.candidates import Candidate
    from pallasc.runtime.matching.selection import select

    points: dict[Any, dict[Candidate, Variant]] = {}
    for one, artifact in variants:
        candidate = Candidate(one.name, dict(one.params), artifact)
        points.setdefault((one.name, one.params), {})[candidate] = one
    found = []
    for own in points.values():
        best = select(list(own), device)
        found.append(Chosen(own[best], best.artifact, Route([best])))
    return found


@contextmanager
def naming(variant: Variant) -> Iterator[None]:
    """Say of an error of the driver or the GPU which variant it is about."""
    try:
        yield
    except DeviceError as error:
        if variant.id not in error.message:
            error.message = f"{variant.id}: {error.message}"
        raise
