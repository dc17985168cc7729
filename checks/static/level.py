"""The static level: reads launch plan, PTX and machine code, and executes nothing.

What cannot be decided is not reported. `docs/check-rules.md` has the rules.
"""

from __future__ import annotations

from dataclasses import replace

from pallasc.checks.findings import LevelResult, from_findings, not_checked
from pallasc.checks.static.check import check, notes_of
from pallasc.checks.subject import Options, Subject
from pallasc.errors import UnsupportedError
from pallasc.specs.gpus import Target

NAME = "static"
_NO_PTX = "it holds no PTX; pallasc bundle create --keep-ptx writes bundles that do"
_NO_KERNEL = "it has no Mosaic GPU kernel, and XLA's kernels come without PTX"


def run(subject: Subject, options: Options) -> LevelResult:
    """Check a variant."""
    artifact, ptx = subject.artifact, subject.ptx
    target = Target(**artifact.target)  # type: ignore[arg-type]
    notes = notes_of(artifact.plan, artifact.kernels, target)
    try:
        found = check(artifact.plan, artifact.kernels, ptx, target, artifact.blob)
    except UnsupportedError as error:
        return replace(not_checked(NAME, error.message.rstrip(".")), notes=notes)
    result = from_findings(NAME, tuple(found))
    if not ptx and not result.fails:
        mosaic = any(kernel.origin == "mosaic" for kernel in artifact.kernels)
        result = not_checked(NAME, _NO_PTX if mosaic else _NO_KERNEL)
    return replace(result, notes=notes)
