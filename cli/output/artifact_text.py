"""Artifacts as text (summary, launch plan, metrics), and bundled variants as files.

`unpack` writes variants of a bundle to files that other tools can read:

    FOLDER/VARIANT/artifact.json     record of the artifact (`artifacts/artifact.py`)
    FOLDER/VARIANT/plan.json         launch plan
    FOLDER/VARIANT/KERNEL.cubin
    FOLDER/VARIANT/KERNEL.ptx        if the bundle contains it
    FOLDER/VARIANT/DIGEST.constant   named by 16 digits of its digest

Names in a bundle are untrusted. A file name keeps letters, digits, `-_=,@+[]` and dots, but no
leading `-` and no leading or trailing dot; every other character becomes `_`. If that changes a
name, or if two names differ only in case, the first digits of a digest are appended.
"""

from __future__ import annotations

import json
import math
import os
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pallasc.cli.output.outcome import xla_kernels
from pallasc.cli.output.text import NO_KERNELS, count, table
from pallasc.errors import SpecError
from pallasc.specs.arrays import array_text
from pallasc.specs.artifacts import plan as plans
from pallasc.specs.artifacts.artifact import Artifact, KernelResources
from pallasc.specs.canonical import digest
from pallasc.specs.spelling import amount

if TYPE_CHECKING:
    from pallasc.analysis.loops import Loop
    from pallasc.analysis.metrics import KernelMetrics
    from pallasc.analysis.sass import Class
    from pallasc.specs.bundle.bundle import Bundle
    from pallasc.specs.bundle.manifest import Entry


RESOURCES = (
    "KERNEL", "ORIGIN", "REGISTERS", "STACK", "SPILL STORES", "SPILL LOADS", "STATIC SMEM",
    "DYNAMIC SMEM", "BARRIERS", "CUBIN",
)  # fmt: skip
"""Columns of the resource table; sizes are in bytes."""


def summary_text(artifact: Artifact, *, label: str = "artifact") -> str:
    """Return a summary of an artifact: signature, launches, buffers, resources, toolchain.

    Args:
        artifact: the artifact.
        label: label of its digest.
    """
    plan, digest_line = artifact.plan, (label, artifact.digest)
    lines = [f"{name:<10} {value}" for name, value in (digest_line, *_facts(artifact, plan))]
    launches = [f"  {launch_text(launch)}" for launch in plan.launches]
    resources = [f"  {line}" for line in resources_text(artifact).splitlines()]
    return "\n".join([*lines, "launches", *launches, "resources", *resources])


def _facts(artifact: Artifact, plan: plans.LaunchPlan) -> Iterator[tuple[str, str]]:
    driver = artifact.record.get("minimum_driver", {})
    yield "target", f"{artifact.target.name} ({artifact.target.arch})"
    jax, ptxas = artifact.versions.get("jax"), artifact.toolchain.get("ptxas")
    yield "toolchain", f"jax {jax}, ptxas {ptxas}"
    yield "driver", f"CUDA {driver.get('cuda')}, Linux {driver.get('linux')} or newer"
    yield "inputs", _arrays(plan.inputs)
    yield "outputs", _arrays(plan.outputs)
    yield "buffers", _buffers(plan)
    yield "steps", _steps(plan)
    yield "kernels", _kernels(artifact)


def _kernels(artifact: Artifact) -> str:
    """Return the number of Pallas kernels, and the names of the kernels that XLA added."""
    own = len({kernel.name for kernel in artifact.kernels if kernel.origin == "mosaic"})
    first = f"{own} from Mosaic GPU" if own else "none from Mosaic GPU"
    added = xla_kernels(artifact)
    return f"{first}, {len(added)} from XLA: {', '.join(added)}" if added else first


def _arrays(bindings: Iterable[plans.Binding]) -> str:
    texts = [f"{b.path}: {binding_text(b)}" if b.path else binding_text(b) for b in bindings]
    return ", ".join(texts) or "none"


