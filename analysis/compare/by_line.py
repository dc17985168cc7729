"""Differences by source line, if the store or a side's bundle has the lines of both sides."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from pallasc.analysis.compare.comparison import Difference, KernelDifference, text_of
from pallasc.analysis.compare.sides import Subject
from pallasc.analysis.lines.stored import read_source_lines
from pallasc.cache.store import Store
from pallasc.specs.artifacts.artifact import KernelResources
from pallasc.specs.artifacts.source_lines import SourceLines
from pallasc.specs.canonical import digest

_NOWHERE = "no source line"
_NOT_STORED = "the store has no source lines of {}; pallasc build SPECS --lines finds them"
_NOT_BUNDLED = "the bundle has no source lines of {}; pallasc bundle create --lines adds them"


def add_lines(difference: Difference, store: Store) -> Difference:
    """Return a difference with the source lines whose instruction counts differ.

    Lines match by file name and text, because line numbers shift.
    """
    kernels = (_with_lines(difference, kernel, store) for kernel in difference.kernels)
    return replace(difference, kernels=tuple(kernels))


def _with_lines(difference: Difference, kernel: KernelDifference, store: Store) -> KernelDifference:
    first, second = difference.pair.first, difference.pair.second
    if first is None or second is None or kernel.first is None or kernel.second is None:
        return kernel
    sides = [_counted(first, kernel.first, store), _counted(second, kernel.second, store)]
    for subject, side in zip((first, second), sides, strict=True):
        if side is None:
            missing = _NOT_BUNDLED if subject.action_key is None else _NOT_STORED
            return replace(kernel, no_lines=missing.format(subject.id))
    before, after = (side for side in sides if side is not None)
    keys = sorted({*before, *after})
    rows = ((key, before[key], after[key]) for key in keys)
    return replace(kernel, lines=tuple(row for row in rows if row[1] != row[2]))


def _counted(subject: Subject, kernel: KernelResources, store: Store) -> Counter[str] | None:
    """Count the instructions of a kernel by line; None if its lines are unknown."""
    if subject.artifact is None:
        return None
    if subject.action_key is None:
        lines = subject.artifact.source_lines
    else:
        lines = read_source_lines(store, subject.action_key)
    own = lines and lines.of(kernel.name, digest(text_of(subject.artifact, kernel)))
    if not lines or not own:
        return None
    return Counter(_place(lines, number) for number in own.stacks)


def _place(lines: SourceLines, number: int) -> str:
    """Return `kernels.py: acc = a @ b`, or `kernels.py:12` if the text is not known."""
    stack = lines.stack(number)
    if not stack:
        return _NOWHERE
    text = lines.text(stack[0]).strip()
    return f"{stack[0].file}: {text}" if text else str(stack[0])
