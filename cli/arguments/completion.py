"""Shell completion: targets, and for `-k` kernels, parameters and their values.

Nothing is executed or compiled, so Python specs are skipped. Unreadable files are skipped, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pallasc.errors import PallascError
from pallasc.specs.templates import Scalar

_BEFORE_TERM = re.compile(r"(?:.*[\s(])?", re.DOTALL)
_WORDS = ("and", "or", "not")
_MOST = 200
"""Maximum number of completions offered."""


class _Declared(NamedTuple):
    """A declared variant, with the fields that a command line can select by."""

    name: str
    params: tuple[tuple[str, Scalar], ...]
    targets: tuple[str, str]


def complete_target(paths: Sequence[str], beginning: str) -> list[str]:
    """Return the matching architectures and models, including models that the specs add.

    Args:
        paths: specs on the command line.
        beginning: first letters of the name.
    """
    from pallasc.specs.gpus import DEFAULT_MODELS, MODELS

    own = (name for variant in _variants(paths) for name in variant.targets)
    return sorted({name for name in (*DEFAULT_MODELS, *MODELS, *own) if name.startswith(beginning)})


def complete_expression(paths: Sequence[str], beginning: str) -> list[str]:
    """Return completions of an expression, one for each match of its last term.

    Args:
        paths: specs or bundles on the command line.
        beginning: the expression so far.
    """
    match = _BEFORE_TERM.match(beginning)
    head = match.group() if match else ""
    term = beginning[len(head) :]
    words = sorted(word for word in _terms(paths, term) if word.startswith(term))
    if head.split()[-1:] not in ([], *([word] for word in _WORDS)) and not head.endswith("("):
        words = [word for word in _WORDS[:2] if word.startswith(term)]  # after a term
    return [f"{head}{word}" for word in words[:_MOST]]


def _terms(paths: Sequence[str], term: str) -> set[str]:
    """Return kernel and parameter names, or after `name=` the values of that parameter."""
    from pallasc.specs.canonical import plain

    terms: set[str] = set()
    key, equals, _ = term.partition("=")
    for variant in _variants(paths):
        if key == "target" and equals:
            terms.update(f"target={name}" for name in variant.targets)
        elif equals:
            terms.update(f"{name}={plain(own)}" for name, own in variant.params if name == key)
        else:
            terms.update([variant.name, "target=", *(f"{name}=" for name, _ in variant.params)])
    return {text for text in terms if not re.search(r"[\s()\"']", text)}


def _variants(paths: Sequence[str]) -> Iterator[_Declared]:
    """Yield the variants that specs and bundles declare, as far as known without executing code."""
    from pallasc.specs.bundle.bundle import open_bundle
    from pallasc.specs.loading.matrix import expand
    from pallasc.specs.loading.yaml_loader import load_specs

    for path in paths:
        with suppress(PallascError, OSError):
            if Path(path).suffix == ".pallasc":
                with open_bundle(path) as bundle:
                    for entry in bundle.entries():
                        yield _Declared(entry.name, entry.params, (entry.target, entry.arch))
                continue
            for variant in expand(load_specs([path], collect_python=lambda file: [])):
                target = variant.target
                yield _Declared(variant.name, variant.params, (target.name, target.arch))
