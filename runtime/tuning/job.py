"""A job: the points of a bundle that can run on a GPU, by contest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pallasc.errors import SelectionError, SpecError
from pallasc.runtime.device.devices import Device
from pallasc.runtime.matching.selection import arch_refusal
from pallasc.specs.bundle.bundle import Bundle
from pallasc.specs.bundle.manifest import Entry
from pallasc.specs.gpus import MODELS, device_names
from pallasc.specs.loading.tune_results import ContestKey, contest_key
from pallasc.specs.templates import Scalar
from pallasc.specs.tuning import Tuning, key_text


@dataclass(frozen=True, slots=True)
class Match:
    """What competes for one key: the likeliest point first.

    Attributes:
        kernel: the kernel.
        by: the parameters of the key.
        key: their values.
        at: values of the matrix's parameters that are not in `by`.
        entries: the points, by id.
    """

    kernel: str
    by: tuple[str, ...]
    key: tuple[Scalar, ...]
    at: dict[str, Scalar]
    entries: dict[str, Entry] = field(default_factory=dict)

    @property
    def contest_key(self) -> ContestKey:
        """What its results are found by."""
        return contest_key(self.kernel, self.key, self.at)

    @property
    def text(self) -> str:
        """What messages call it: `matmul m=1024, dtype=bf16`."""
        names, values = (*self.by, *self.at), (*self.key, *self.at.values())
        return f"{self.kernel} {key_text(names, values)}".rstrip()

    def subject(self) -> dict[str, object]:
        """Return what each line of its results has."""
        own: dict[str, object] = {"kernel": self.kernel, "key": list(self.key)}
        return {**own, "at": self.at} if self.at else own


def read_job(bundle: Bundle, device: Device) -> list[Match]:
    """Return what competes on a GPU, by kernel and key, small numbers first.

    Of variants of one point for several models, the one for this model is taken, else the first.

    Raises:
        SpecError: the bundle is not a job.
        SelectionError: no point is for this GPU.
    """
    tuned = [entry for entry in bundle.entries() if entry.tuning is not None]
    points = [own for own in tuned if own.tuning is not None and own.tuning.rank]
    if not points:
        why = "its variants were chosen already" if tuned else "none of its kernels is tuned"
        raise SpecError(
            f"{bundle.name} is not a job: {why}.",
            hint="pallasc tune plan SPECS -o job.pallasc makes one.",
        )
    fitting = [own for own in points if not arch_refusal(own.arch, device.major, device.minor)]
    if not fitting:
        archs = ", ".join(sorted({entry.arch for entry in points}))
        raise SelectionError(
            f"{bundle.name} has nothing for {device}: its points are for {archs}.",
            hint="Plan it for this GPU: pallasc tune plan SPECS --target MODEL -o job.pallasc.",
        )
    matches: dict[ContestKey, Match] = {}
    for entry, tuning in _one_of_each_point(fitting, device):
        match = _match_of(entry, tuning)
        matches.setdefault(match.contest_key, match).entries[entry.id] = entry
    for match in matches.values():
        in_order = sorted(match.entries.values(), key=_likeliest)
        match.entries.clear()
        match.entries.update((entry.id, entry) for entry in in_order)
    return sorted(matches.values(), key=_in_order)


def _one_of_each_point(entries: Sequence[Entry], device: Device) -> Iterator[tuple[Entry, Tuning]]:
    points: dict[tuple[object, ...], Entry] = {}
    for entry in entries:
        point = (entry.name, *((name, type(own), own) for name, own in entry.params))
        known = points.setdefault(point, entry)
        if not _is_for(known, device) and _is_for(entry, device):
            points[point] = entry
    for entry in points.values():
        if entry.tuning is not None:
            yield entry, entry.tuning


def _is_for(entry: Entry, device: Device) -> bool:
    model = MODELS.get(entry.target)
    return model is not None and device.name in device_names(model.description)


def _match_of(entry: Entry, tuning: Tuning) -> Match:
    params = dict(entry.params)
    at = {
        name: own
        for name, own in params.items()
        if name not in tuning.by and name not in tuning.over
    }
    return Match(entry.name, tuning.by, tuning.key_of(params), at)


def _in_order(match: Match) -> tuple[object, ...]:
    values = (*match.key, *match.at.values())
    return match.kernel, *(
        (isinstance(v, str), v if isinstance(v, str) else v or 0) for v in values
    )


def _likeliest(entry: Entry) -> tuple[int, bool, str]:
    tuning = entry.tuning
    if tuning is None:
        raise ValueError(f"{entry.id} is not a point")
    return tuning.rank, not tuning.is_default, entry.id
