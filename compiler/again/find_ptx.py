"""Find the PTX of the kernels that XLA makes around Mosaic's, whose cubins come without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pallasc.cache.store import Store
from pallasc.compiler.again.once_more import answers
from pallasc.compiler.toolchain.setup import Setup
from pallasc.compiler.workers.messages import Failed, FindPtx, PtxFound
from pallasc.errors import CompileError, PallascError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.spec import Variant

Texts = Mapping[str, str]
"""PTX by the digest of the cubin, as `PlanRun` takes it."""


def without_ptx(artifact: Artifact) -> dict[str, tuple[str, ...]]:
    """Return the kernels of an artifact that come without PTX, by the digest of their cubin."""
    names: dict[str, tuple[str, ...]] = {}
    for kernel in artifact.kernels:
        if kernel.ptx is None:
            names[kernel.cubin] = (*names.get(kernel.cubin, ()), kernel.name)
    return names


def find_ptx(
    compiled: Sequence[tuple[Variant, Artifact]],
    setup: Setup,
    store: Store,
    *,
    jobs: int = 1,
    timeout_s: float | None = None,
) -> list[Texts | PallascError]:
    """Return the PTX that variants' artifacts lack, or why it cannot be had.

    A variant is compiled once more for it, unless its artifact lacks none.

    Raises:
        ToolError: a compiling process cannot be started.
    """
    found: list[Texts | PallascError] = [{} for _ in compiled]
    lacking = [number for number, (_, artifact) in enumerate(compiled) if without_ptx(artifact)]
    if not lacking:
        return found

    def request(number: int, env: Mapping[str, str | None]) -> FindPtx:
        variant, artifact = compiled[lacking[number]]
        return FindPtx(variant=variant, cubins=without_ptx(artifact), env=env)

    variants = [compiled[number][0] for number in lacking]
    purpose = "finds the PTX of XLA's kernels in"
    for number, answer in answers(
        variants, request, setup, store, purpose=purpose, jobs=jobs, timeout_s=timeout_s
    ):
        if isinstance(answer.reply, PtxFound):
            found[lacking[number]] = answer.reply.ptx
        elif isinstance(answer.reply, Failed):
            found[lacking[number]] = answer.reply.error
        else:
            gone = f"the process that {purpose} {variants[number].id} sent no answer"
            found[lacking[number]] = answer.error or CompileError(gone)
    return found