def _buffers(plan: plans.LaunchPlan) -> str:
    roles = [buffer.role for buffer in plan.buffers]
    numbers = [count(roles.count(role), role) for role in dict.fromkeys(roles)]
    return f"{', '.join(numbers)}; {count(sum(b.size for b in plan.buffers), 'byte')}"


def _steps(plan: plans.LaunchPlan) -> str:
    kinds = Counter(map(plans.kind_of, plan.steps))
    return ", ".join(
        f"{number} {kind if number == 1 else plans.STEP_KINDS[kind]}"
        for kind, number in kinds.items()
    )


def resources_text(artifact: Artifact) -> str:
    """Return a table with the resources of each kernel; unknown spills are shown as `?`."""
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


SHORT_DIGEST = 12
"""Number of digits shown of a digest, to keep lines short."""


def plan_text(plan: plans.LaunchPlan) -> str:
    """Return a plan as text, without a trailing newline."""
    return "\n".join(_lines(plan))


def launch_text(step: plans.Launch) -> str:
    """Return `main_kernel grid=(132,1,1) block=(384,1,1) cluster=(2,1,1) smem=229440 pdl`."""
    words = [step.kernel, f"grid={_dim(step.grid)}", f"block={_dim(step.block)}"]
    if step.cluster is not None:
        words.append(f"cluster={_dim(step.cluster)}")
    words.append(f"smem={step.dynamic_smem_bytes}")
    return " ".join([*words, "pdl"] if step.pdl else words)


def binding_text(binding: plans.Binding) -> str:
    """Return `bf16[1024, 4096]`, with the layout unless it is row-major."""
    return array_text(binding.dtype, binding.shape, binding.layout)


def _lines(plan: plans.LaunchPlan) -> Iterator[str]:
    if plan.mesh:
        axes = ", ".join(f"{name}={size}" for name, size in plan.mesh)
        yield f"mesh: {axes} ({plan.device_count} devices, each with these buffers)"
    yield f"buffers: {len(plan.buffers)}"
    for number, buffer in enumerate(plan.buffers):
        yield f"{number:>4}: {_buffer(number, buffer, plan)}"
    yield f"steps: {len(plan.steps)}"
    for number, step in enumerate(plan.steps):
        yield from _step(number, step)


def _buffer(number: int, buffer: plans.Buffer, plan: plans.LaunchPlan) -> str:
    facts = [f"{buffer.role:<9}  {buffer.size} bytes"]
    if buffer.alignment != plans.Buffer("input", 0).alignment:
        facts.append(f"aligned to {buffer.alignment}")
    if buffer.digest:
        facts.append(buffer.digest[:SHORT_DIGEST])
    for word, bindings in (("input", plan.inputs), ("output", plan.outputs)):
        facts += [
            f"{word} {binding.path}: {binding_text(binding)}"
            for binding in bindings
            if binding.buffer == number
        ]
    return "  ".join(facts)


def _step(number: int, step: plans.Step) -> Iterator[str]:
    if isinstance(step, plans.Launch):
        yield from _launch(number, step)
    else:
        yield f"{number:>4}: {step}"


def _launch(number: int, step: plans.Launch) -> Iterator[str]:
    yield f"{number:>4}: launch {launch_text(step)}"
    label = f" {step.label}" if step.label else ""
    yield f"      {step.origin}{label}, cubin {step.cubin[:SHORT_DIGEST]}"
    for index, parameter in enumerate(step.parameters):
        yield f"      param {index}: {_parameter(parameter)}"
        if isinstance(parameter, plans.Bytes):
            for offset, tensor_map in parameter.tensor_maps:
                yield f"        at {offset}: {_tensor_map(tensor_map)}"
    if step.peer_table is not None:
        yield f"      peers: {_peer_table(step.peer_table)}"


def _peer_table(table: plans.PeerTable) -> str:
    arrays = [plans.place_text(buffer, offset) for buffer, offset in table.arrays]
    facts = [f"{table.words} words, {table.ranks} ranks: {', '.join(arrays)}"]
    if table.symmetric:
        facts.append(f"symmetric {', '.join(arrays[number] for number in table.symmetric)}")
    if table.multicast:
        facts.append("multicast")
    return "; ".join(facts if table.barrier else [*facts, "without a barrier before the launch"])


