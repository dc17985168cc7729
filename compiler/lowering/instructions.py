"""Refuse, before compiling, instructions that an architecture does not have.

LLVM ends the whole process with "Cannot select: intrinsic …" where a kernel uses some of them on
the wrong architecture. They are seen in the traced function, with the user's own line. Which
architecture has what: PTX ISA, "Target ISA Notes" of `wgmma`, `tcgen05`, `cp.async.bulk`,
`setmaxnreg`, `griddepcontrol`, and "Cluster of Cooperative Thread Arrays".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pallasc.compiler.lowering.diagnose import user_place
from pallasc.errors import CompileError
from pallasc.specs.gpus import ARCHITECTURES, DEFAULT_MODELS, Feature, Target, capability


@dataclass(frozen=True, slots=True)
class Need:
    """What a primitive of Pallas needs: a feature, and what messages call it."""

    what: str
    feature: Feature

    def refusal(self, target: Target) -> str | None:
        """Return why `target` does not have it, None if it does."""
        if self.feature in target.features:
            return None
        rows = [ARCHITECTURES[capability(arch)] for arch in DEFAULT_MODELS]
        having = [row for row in rows if self.feature in row.features]
        first = having[0]
        if having == rows[rows.index(first) :]:
            major, minor = first.capability
            return f"{self.what}, which GPUs before sm_{major}{minor} do not have ({target.arch})"
        verb = "has" if len(having) == 1 else "have"
        names = ", ".join(row.name for row in having)
        return f"{self.what}, which only {names} {verb}, not {target.arch}"


def need_of(primitive: str, *, copies_use_tma: bool) -> Need | None:
    """Return what the Pallas primitive of this name needs.

    Args:
        primitive: its name, without a suffix `_p`.
        copies_use_tma: whether asynchronous copies are always by TMA (before JAX 0.12).
    """
    name = primitive.removesuffix("_p")
    if "tcgen05" in name or "tmem" in name:
        return Need(f"tensor memory ({name})", "tcgen05")
    if name.startswith("wgmma"):
        return Need(f"warpgroup matrix instructions ({name})", "wgmma")
    if name == "set_max_registers":
        return Need(name, "setmaxnreg")
    if name in ("griddepcontrol_wait", "griddepcontrol_launch_dependents"):
        return Need(name, "griddepcontrol")
    if name in ("try_cluster_cancel", "query_cluster_cancel"):
        return Need(name, "cluster_cancel")
    if copies_use_tma and name in ("copy_gmem_to_smem", "copy_smem_to_gmem", "async_prefetch"):
        return Need(f"asynchronous copies by TMA ({name})", "tma")
    return None


def check_instructions(jaxpr: Any, target: Target) -> None:
    """Check that `target` has what the traced function uses.

    Raises:
        CompileError: it does not; with the user's line.
    """
    if "tma" in target.features:
        copies_use_tma = False
    else:
        from jax.experimental.pallas import mosaic_gpu

        copies_use_tma = not hasattr(mosaic_gpu, "wait_gmem_to_smem")
    for equation in equations(jaxpr):
        need = need_of(equation.primitive.name, copies_use_tma=copies_use_tma)
        if need is None and _has_cluster(equation):
            need = Need("a cluster of blocks", "clusters")
        refusal = need.refusal(target) if need else None
        if refusal:
            stack = getattr(equation.source_info.traceback, "frames", ())
            place = user_place([(frame.file_name, frame.line_num) for frame in stack])
            raise CompileError(f"the kernel uses {refusal}", location=place)


def _has_cluster(equation: Any) -> bool:
    """Return whether an equation launches a kernel on a mesh with a cluster."""
    meshes = [equation.params.get("mesh"), *(equation.params.get("meshes") or ())]
    return any(getattr(mesh, "cluster", ()) for mesh in meshes)


def equations(value: Any) -> Iterator[Any]:
    """Yield the equations of a jaxpr and of those inside its parameters."""
    jaxpr = getattr(value, "jaxpr", value)
    for equation in getattr(jaxpr, "eqns", ()):
        yield equation
        for parameter in equation.params.values():
            for inner in parameter if isinstance(parameter, list | tuple) else (parameter,):
                yield from equations(inner)
