"""What results decide: for each kernel, which rows its table has now."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pallasc.specs.gpus import Target, device_names
from pallasc.specs.loading.tune_results import Results
from pallasc.specs.templates import Scalar
from pallasc.specs.tuned.measured import measured_kernels
from pallasc.specs.tuned.merge import RowChange, merged_rows
from pallasc.specs.tuned.refusals import (
    check_age,
    check_apart,
    check_files,
    check_kernels,
    check_model,
    check_same_artifacts,
    check_targets,
    unknown_points,
)
from pallasc.specs.tuned.rows import Picked, pick_rows
from pallasc.specs.tuning import Row, Tune


class TunedKernel(NamedTuple):
    """A tuned kernel of the specs.

    Attributes:
        tune: of its spec.
        ids: of all its points on the model that was measured.
        rows: of its table, on all models.
        keys: of all these points; None where they are not known.
    """

    tune: Tune
    ids: Collection[str]
    rows: Sequence[Row]
    keys: Collection[tuple[Scalar, ...]] | None = None


@dataclass(frozen=True, slots=True)
class KernelRows:
    """What was picked of a kernel, and what becomes of its rows.

    Attributes:
        picked: what was picked.
        changes: what becomes of each row.
        unknown: how many points were measured that the spec does not have any more.
    """

    picked: Picked
    changes: Sequence[RowChange]
    unknown: int = 0


def pick(
    files: Sequence[Results],
    kernels: Mapping[str, TunedKernel],
    percent: float,
    *,
    most: int | None = None,
) -> list[KernelRows]:
    """Return what results decide of each kernel that they have.

    Args:
        files: the results; their order does not matter.
        kernels: the tuned kernels of the specs by name.
        percent: how much slower than the best of a key a configuration may be.
        most: how many configurations a kernel may use; keys then lose more where they must.

    Raises:
        PallascError: results must not decide (`refusals`).
    """
    check_files(files)
    for file in files:
        check_targets(file)
        check_kernels(file, kernels)
    check_same_artifacts(files)
    check_apart(files)
    unknown = {
        name: sum(unknown_points(file, name, kernel.ids) for file in files)
        for name, kernel in kernels.items()
    }
    ids = {name: kernel.ids for name, kernel in kernels.items()}
    tunes = {name: kernel.tune for name, kernel in kernels.items()}
    decided = []
    for measured in measured_kernels(files, tunes, ids, percent):
        own = kernels[measured.name]
        picked = pick_rows(measured, own.tune, percent, most=most, old=own.rows, keys=own.keys)
        changes = merged_rows(own.rows, picked)
        replaced = [each.before for each in changes if each.before and each.kind != "same"]
        check_age(files, measured.name, replaced, own.tune)
        decided.append(KernelRows(picked, changes, unknown[measured.name]))
    return decided


def with_model(file: Results, models: Iterable[Target]) -> Results:
    """Return results of a GPU that only the specs know with the name of its model.

    Args:
        file: the results.
        models: those of the specs; a description is the name that the driver gives the GPU.

    Raises:
        SpecError: they have the name of a model, and the GPU is another one.
    """
    models = list(models)
    check_model(file, models)
    if file.start.model is None:
        for model in models:
            if file.start.device in device_names(model.description):
                return replace(file, start=replace(file.start, model=model.name))
    return file