def _parameter(parameter: plans.Parameter) -> str:
    if isinstance(parameter, plans.Peers):
        return "pointer to the peer table"
    if isinstance(parameter, plans.Pointer):
        return f"pointer to {plans.place_text(parameter.buffer, parameter.offset)}"
    facts = []
    if parameter.tensor_maps:
        facts.append(count(len(parameter.tensor_maps), "tensor map"))
    if parameter.data and set(parameter.data) != {"0"}:
        facts.append(f"data {parameter.data}")
    return f"{parameter.size} bytes{': ' if facts else ''}{', '.join(facts)}"


def _tensor_map(tensor_map: plans.TensorMap) -> str:
    facts = [
        plans.place_text(tensor_map.buffer, tensor_map.offset),
        tensor_map.dtype,
        f"dims={_dim(tensor_map.dims)}",
        f"strides_bytes={_dim(tensor_map.strides)}",
        f"box={_dim(tensor_map.box)}",
        f"swizzle={tensor_map.swizzle}",
    ]
    if set(tensor_map.element_strides) != {1}:
        facts.append(f"element_strides={_dim(tensor_map.element_strides)}")
    for name in ("interleave", "l2_promotion"):
        if value := getattr(tensor_map, name):
            facts.append(f"{name}={value}")
    if tensor_map.nan_fill:
        facts.append("nan_fill")
    if tensor_map.im2col is not None:
        facts.append("im2col " + " ".join(f"{k}={v}" for k, v in sorted(tensor_map.im2col.items())))
    if tensor_map.peers is not None:
        on = ["multicast" if rank == plans.MULTICAST else str(rank) for rank in tensor_map.peers]
        facts.append(f"on ranks {','.join(on)}")
    return " ".join(facts)


def _dim(values: plans.Dim3 | tuple[int, ...]) -> str:
    return f"({','.join(map(str, values))})"


_WIDTH = 80
_NAME = 14


