"""Results that must not decide a table: of another GPU, of other artifacts, cut short, or older."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from pallasc.errors import CorruptError, SpecError
from pallasc.specs.canonical import canonical_text
from pallasc.specs.gpus import MODELS, Target, device_names
from pallasc.specs.loading.tune_results import Contest, PointResults, Results
from pallasc.specs.spelling import suggestion
from pallasc.specs.tuning import Row, Tune, bucket_key, key_text

_MEASURE = "Plan and measure them again: pallasc tune plan, then pallasc tune run."


def check_files(files: Sequence[Results]) -> None:
    """Check that each file is whole and all are of one model of GPU.

    Raises:
        CorruptError: the end of a file is missing.
        SpecError: two files are of different GPUs, or it is not known which model theirs is.
    """
    first = files[0]
    for file in files:
        if file.torn:
            raise CorruptError(
                f"{file.file}: the last line was cut, so the run did not come to its end.",
                hint=f"Go on with it: pallasc tune run JOB -o {file.file}",
            )
        if (file.start.device, file.start.model) != (first.start.device, first.start.model):
            raise SpecError(
                f"{file.file} has results of {file.start.device}, and {first.file} of "
                f"{first.start.device}.",
                hint="Call pallasc tune pick once for each GPU; rows of other GPUs stay in the "
                "table.",
            )
    if first.start.model is None:
        raise SpecError(
            f"{first.file} has results of {first.start.device}, which is no model of a GPU that "
            "pallasc knows.",
            hint="Add the model to the specs under 'models', with this name as its description.",
        )


def check_model(file: Results, models: Iterable[Target]) -> None:
    """Check that the model of GPU that a file says is that of the device that it names.

    Args:
        file: the results.
        models: those of the specs, which go before those that pallasc knows.

    Raises:
        SpecError: it is another one.
    """
    device, name = file.start.device, file.start.model
    known = {model.description for model in models if model.name == name}
    if not known and name is not None and name in MODELS:
        known = {MODELS[name].description}
    names = sorted(name for description in known for name in device_names(description))
    if names and device not in names:
        raise SpecError(
            f"{file.file} says that its GPU is {device}, and its model {name}, which is "
            f"{' or '.join(names)}.",
            hint="The file was changed, or the model's description in the specs is not what the "
            "driver calls the GPU; measure again.",
        )


def check_targets(file: Results) -> None:
    """Check that a file has points that were compiled for the GPU that measured them.

    Raises:
        SpecError: all were compiled for other models.
    """
    targets = sorted({point.target for _, point in _points(file)})
    if targets and file.start.model not in targets:
        raise SpecError(
            f"{file.file} was measured on {file.start.model}, and its points are compiled for "
            f"{', '.join(targets)}.",
            hint=f"Rows are for the model that a variant is compiled for: add {file.start.model} "
            "to the targets of the specs, and tune it.",
        )


def check_kernels(file: Results, kernels: Iterable[str]) -> None:
    """Check that the kernels of a file are tuned ones of the specs.

    Raises:
        SpecError: one is not.
    """
    known = list(kernels)
    for contest in file.contests.values():
        if contest.kernel not in known:
            raise SpecError(
                f"{file.file}: no spec tunes kernel {contest.kernel!r} for {file.start.model}.",
                hint=suggestion(contest.kernel, known, otherwise="Tuned kernels")
                or "Give the specs that the job was made of.",
            )


def unknown_points(file: Results, kernel: str, ids: Collection[str]) -> int:
    """Return how many points of a kernel were measured that its spec does not have any more.

    Raises:
        SpecError: all of them.
    """
    own = [
        point.id in ids
        for contest, point in _points(file)
        if contest.kernel == kernel and point.target == file.start.model
    ]
    if own and not any(own):
        raise SpecError(
            f"{file.file}: no point of {kernel} that was measured is one of its spec any more.",
            hint=_MEASURE,
        )
    return own.count(False)


def check_same_artifacts(files: Sequence[Results]) -> None:
    """Check that points of several files have one artifact.

    Raises:
        SpecError: two files measured different artifacts of a point.
    """
    seen: dict[str, tuple[str, str]] = {}
    for file in files:
        for _, point in _points(file):
            before, digest = seen.setdefault(point.id, (file.file, point.artifact))
            if digest != point.artifact:
                raise SpecError(
                    f"{point.id} was measured as artifact {digest[:12]}… in {before}, and as "
                    f"{point.artifact[:12]}… in {file.file}.",
                    hint="Give the results of one toolchain and one state of the specs.",
                )


def check_apart(files: Sequence[Results]) -> None:
    """Check that no round is in two files, as it would count twice.

    Raises:
        SpecError: one is.
    """
    seen: dict[str, int] = {}
    for place, file in enumerate(files):
        for contest in file.contests.values():
            for round_ in contest.rounds.values():
                other = seen.setdefault(round_.check, place)
                if other != place:
                    raise SpecError(
                        f"{files[other].file} and {file.file} have the same round of "
                        f"{contest.kernel}, which would count twice.",
                        hint="One of them is a copy of the other, or goes on from one: give the "
                        "one that has more.",
                    )


def check_age(files: Sequence[Results], kernel: str, rows: Iterable[Row], tune: Tune) -> None:
    """Check that no row is newer than the results that would replace it.

    Args:
        files: the results.
        kernel: the kernel.
        rows: those that would be replaced or dropped.
        tune: of its spec.

    Raises:
        SpecError: one is.
    """
    exact, buckets = dict[str, tuple[str, str]](), dict[str, tuple[str, str]]()
    for file in files:
        for contest in file.contests.values():
            if contest.kernel == kernel and contest.start is not None:
                around = bucket_key(contest.key, tune.by, tune.buckets, tune.rounding)
                for newest, key in ((exact, contest.key), (buckets, around)):
                    name = canonical_text(key and list(key))
                    newest[name] = max(newest.get(name, ("", "")), (contest.start.date, file.file))
    for row in rows:
        name = canonical_text(list(row.key))
        # A bucket's row is first of all that of the key that it is named after.
        date, shown = exact.get(name) or buckets.get(name) or ("", "")
        if date and row.measured is not None and row.measured.date > date:
            raise SpecError(
                f"{kernel}: the row of {row.gpu}, {key_text(tune.by, row.key)} is of "
                f"{row.measured.date}, and {shown} is older: {date}.",
                location=row.place,
                hint="Give newer results, or remove the row.",
            )


def _points(file: Results) -> Iterable[tuple[Contest, PointResults]]:
    for contest in file.contests.values():
        for point in contest.points.values():
            yield contest, point
