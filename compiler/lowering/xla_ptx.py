"""Find the PTX of the kernels that XLA makes beside Mosaic's.

Their cubins come without it. So the function is compiled once more, and XLA writes the PTX that it
gives to the assembler into a folder, one file for each kernel. That changes no cubin, which is
checked: PTX is returned only for cubins that are those of the artifact, byte for byte.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from pallasc.compiler.lowering.compile import Job, Tools, compile_lowered
from pallasc.compiler.lowering.diagnose import definition
from pallasc.errors import CompileError, summary_of
from pallasc.specs.artifacts.plan import Launch

_ENTRY = re.compile(r"^\s*(?:\.visible\s+)?\.entry\s+([\w$]+)", re.MULTILINE)


def xla_ptx(job: Job, tools: Tools, cubins: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the PTX of XLA's kernels by the digest of their cubin, by compiling a job once more.

    Args:
        job: what the kernels were compiled from.
        tools: as it was compiled with; XLA has to compile in this process.
        cubins: the names of the kernels, by the digest of the cubin that they lie in.

    Raises:
        CompileError: it is compiled to another cubin now, or not at all, or XLA wrote no PTX.
    """
    with tempfile.TemporaryDirectory(prefix="pallasc-ptx-") as folder:
        try:
            translation = compile_lowered(job.lower(), job, tools, ptx_folder=Path(folder))
        except Exception as error:
            raise _not_found(job, f"recompiling it failed: {summary_of(error)}") from error
        texts = written_kernels(Path(folder))
    now = {(s.kernel, s.cubin) for s in translation.steps if isinstance(s, Launch)}
    found = {}
    for cubin, names in cubins.items():
        for name in names:
            if (name, cubin) not in now:
                raise _not_found(job, f"{name} is compiled to another cubin now")
        written = set.intersection(*(texts.get(name, set()) for name in names))
        if len(written) != 1:
            raise _not_found(job, f"XLA wrote {len(written)} texts for {', '.join(names)}")
        (found[cubin],) = written
    return found


def written_kernels(folder: Path) -> dict[str, set[str]]:
    """Return the different PTX texts in a folder by the names of their kernels."""
    texts: dict[str, set[str]] = {}
    for place in sorted(folder.glob("*.ptx")):
        text = place.read_text(encoding="utf-8")
        for name in _ENTRY.findall(text):
            texts.setdefault(name, set()).add(text)
    return texts


def _not_found(job: Job, why: str) -> CompileError:
    return CompileError(
        f"cannot recover the PTX of XLA's kernels: {why}.", location=definition(job.function)
    )