def metrics_text(metrics: KernelMetrics) -> str:
    """Return the metrics of a launch, one line per metric, followed by its loops."""
    lines = [f"launch {metrics.launch}: {metrics.kernel}"]
    for name, text in _rows(metrics):
        indent = " " * (_NAME + 2)
        lines += textwrap.wrap(
            text,
            _WIDTH,
            initial_indent=f"  {name:<{_NAME}}",
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    if metrics.loops:
        lines += [f"  {line}" for line in _loops(metrics.loops)]
    return "\n".join(lines)


def _rows(metrics: KernelMetrics) -> Iterator[tuple[str, str]]:
    from pallasc.analysis.metrics import work_rows

    occupancy, limits = metrics.occupancy, " and ".join(metrics.occupancy.limited_by)
    yield "grid", _grid(metrics)
    yield (
        "occupancy",
        f"{count(occupancy.blocks_per_sm, 'block')}, {occupancy.warps_per_sm} of "
        f"{occupancy.most_warps_per_sm} warps/SM; limited by {limits}",
    )
    yield "waves", f"{occupancy.waves:.3g}"
    yield from work_rows(metrics)
    if metrics.instructions is not None:
        yield "instructions", f"{metrics.instructions:,}: {_mix(metrics.mix or {})}"


def _grid(metrics: KernelMetrics) -> str:
    blocks = count(math.prod(metrics.grid), "block")
    cluster = f" in clusters of {math.prod(metrics.cluster)}" if metrics.cluster else ""
    return f"{blocks}{cluster} of {math.prod(metrics.block)} threads"


def _loops(loops: tuple[Loop, ...]) -> list[str]:
    own = [loop for loop in loops if not loop.is_wait]
    waits = len(loops) - len(own)
    rows = [
        [
            "  " * (loop.depth - 1) + f"{loop.header:#06x}",
            str(sum(loop.mix.values())),
            f"{amount(loop.tensor_flops)}FLOP" if loop.tensor_flops else "",
            _mix(loop.mix, most=3),
        ]
        for loop in own
    ]
    head = ("LOOP AT", "INSTRUCTIONS", "PER ITERATION", "MOST FREQUENT")
    lines = table(head, rows, right=head[1:3]).split("\n")
    waiting = [f"and {count(waits, 'loop')} that only {'wait' if waits > 1 else 'waits'}"]
    return [*(lines if own else []), *(waiting if waits else [])]


def _mix(mix: Mapping[Class, int], most: int | None = None) -> str:
    """Return instruction counts by class: tensor, TMA and local memory first, then by frequency."""
    first = [name for name in mix if name in ("tensor", "tma", "local")]
    others = sorted((n for n in mix if n not in first), key=lambda name: -mix[name])
    return ", ".join(f"{name} {mix[name]:,}" for name in [*first, *others][:most])


_UNSAFE = re.compile(r"[^A-Za-z0-9_=,@+\[\].-]|^[.-]|\.$")
_LONGEST = 120
_DIGITS = 16


def unpack(
    bundle: Bundle,
    entries: Iterable[Entry],
    folder: Path,
    *,
    most_bytes: int | None = 4 << 30,
) -> list[Path]:
    """Write the files of variants, and return their paths.

    Args:
        bundle: bundle to read.
        entries: variants to write.
        folder: parent of the variants' folders; created if it does not exist.
        most_bytes: maximum number of bytes to write, None for no limit. A file counts as at least 4
            KiB.

    Raises:
        SpecError: a variant's folder already exists, the limit would be exceeded (in both cases,
            nothing is written), or a file cannot be written.
        CorruptError: the bundle is damaged.
    """
    from pallasc.specs.bundle.c_export import check_size
    from pallasc.specs.user_files import replace_file

    chosen = list(entries)
    check_size(bundle, chosen, most_bytes)
    names = safe_names(entry.id for entry in chosen)
    for name in names.values():
        if os.path.lexists(folder / name):
            raise SpecError(
                f"{folder / name} already exists.", hint="Remove it, or give another folder."
            )
    written = []
    for entry in chosen:
        own = folder / names[entry.id]
        for name, data in _files(bundle.artifact(entry)):
            replace_file(own / name, data)
            written.append(own / name)
    return written


def safe_names(names: Iterable[str]) -> dict[str, str]:
    """Map each name to a distinct file name that is valid on any system."""
    by_name: dict[str, str] = {}
    taken: set[str] = set()
    for name in sorted(set(names)):
        safe = _UNSAFE.sub("_", name)[:_LONGEST]
        if safe != name or not safe or safe.lower() in taken:
            safe = f"{safe}-{digest(name.encode('utf-8', 'backslashreplace'))[:_DIGITS]}"
        taken.add(safe.lower())
        by_name[name] = safe
    return by_name


def safe_name(name: str) -> str:
    """Return a file name that is valid on any system."""
    return safe_names([name])[name]


def _files(artifact: Artifact) -> Iterator[tuple[str, bytes]]:
    """Yield file names and contents; if two names are equal, digits of a digest are added."""
    for name, value in (("artifact", artifact.record), ("plan", artifact.record["plan"])):
        yield f"{name}.json", json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"
    labels = {key: (key[:_DIGITS], "constant") for key in artifact.record["blobs"]}
    for kernel in reversed(artifact.kernels):  # a cubin is named after its first kernel
        labels[kernel.cubin] = kernel.name, "cubin"
        if kernel.ptx is not None:
            labels[kernel.ptx] = kernel.name, "ptx"
    safe = safe_names(label for label, _ in labels.values())
    counts = Counter(labels.values())
    for key, (label, ending) in labels.items():
        digits = f"-{key[:_DIGITS]}" if counts[label, ending] > 1 else ""
        yield f"{safe[label]}{digits}.{ending}", artifact.blob(key)
