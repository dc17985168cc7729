"""Measure a job: what `pallasc tune run` puts together."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pallasc.cli.launching.chip import model_of
from pallasc.cli.tune.progress import stderr_progress
from pallasc.cli.tune.referee import Judge
from pallasc.runtime.device.devices import look_at_device
from pallasc.runtime.tuning.conditions import find_conditions, pci_address
from pallasc.runtime.tuning.job import Match, read_job
from pallasc.runtime.tuning.points import Setup
from pallasc.runtime.tuning.results_file import open_results
from pallasc.runtime.tuning.run import Run
from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.bundle.trust import read_policy
from pallasc.specs.loading.tune_results import Results, Start

if TYPE_CHECKING:
    from pallasc.runtime.device.devices import Device
    from pallasc.runtime.tuning.decisions import Rules


@dataclass(frozen=True, slots=True)
class Wishes:
    """How a job is measured; see the options of the command."""

    ordinal: int
    rules: Rules
    repeats: int
    timeout_s: float
    cold: bool
    quiet: bool
    retry_failed: bool = False

    def to_json(self) -> dict[str, object]:
        """Return what the results keep of it."""
        rules = asdict(self.rules)
        return {**rules, "repeats": self.repeats, "timeout_s": self.timeout_s, "cold": self.cold}


@dataclass(frozen=True, slots=True)
class Report:
    """What was measured: on which GPU, what competed, all results; whether any is new."""

    device: Device
    matches: list[Match]
    results: Results
    resumed: bool
    changed: bool


def measure(job: Path, output: Path, wishes: Wishes) -> Report:
    """Measure a job, and write the results.

    Raises:
        SpecError: the job or the results are something else; nothing was changed.
        CorruptError: one of them is damaged.
        DeviceError: there is no GPU for the job, or it cannot be used any more.
    """
    with open_bundle(job) as bundle, stderr_progress(quiet=wishes.quiet) as progress:
        read_policy().check(bundle)
        device = look_at_device(wishes.ordinal)
        matches = read_job(bundle, device)
        conditions = find_conditions(pci_address(device))
        model = model_of(device)
        start = Start(
            job=bundle.digest,
            device=device.name,
            model=None if model is None else model.name,
            arch=f"sm_{device.major}{device.minor}",
            driver=conditions.driver(),
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            settings=wishes.to_json(),
        )
        with open_results(output, start) as file:
            if file.results.torn:
                progress.say(f"warning: {file.results.torn}")
            if why := _picked_by_nobody(device, matches):
                progress.say(f"warning: {why}")
            if file.remark:
                progress.say(f"warning: {file.remark}")
            if conditions.missing:
                progress.say(f"note: no clocks and temperatures: {conditions.missing}")
            setup = Setup(bundle, wishes.ordinal, wishes.timeout_s, wishes.repeats, wishes.cold)
            judge = Judge(bundle, wishes.rules.seed)
            run = Run(file, setup, wishes.rules, conditions, judge, progress)
            if wishes.retry_failed:
                run.retry_failed(matches)
            run.all(matches)
            return Report(device, matches, file.results, file.resumed, file.changed)


def _picked_by_nobody(device: Device, matches: Iterable[Match]) -> str:
    """Return why `pallasc tune pick` will refuse what is measured here, "" where it will not."""
    targets = sorted({entry.target for match in matches for entry in match.entries.values()})
    model = model_of(device)
    if model is not None and model.name in targets:
        return ""
    here = "no model that pallasc knows" if model is None else f"the model {model.name}"
    return (
        f"{device.name} is {here}, and the points are compiled for {', '.join(targets)}: pallasc "
        "tune pick will refuse the results. Add this GPU to 'models' and 'targets' of the specs, "
        "and plan again."
    )
