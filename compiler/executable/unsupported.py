"""Names, for messages, of steps of an executable that cannot be launched from a cubin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

UNSUPPORTED_HINT = "Leave it out of the function, or give the kernel alone as the entry."

_HOST_CALLBACKS = ("xla_ffi_python", "xla_python", "xla_ffi_partitioned_python")


def describe_call(target: str) -> str:
    """Return what a custom call of this target does, for an error message."""
    if target.startswith(_HOST_CALLBACKS) or "callback" in target:
        return f"a host callback ({target})"
    if target.startswith(("cusolver", "cublas", "cusparse", "cudnn", "cufft")):
        return f"a call into NVIDIA's library {target.split('_')[0]} ({target})"
    return f"a call of the library function {target}"


def source_frames(module: Any, instruction: str) -> list[tuple[str, int]]:
    """Return (file, line) of the Python frames that made an HLO instruction, innermost first.

    `module` is the executable's `HloModule`; the list is empty if it has no locations.
    """
    for computation in module.computations:
        for candidate in computation.instructions:
            if candidate.name == instruction:
                return list(_frames(module, _with_metadata(module, candidate).metadata))
    return []


def _with_metadata(module: Any, instruction: Any) -> Any:
    """Return the instruction, or the root of what it calls if it has no metadata itself."""
    if instruction.metadata.op_name or not instruction.called_computation_ids:
        return instruction
    for computation in module.computations:
        if computation.id == instruction.called_computation_ids[0]:
            return next(
                (i for i in computation.instructions if i.id == computation.root_id), instruction
            )
    return instruction


def _frames(module: Any, metadata: Any) -> Iterator[tuple[str, int]]:
    index = module.stack_frame_index
    frame_id, seen = metadata.stack_frame_id, set[int]()
    while 0 < frame_id <= len(index.stack_frames) and frame_id not in seen:
        seen.add(frame_id)
        frame = index.stack_frames[frame_id - 1]
        if not 0 < frame.file_location_id <= len(index.file_locations):
            return
        place = index.file_locations[frame.file_location_id - 1]
        if 0 < place.file_name_id <= len(index.file_names):
            yield index.file_names[place.file_name_id - 1], place.line
        frame_id = frame.parent_frame_id
    if metadata.source_file and not metadata.stack_frame_id:
        yield metadata.source_file, metadata.source_line
