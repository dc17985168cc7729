"""A launch plan as text: buffers, then steps, a line for each."""

from __future__ import annotations

from collections.abc import Iterator

from pallasc.specs.arrays import array_text
from pallasc.specs.artifacts.peers import MULTICAST, Peers, PeerTable
from pallasc.specs.artifacts.plan import (
    Binding,
    Buffer,
    Bytes,
    Copy,
    Dim3,
    Fill,
    Launch,
    LaunchPlan,
    Parameter,
    Pointer,
    Step,
    TensorMap,
)
from pallasc.specs.artifacts.profile import Profile

SHORT_DIGEST = 12
"""Digits that are shown of a digest, to leave room for the rest of the line."""


def plan_text(plan: LaunchPlan) -> str:
    """Return a plan as text, without a newline at the end."""
    return "\n".join(_lines(plan))


def launch_text(step: Launch) -> str:
    """Return `main_kernel grid=(132,1,1) block=(384,1,1) cluster=(2,1,1) smem=229440 pdl`."""
    words = [step.kernel, f"grid={_dim(step.grid)}", f"block={_dim(step.block)}"]
    if step.cluster is not None:
        words.append(f"cluster={_dim(step.cluster)}")
    words.append(f"smem={step.dynamic_smem_bytes}")
    return " ".join([*words, "pdl"] if step.pdl else words)


def binding_text(binding: Binding) -> str:
    """Return `bf16[1024, 4096]`, with the layout where it is not row-major."""
    return array_text(binding.dtype, binding.shape, binding.layout)


def _lines(plan: LaunchPlan) -> Iterator[str]:
    if plan.mesh:
        axes = ", ".join(f"{name}={size}" for name, size in plan.mesh)
        yield f"mesh: {axes} ({plan.device_count} devices, each with these buffers)"
    yield f"buffers: {len(plan.buffers)}"
    for number, buffer in enumerate(plan.buffers):
        yield f"{number:>4}: {_buffer(number, buffer, plan)}"
    yield f"steps: {len(plan.steps)}"
    for number, step in enumerate(plan.steps):
        yield from _step(number, step)
    for profile in plan.profiles:
        yield _profile(profile, plan)


def _buffer(number: int, buffer: Buffer, plan: LaunchPlan) -> str:
    facts = [f"{buffer.role:<9}  {buffer.size} bytes"]
    if buffer.alignment != Buffer("input", 0).alignment:
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


def _step(number: int, step: Step) -> Iterator[str]:
    if isinstance(step, Fill):
        yield f"{number:>4}: fill {_range(step.buffer, step.offset, step.size)} with {_value(step)}"
    elif isinstance(step, Copy):
        source = _range(step.source, step.source_offset, step.size)
        yield f"{number:>4}: copy {source} to {_place(step.target, step.target_offset)}"
    else:
        yield from _launch(number, step)


def _launch(number: int, step: Launch) -> Iterator[str]:
    yield f"{number:>4}: launch {launch_text(step)}"
    label = f" {step.label}" if step.label else ""
    yield f"      {step.origin}{label}, cubin {step.cubin[:SHORT_DIGEST]}"
    for index, parameter in enumerate(step.parameters):
        yield f"      param {index}: {_parameter(parameter)}"
        if isinstance(parameter, Bytes):
            for offset, tensor_map in parameter.tensor_maps:
                yield f"        at {offset}: {_tensor_map(tensor_map)}"
    if step.peer_table is not None:
        yield f"      peers: {_peer_table(step.peer_table)}"


def _peer_table(table: PeerTable) -> str:
    arrays = [_place(buffer, offset) for buffer, offset in table.arrays]
    facts = [f"{table.words} words for {table.ranks} ranks of {', '.join(arrays)}"]
    if table.symmetric:
        facts.append(f"symmetric {', '.join(arrays[number] for number in table.symmetric)}")
    if table.multicast:
        facts.append("multicast")
    return "; ".join(facts if table.barrier else [*facts, "without a barrier before the launch"])


def _profile(profile: Profile, plan: LaunchPlan) -> str:
    launch = plan.launches[profile.launch]
    return (
        f"profile of launch {profile.launch}, {launch.kernel}: {_place(profile.buffer, 0)}, "
        f"{profile.traces} traces of {profile.words} words a block, "
        f"regions {', '.join(profile.names)}"
    )


def _parameter(parameter: Parameter) -> str:
    if isinstance(parameter, Peers):
        return "pointer to the table of peers"
    if isinstance(parameter, Pointer):
        return f"pointer to {_place(parameter.buffer, parameter.offset)}"
    facts = [f"{parameter.size} bytes"]
    if parameter.tensor_maps:
        number = len(parameter.tensor_maps)
        facts.append("1 tensor map" if number == 1 else f"{number} tensor maps")
    if parameter.data and set(parameter.data) != {"0"}:
        facts.append(f"data {parameter.data}")
    return ": ".join([facts[0], ", ".join(facts[1:])]) if facts[1:] else facts[0]


def _tensor_map(tensor_map: TensorMap) -> str:
    facts = [
        _place(tensor_map.buffer, tensor_map.offset),
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
        on = ["multicast" if rank == MULTICAST else str(rank) for rank in tensor_map.peers]
        facts.append(f"on ranks {','.join(on)}")
    return " ".join(facts)


def _place(buffer: int, offset: int) -> str:
    return f"buffer {buffer}+{offset}" if offset else f"buffer {buffer}"


def _range(buffer: int, offset: int, size: int) -> str:
    return f"{size} bytes of {_place(buffer, offset)}"


def _value(step: Fill) -> str:
    return f"{step.value:#0{2 + 2 * step.width}x}"


def _dim(values: Dim3 | tuple[int, ...]) -> str:
    return f"({','.join(map(str, values))})"
