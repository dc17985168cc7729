"""What `pallasc inspect` shows of an artifact: a summary, its resources, its PTX, its SASS."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from pallasc.cli.artifacts.plan_text import binding_text, launch_text
from pallasc.cli.render.remarks import xla_kernels
from pallasc.cli.terminal.output import count, table
from pallasc.errors import CorruptError
from pallasc.specs.artifacts.artifact import Artifact, KernelResources
from pallasc.specs.artifacts.cubin import tools_of
from pallasc.specs.artifacts.plan import Binding, Fill, Launch, LaunchPlan

RESOURCES = (
    "KERNEL",
    "ORIGIN",
    "REGISTERS",
    "STACK",
    "SPILL STORES",
    "SPILL LOADS",
    "STATIC SMEM",
    "DYNAMIC SMEM",
    "BARRIERS",
    "CUBIN",
)
"""Columns of the table of resources; sizes are bytes."""

NO_KERNELS = "no kernels"
"""Shown for a plan that only copies and fills."""


def summary_text(artifact: Artifact) -> str:
    """Return what an artifact is: signature, launches, buffers, resources, toolchain."""
    plan = artifact.plan
    lines = [f"{name:<10} {value}" for name, value in _facts(artifact, plan)]
    launches = [f"  {launch_text(launch)}" for launch in plan.launches]
    resources = [f"  {line}" for line in resources_text(artifact).splitlines()]
    return "\n".join([*lines, "launches", *launches, "resources", *resources])


def _facts(artifact: Artifact, plan: LaunchPlan) -> Iterator[tuple[str, str]]:
    driver = artifact.record.get("minimum_driver", {})
    yield "artifact", artifact.digest
    yield "target", f"{artifact.target['name']} ({artifact.target['arch']})"
    yield "toolchain", f"jax {artifact.versions.get('jax')}, {_assembler(artifact)}"
    yield "driver", f"CUDA {driver.get('cuda')}, Linux {driver.get('linux')} or newer"
    yield "inputs", _arrays(plan.inputs)
    yield "outputs", _arrays(plan.outputs)
    yield "buffers", _buffers(plan)
    yield "steps", _steps(plan)
    yield "kernels", _kernels(artifact)


def _assembler(artifact: Artifact) -> str:
    """Return the record's assembler, and how many cubins do not name theirs."""
    cubins = {kernel.cubin for kernel in artifact.kernels}
    unnamed = sum(not _names_its_tools(artifact.blob(cubin)) for cubin in cubins)
    text = f"ptxas {artifact.toolchain.get('ptxas')}"
    if not unnamed:
        return text
    verb = "names" if unnamed == 1 else "name"
    return f"{text} (not checked: {count(unnamed, 'cubin')} {verb} no assembler)"


def _names_its_tools(cubin: bytes) -> bool:
    with contextlib.suppress(CorruptError):
        return bool(tools_of(cubin))
    return False


def _kernels(artifact: Artifact) -> str:
    """Return how many kernels are Pallas kernels, and which XLA added."""
    own = len({kernel.name for kernel in artifact.kernels if kernel.origin == "mosaic"})
    first = f"{own} of Pallas Mosaic GPU" if own else "none of Pallas Mosaic GPU"
    added = xla_kernels(artifact)
    return f"{first}, {len(added)} of XLA: {', '.join(added)}" if added else first


def _arrays(bindings: Iterable[Binding]) -> str:
    texts = [f"{b.path}: {binding_text(b)}" if b.path else binding_text(b) for b in bindings]
    return ", ".join(texts) or "none"


def _buffers(plan: LaunchPlan) -> str:
    roles = [buffer.role for buffer in plan.buffers]
    numbers = [count(roles.count(role), role) for role in dict.fromkeys(roles)]
    return f"{', '.join(numbers)}; {count(sum(b.size for b in plan.buffers), 'byte')}"


def _steps(plan: LaunchPlan) -> str:
    kinds = [
        "launch" if isinstance(step, Launch) else "fill" if isinstance(step, Fill) else "copy"
        for step in plan.steps
    ]
    plural = {"launch": "launches", "fill": "fills", "copy": "copies"}
    return ", ".join(
        f"{kinds.count(kind)} {kind if kinds.count(kind) == 1 else plural[kind]}"
        for kind in dict.fromkeys(kinds)
    )


def resources_text(artifact: Artifact) -> str:
    """Return the resources of every kernel as a table; an unknown spill is shown as `?`."""
    if not artifact.kernels:
        return NO_KERNELS
    rows = [_resources_row(kernel, artifact) for kernel in artifact.kernels]
    return table(RESOURCES, rows, right=RESOURCES[2:])


def _resources_row(kernel: KernelResources, artifact: Artifact) -> list[str]:
    numbers = (
        kernel.registers,
        kernel.stack_bytes,
        kernel.spill_store_bytes,
        kernel.spill_load_bytes,
        kernel.static_smem_bytes,
        kernel.dynamic_smem_bytes,
        kernel.barriers,
        artifact.record["blobs"][kernel.cubin],
    )
    cells = ["?" if number is None else str(number) for number in numbers]
    return [kernel.name, kernel.origin, *cells]


def ptx_text(artifact: Artifact) -> str:
    """Return the PTX of every kernel; a kernel without PTX is a comment."""
    parts: dict[str, str] = {}
    for kernel in artifact.kernels:
        if kernel.ptx is None and kernel.origin == "mosaic":
            parts[kernel.cubin] = (
                f"// {kernel.name}: the bundle has no PTX; pallasc bundle create --keep-ptx adds it"
            )
        elif kernel.ptx is None:
            parts[kernel.cubin] = f"// {kernel.name}: a kernel of XLA's, which comes without PTX"
        else:
            parts[kernel.ptx] = artifact.blob(kernel.ptx).decode("utf-8", "replace").rstrip("\0\n")
    return "\n\n".join(parts.values()) or f"// {NO_KERNELS}"


def sass_text(artifact: Artifact) -> str:
    """Return the SASS of every kernel.

    Raises:
        ToolError: nvdisasm is not installed.
    """
    from pallasc.compiler.toolchain.toolchain import sass

    kernels = {(kernel.cubin, kernel.name): kernel for kernel in artifact.kernels}
    parts = [sass(artifact.blob(cubin), kernel=name).rstrip("\n") for cubin, name in kernels]
    return "\n\n".join(parts) or f"// {NO_KERNELS}"
