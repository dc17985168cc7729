"""What must hold of a launch plan: references lie inside buffers, sizes agree."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from pallasc.errors import CorruptError, SpecError
from pallasc.specs.artifacts.peers import MULTICAST, Peers, PeerTable
from pallasc.specs.artifacts.plan import (
    MAP_BYTES,
    Binding,
    Bytes,
    Copy,
    Fill,
    Launch,
    LaunchPlan,
    Pointer,
    TensorMap,
    tree_leaves,
)
from pallasc.specs.artifacts.profile import HEAD_WORDS, Profile
from pallasc.specs.dtypes import parse_dtype


def check_ranges(plan: LaunchPlan) -> None:
    """Check that every reference of the plan lies inside an existing buffer.

    Raises:
        CorruptError: one does not, or sizes contradict each other.
    """
    for what, buffer, offset, size in _references(plan):
        if not 0 <= buffer < len(plan.buffers):
            raise CorruptError(f"{what} names buffer {buffer} of {len(plan.buffers)}")
        if offset < 0 or size < 0 or offset + size > plan.buffers[buffer].size:
            raise CorruptError(
                f"{what} takes bytes {offset} to {offset + size} of buffer {buffer}, "
                f"which has {plan.buffers[buffer].size}"
            )
    for broken in (*_broken_rules(plan), *_broken_extras(plan)):
        raise CorruptError(f"the launch plan is damaged: {broken}")


def _references(plan: LaunchPlan) -> list[tuple[str, int, int, int]]:
    references = [
        (f"array {b.path}", b.buffer, 0, _array_bytes(b)) for b in (*plan.inputs, *plan.outputs)
    ]
    for index, step in enumerate(plan.steps):
        what = f"step {index}"
        if isinstance(step, Fill):
            references.append((what, step.buffer, step.offset, step.size))
        elif isinstance(step, Copy):
            references.append((what, step.source, step.source_offset, step.size))
            references.append((what, step.target, step.target_offset, step.size))
        else:
            references += [(what, *place) for place in _launch_references(step)]
    references += [("a profile", profile.buffer, 0, 0) for profile in plan.profiles]
    return references


def _array_bytes(binding: Binding) -> int:
    try:
        bits = parse_dtype(binding.dtype).bits
    except SpecError as error:
        raise CorruptError(f"array {binding.path}: {error.message}") from error
    return (math.prod(binding.shape) * bits + 7) // 8


def _launch_references(step: Launch) -> list[tuple[int, int, int]]:
    references = []
    for parameter in step.parameters:
        if isinstance(parameter, Pointer):
            references.append((parameter.buffer, parameter.offset, parameter.size))
        elif isinstance(parameter, Bytes):
            references += [(m.buffer, m.offset, 0) for _, m in parameter.tensor_maps]
    if step.peer_table is not None:
        references += [(buffer, offset, 0) for buffer, offset in step.peer_table.arrays]
    return references


def _broken_rules(plan: LaunchPlan) -> Iterator[str]:
    for index, buffer in enumerate(plan.buffers):
        if buffer.size < 0 or (buffer.role == "constant") != (buffer.digest is not None):
            yield f"{buffer.role} buffer {index} of {buffer.size} bytes has digest {buffer.digest}"
    for index, step in enumerate(plan.steps):
        if isinstance(step, Fill) and (step.size % step.width or step.value >> 8 * step.width):
            yield f"step {index} fills {step.size} bytes with {step.value:#x}"
        if isinstance(step, Launch):
            for parameter in step.parameters:
                if isinstance(parameter, Bytes) and not _fits(parameter):
                    yield f"step {index} passes {parameter.size} bytes that do not fit together"
    for tree, bindings in ((plan.input_tree, plan.inputs), (plan.output_tree, plan.outputs)):
        if sorted(tree_leaves(tree)) != list(range(len(bindings))):
            yield f"a pytree does not name each of {len(bindings)} arrays once"


def _broken_extras(plan: LaunchPlan) -> Iterator[str]:
    """Yield what is wrong with the optional parts of a plan."""
    for array in (*plan.inputs, *plan.outputs):
        dims = sorted(array.layout or range(len(array.shape)))
        if dims != list(range(len(array.shape))) or (array.layout and array in plan.outputs):
            yield f"array {array.path} has the layout {array.layout}"
    names = list(plan.input_tree) if isinstance(plan.input_tree, Mapping) else []
    if plan.parameters and sorted(map(str, plan.parameters)) != sorted(names):
        yield f"its parameters {list(plan.parameters)} do not match its pytree"
    for launch in plan.launches:
        if launch.peer_table is not None:
            yield from _broken_table(launch.peer_table, plan.device_count)
        elif any(isinstance(parameter, Peers) for parameter in launch.parameters):
            yield f"{launch.kernel} takes a peer table, which its launch does not describe"
        for tensor_map in _tensor_maps(launch):
            peers = tensor_map.peers
            if peers is not None and (
                len(peers) != plan.device_count
                or any(not MULTICAST <= peer < plan.device_count for peer in peers)
            ):
                yield f"a tensor map of {launch.kernel} names peers {peers}"
    grids: list[tuple[int, ...]] = [launch.grid for launch in plan.launches]
    for profile in plan.profiles:
        buffer = plan.buffers[profile.buffer]
        if buffer.role != "temporary":
            yield f"a profile lies in {buffer.role} buffer {profile.buffer}"
        yield from _broken_profile(profile, grids, buffer.size)


def _broken_table(table: PeerTable, ranks: int) -> Iterator[str]:
    if table.ranks != ranks:
        yield f"a table of {table.ranks} peers for {ranks} devices"
    if any(not 0 <= number < len(table.arrays) for number in table.symmetric):
        yield f"a table of peers with {len(table.arrays)} arrays names {table.symmetric}"


def _broken_profile(profile: Profile, grids: list[tuple[int, ...]], size: int) -> Iterator[str]:
    if not 0 <= profile.launch < len(grids):
        yield f"a profile is of launch {profile.launch} of {len(grids)}"
    elif profile.words <= HEAD_WORDS or profile.traces < 1:
        yield f"a profile has {profile.traces} traces of {profile.words} words"
    elif size != 4 * profile.words * profile.traces * math.prod(grids[profile.launch]):
        yield f"a profile of {profile.traces} traces of {profile.words} words takes {size} bytes"


def _tensor_maps(launch: Launch) -> Iterator[TensorMap]:
    for parameter in launch.parameters:
        if isinstance(parameter, Bytes):
            yield from (tensor_map for _, tensor_map in parameter.tensor_maps)


def _fits(parameter: Bytes) -> bool:
    ends = [offset + MAP_BYTES for offset, _ in parameter.tensor_maps]
    starts = [offset for offset, _ in parameter.tensor_maps]
    return len(parameter.data) in (0, 2 * parameter.size) and all(
        start >= 0 and end <= parameter.size for start, end in zip(starts, ends, strict=True)
    )
