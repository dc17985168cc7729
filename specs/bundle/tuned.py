"""Tuned kernels in a bundle: copies of a variant joined, and variants that disagree refused.

The rows of a table lie in the variants that they choose, so a variant that comes from two bundles
has the rows of both. All that is said of a kernel as a whole must be the same everywhere, or which
variant a call gets would depend on the order in which they are asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pallasc.errors import SpecError
from pallasc.specs.bundle.manifest import Entry
from pallasc.specs.canonical import canonical_text
from pallasc.specs.templates import Scalar
from pallasc.specs.tuning import (
    How,
    Row,
    Tuning,
    check_padding,
    chosen_by,
    is_for,
    key_text,
    names_of,
    row_order,
    use_text,
)

_HOWS: tuple[How, ...] = ("row", "bucket", "default")
_HINT = "Build the bundles from the same specs and the same table, or leave one of them out."


def joined(*copies: Entry) -> Tuning | None:
    """Return what copies of one variant say together of where it is used.

    Of two rows for one model and key the one that was measured last is taken; a rank is that of the
    first copy that has one.

    Raises:
        SpecError: they say that it is tuned in different ways.
    """
    tunings = [copy.tuning for copy in copies if copy.tuning is not None]
    if not tunings:
        return None
    first, *others = tunings
    for other in others:
        if _settings(first) != _settings(other) or first.is_default != other.is_default:
            raise SpecError(
                f"two copies of {copies[0].id} say different things of `tune`.", hint=_HINT
            )
    rows: dict[object, Row] = {}
    for row in sorted((row for own in tunings for row in own.rows), key=_age):
        rows[_place(row)] = row
    ranks = sorted({own.rank for own in tunings} - {0})
    return replace(
        first, rows=tuple(sorted(rows.values(), key=row_order)), rank=ranks[0] if ranks else 0
    )


class Agreement:
    """What the variants of each tuned kernel have said so far of it as a whole."""

    def __init__(self) -> None:
        self._settings: dict[str, tuple[str, str]] = {}
        self._defaults: dict[str, tuple[str, str]] = {}
        self._used: dict[tuple[str, object], str] = {}

    def disagreement(self, entry: Entry) -> str | None:
        """Return how an entry contradicts those before it, None where it does not."""
        tuning = entry.tuning
        if tuning is None:
            return None
        own = _settings(tuning)
        other, elsewhere = self._settings.setdefault(entry.name, (own, entry.id))
        if other != own:
            return f"{elsewhere} and {entry.id} say different things of `tune`"
        params = dict(entry.params)
        use = use_text({name: params[name] for name in tuning.over})
        if tuning.is_default:
            other, elsewhere = self._defaults.setdefault(entry.name, (use, entry.id))
            if other != use:
                return f"{elsewhere} and {entry.id} are both the default of {entry.name}"
        for row in tuning.rows:
            other = self._used.setdefault((entry.name, _place(row)), use)
            if other != use:
                where = f"{row.gpu} and {key_text(tuning.by, row.key)}"
                return f"two rows of {entry.name} for {where} use {other} and {use}"
        return None


def check_agreement(entries: Iterable[Entry]) -> None:
    """Check that the variants of each tuned kernel agree on all that is said of it as a whole.

    Raises:
        SpecError: two variants say different things, or arrays cannot be padded as one says.
    """
    agreement = Agreement()
    for entry in entries:
        _check_padding(entry)
        if fault := agreement.disagreement(entry):
            raise SpecError(f"{fault}.", hint=_HINT)


def _check_padding(entry: Entry) -> None:
    if entry.tuning is None or not entry.tuning.pad:
        return
    shapes = {array.path: array.shape for array in (*entry.inputs, *entry.outputs)}
    try:
        check_padding(entry.tuning.pad, dict(entry.params), shapes)
    except ValueError as error:
        raise SpecError(
            f"{entry.id}: {error}.",
            hint="Correct `pad` under `tune`; pallasc inspect shows a variant's arrays.",
        ) from error


def chosen_entries(entries: Sequence[Entry]) -> dict[str, tuple[Entry, How | None]]:
    """Return which entries are used on the models that they are for, where only rows can choose.

    Of variants for the same target and arrays that differ only in what was tuned, the one that
    `chosen_by` names is taken; where it names none or several, all of them are. A variant that is
    alone needs no row.

    Returns:
        By id, in the order of the entries: the entry, and what it is chosen by.
    """
    groups: dict[object, list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.name, entry.target, entry.inputs, untuned(entry)), []).append(
            entry
        )
    found: dict[str, tuple[Entry, How | None]] = {}
    for group in groups.values():
        by_how: dict[How | None, list[Entry]] = {}
        for entry in group:
            by_how.setdefault(_how(entry), []).append(entry)
        taken = next((how for how in _HOWS if how in by_how), None)
        found.update((own.id, (own, taken)) for own in by_how.get(taken, group))
    return {entry.id: found[entry.id] for entry in entries if entry.id in found}


def untuned(entry: Entry) -> tuple[tuple[str, Scalar], ...]:
    """Return the parameters of an entry without those that were tuned."""
    over = () if entry.tuning is None else entry.tuning.over
    return tuple(item for item in entry.params if item[0] not in over)


def _how(entry: Entry) -> How | None:
    if entry.tuning is None:
        return None
    names = names_of(entry.target)
    found = chosen_by(entry.tuning, dict(entry.params), lambda row: is_for(row, names))
    return None if found is None else found[0]


def _settings(tuning: Tuning) -> str:
    """Return what all variants of a kernel have in common, as text."""
    return canonical_text(replace(tuning, is_default=False, rows=(), rank=0).to_json())


def _place(row: Row) -> object:
    return row.gpu, tuple((type(value), value) for value in row.key)


def _age(row: Row) -> tuple[str, str]:
    measured = row.measured
    figures = {} if measured is None else measured.to_json()
    return (measured.date if measured else ""), canonical_text([row.source, figures])
