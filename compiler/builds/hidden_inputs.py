"""Warn of variables and files that kernels requested but that are hidden from them.

Kernels see only the variables that their specs declare (`environment`), and an empty home folder
(`isolation`), wherever they are built. If a requested variable is set here, or the file exists, the
user may expect it to have an effect.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pallasc.specs.variables import why_not_declared

if TYPE_CHECKING:
    from pallasc.compiler.builds.report import VariantResult
    from pallasc.compiler.workers.diagnostics import Diagnostic

_HOME = f"~{os.sep}"


def hidden_notes(missed: Iterable[tuple[str, Mapping[str, str]]]) -> list[str]:
    """Return a note on each requested variable that is set here, and each file that exists.

    Args:
        missed: kernels, each with what it could not see (`missed` of its manifest).
    """
    requests: dict[str, dict[str, str]] = {}
    for kernel, places in missed:
        for name, place in places.items():
            requests.setdefault(name, {}).setdefault(kernel, place)
    return [_note(name, kernels) for name, kernels in sorted(requests.items()) if _is_here(name)]


def diagnostics_of(result: VariantResult) -> list[Diagnostic]:
    """Return the notes of one variant as diagnostics, for `fail_on_warning`."""
    from pallasc.compiler.workers.diagnostics import Diagnostic

    kernel, missed = result.variant.name, result.missed
    return [
        Diagnostic("lower", "pallasc", str(place), _note(name, {kernel: ""}))
        for name, place in missed.items()
        if _is_here(name)
    ]


def _is_here(name: str) -> bool:
    if name.startswith(_HOME):
        return os.path.isfile(os.path.expanduser(name))
    return name in os.environ


def _note(name: str, kernels: Mapping[str, str]) -> str:
    (first, place), *others = kernels.items()
    who = first if not others else f"{first} and {_more(others)}"
    where = f" ({place})" if place else ""
    if name.startswith(_HOME):
        return (
            f"{who} looked for {name}{where}, which exists but is hidden: kernels have an empty "
            'home. To use your home, write env: ["HOME"] in the spec.'
        )
    asks = "asks" if not others else "ask"
    why = why_not_declared(name)
    if why:
        return f"{who} {asks} for {name}{where}, which is set here but not let through: it {why}."
    return (
        f"{who} {asks} for {name}{where}, which is set here but not let through. "
        f'To let it through, write env: ["{name}"] in the spec, or env = ["{name}"] under '
        "[tool.pallasc] in pyproject.toml."
    )


def _more(others: Iterable[object]) -> str:
    count = len(list(others))
    return f"{count} other kernel{'s' if count > 1 else ''}"
