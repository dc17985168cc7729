"""The schema that executables are read with, against the descriptors in the installed plugin."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import pytest

from pallasc.compiler.lowering import serialized
from pallasc.compiler.toolchain.toolchain import find_toolchain

JAX = tuple(int(part) for part in metadata.version("jax").split(".")[:2])

FILES = (
    "jaxlib/mosaic/gpu/mosaic_gpu.proto",
    "xla/backends/gpu/codegen/kernels/custom_kernel.proto",
    "xla/backends/gpu/runtime/copy_thunk.proto",
    "xla/backends/gpu/runtime/dynamic_slice_thunk.proto",
    "xla/backends/gpu/runtime/thunk.proto",
    "xla/ffi/attribute_map.proto",
    "xla/ffi/execution_state.proto",
    "xla/pjrt/proto/compile_options.proto",
    "xla/service/buffer_assignment.proto",
    "xla/service/gpu/backend_configs.proto",
    "xla/service/gpu/dense_data_intermediate.proto",
    "xla/service/gpu/gpu_executable.proto",
    "xla/service/gpu/launch_dimensions.proto",
    "xla/service/hlo.proto",
    "xla/service/shaped_slice.proto",
    "xla/shape_util.proto",
    "xla/stream_executor/gpu/tma_metadata.proto",
    "xla/stream_executor/kernel_args_packing_spec.proto",
    "xla/stream_executor/kernel_spec.proto",
    "xla/stream_executor/launch_dim.proto",
    "xla/util/split_proto/split_proto.proto",
    "xla/xla.proto",
    "xla/xla_data.proto",
)


def _varint(data: Any, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _descriptor_end(data: Any, start: int) -> int:
    """Return where the `FileDescriptorProto` at `start` ends: behind its last field."""
    end = start
    while True:
        tag, at = _varint(data, end)
        field, wire = tag >> 3, tag & 7
        if wire == 2 and field in range(1, 14) and (field != 1 or end == start):
            size, at = _varint(data, at)
            end = at + size
        elif wire == 0 and field in (10, 11, 14):
            _, end = _varint(data, at)
        else:
            return end


def _file_descriptors(data: Any) -> Iterator[Any]:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    for name in FILES:
        pattern = b"\n" + bytes([len(name)]) + name.encode()
        at = data.find(pattern)
        while at >= 0:
            try:
                file = FileDescriptorProto.FromString(data[at : _descriptor_end(data, at)])
            except DecodeError:
                file = FileDescriptorProto()
            if file.message_type:
                yield file
                break
            at = data.find(pattern, at + 1)


@pytest.fixture(scope="module")
def installed() -> dict[str, Any]:
    """Return every message type of the installed CUDA plugin by its full name."""
    found: dict[str, Any] = {}

    def add(prefix: str, message: Any) -> None:
        name = f"{prefix}.{message.name}"
        found[name] = message
        for nested in message.nested_type:
            add(name, nested)

    with (
        find_toolchain().plugin.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        for descriptor in _file_descriptors(data):
            for message in descriptor.message_type:
                add(f".{descriptor.package}" if descriptor.package else "", message)
    return found


NAMES = {
    "Allocation": "xla.BufferAllocationProto",
    "Allocations": "xla.gpu.GpuExecutableProto.RepeatedBufferAllocations",
    "ArgPacking": "stream_executor.KernelArgPackingSpecProto",
    "While": "xla.gpu.WhileThunkProto",
    "ArgsPacking": "stream_executor.KernelArgsPackingSpecProto",
    "AsyncDone": "xla.gpu.AsyncDoneThunkProto",
    "AsyncStart": "xla.gpu.AsyncStartThunkProto",
    "Attribute": "xla.ffi.AttributeProto",
    "AttributeEntry": "xla.ffi.AttributesMapProto.AttrsEntry",
    "AttributesMap": "xla.ffi.AttributesMapProto",
    "BlockDim": "stream_executor.BlockDimProto",
    "ClusterDim": "stream_executor.ClusterDimProto",
    "Constant": "xla.gpu.GpuExecutableProto.ConstantInfoProto",
    "Copy": "xla.gpu.CopyThunkProto",
    "CubinSource": "stream_executor.CudaCubinProto",
    "CustomCall": "xla.gpu.CustomCallThunkProto",
    "CustomKernel": "xla.gpu.CustomKernelProto",
    "CustomKernelThunk": "xla.gpu.CustomKernelThunkProto",
    "DenseData": "xla.gpu.DenseDataIntermediateProto",
    "DeviceCopy": "xla.gpu.DeviceToDeviceCopyThunkProto",
    "Dim3D": "stream_executor.Dim3DProto",
    "DynamicSlice": "xla.gpu.DynamicSliceThunkProto",
    "DynamicSliceFusion": "xla.gpu.DynamicSliceFusionThunkProto",
    "ExecutableAndOptionsProto": "xla.ExecutableAndOptionsProto",
    "ExecutionState": "xla.ffi.ExecutionStateProto",
    "FieldOverride": "xla.Record.FieldOverrideRecord",
    "FieldPathPart": "xla.Record.FieldOverrideRecord.FieldPathPart",
    "FileLocation": "xla.StackFrameIndexProto.FileLocation",
    "GpuExecutableProto": "xla.gpu.GpuExecutableProto",
    "HloComputation": "xla.HloComputationProto",
    "HloInstruction": "xla.HloInstructionProto",
    "HloModule": "xla.HloModuleProto",
    "HloModuleWithConfig": "xla.HloModuleProtoWithConfig",
    "Kernel": "xla.gpu.KernelThunkProto",
    "KernelLoaderSpec": "stream_executor.KernelLoaderSpecProto",
    "LaunchDims": "xla.gpu.LaunchDimensionsProto",
    "Layout": "xla.LayoutProto",
    "Literal": "xla.LiteralProto",
    "Memset32": "xla.gpu.Memset32BitValueThunkProto",
    "Memzero": "xla.gpu.MemzeroThunkProto",
    "MosaicGpuKernelProto": "mosaic.gpu.MosaicGpuKernelProto",
    "NullableShapedSlice": "xla.NullableShapedSliceProto",
    "OpMetadata": "xla.OpMetadata",
    "OptionalOffsets": "xla.gpu.OptionalDynamicSliceOffsetsProto",
    "OptionalShape": "xla.gpu.OptionalShapeProto",
    "OptionalSlice": "xla.gpu.OptionalBufferAllocationSliceProto",
    "OptionalType": "xla.gpu.OptionalPrimitiveType",
    "OutputEntry": "xla.gpu.GpuExecutableProto.OutputInfoMapEntry",
    "OutputInfo": "xla.gpu.GpuExecutableProto.OutputInfoProto",
    "ProgramShape": "xla.ProgramShapeProto",
    "PtxSource": "stream_executor.CudaPtxProto",
    "Record": "xla.Record",
    "Relocation": "stream_executor.KernelArgPackingRelocationProto",
    "ScalarAttribute": "xla.ffi.ScalarProto",
    "Shape": "xla.ShapeProto",
    "ShapeIndex": "xla.ShapeIndexProto",
    "ShapedSlice": "xla.ShapedSliceProto",
    "Slice": "xla.buffer_assignment.BufferAllocationSliceProto",
    "SliceConfig": "xla.gpu.DynamicSliceConfig",
    "SliceLinear": "xla.gpu.DynamicSliceConfig.Linear",
    "SliceOffset": "xla.gpu.OptionalDynamicSliceOffsetsProto.DynamicSliceOffsetProto",
    "SliceOffsets": "xla.gpu.OptionalDynamicSliceOffsetsProto.DynamicSliceOffsetsProto",
    "SlicedParameter": "xla.gpu.DynamicSliceFusionThunkProto.ParameterProto",
    "SlicedResult": "xla.gpu.DynamicSliceFusionThunkProto.ResultProto",
    "SplitProtoManifest": "xla.SplitProtoManifest",
    "StackFrame": "xla.StackFrameIndexProto.StackFrame",
    "StackFrameIndex": "xla.StackFrameIndexProto",
    "ThreadDim": "stream_executor.ThreadDimProto",
    "Thunk": "xla.gpu.ThunkProto",
    "ThunkInfo": "xla.gpu.ThunkInfoProto",
    "ThunkSequence": "xla.gpu.SequentialThunkProto",
    "TmaDescriptor": "stream_executor.gpu.TmaDescriptorProto",
    "TmaEntry": "stream_executor.gpu.TmaMetadataProto.ArgIndexToTmaInfoEntry",
    "TmaMetadata": "stream_executor.gpu.TmaMetadataProto",
}
"""What XLA calls the messages of the schema."""

ALSO = {("ThunkSequence", "xla.gpu.ThunkSequenceProto")}
"""Two messages of XLA's that are laid out alike."""

RENAMED = {("DynamicSlice", "offset_modules"): "offset_as_function_of_indvar_modules_metadata"}

ONLY_BEFORE_0_11 = {
    # Replaced by the slice fusion, thunk 60.
    "DynamicSlice", "OptionalSlice", "OptionalShape", "OptionalType", "OptionalOffsets",
    "SliceOffsets", "SliceOffset", ("Thunk", "dynamic_slice_thunk"),
    # Mosaic's kernels were loaded by a function of their host object.
    ("MosaicGpuKernelProto", "init_func_name"),
}  # fmt: skip

ONLY_FROM_0_11 = {
    # Programmatic dependent launch of custom calls.
    ("CustomCall", "use_pdl"),
    # Mosaic's kernels came inside the host object.
    ("MosaicGpuKernelProto", "gpu_binary"), ("MosaicGpuKernelProto", "kernel_name"),
    ("MosaicGpuKernelProto", "smem_bytes"), ("MosaicGpuKernelProto", "cluster_size"),
}  # fmt: skip

ONLY_FROM_0_12 = {
    # Slice fusions in loops.
    "SliceLinear", ("SliceConfig", "table"), ("SliceConfig", "linear"),
    # Newer collectives and copy streams.
    ("Thunk", "collective_reduce_thunk"), ("AsyncStart", "memcpy_stream_id"),
}  # fmt: skip

# `FieldDescriptorProto.Type` -> wire type: varint, eight bytes, length and bytes, four bytes.
_WIRE = {3: 0, 4: 0, 5: 0, 8: 0, 13: 0, 14: 0, 1: 1, 6: 1, 9: 2, 11: 2, 12: 2, 2: 5, 7: 5}


def _missing(name: str, field: str | None = None) -> bool:
    """Return whether this JAX version is known not to have a message or field of the schema."""
    absent: set[object] = set(ONLY_BEFORE_0_11 if JAX >= (0, 11) else ONLY_FROM_0_11)
    if JAX < (0, 12):
        absent |= ONLY_FROM_0_12
    return ((name, field) if field else name) in absent


def test_every_message_of_the_schema_has_a_name_in_xla() -> None:
    assert set(NAMES) == set(serialized.fields())


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_field_is_numbered_and_laid_out_as_in_the_plugin(
    installed: dict[str, Any], name: str
) -> None:
    theirs = installed.get(f".{NAMES[name]}")
    assert (theirs is None) == _missing(name)
    if theirs is None:
        return
    by_number = {field.number: field for field in theirs.field}
    for field_name, number, kind, repeated in serialized.fields()[name]:
        field = by_number.get(number)
        assert (field is None) == _missing(name, field_name), field_name
        if field is None:
            continue
        assert field.name == RENAMED.get((name, field_name), field_name)
        assert (field.label == 3) == repeated, field_name
        if kind in NAMES:
            found = field.type_name.removeprefix(".")
            assert found == NAMES[kind] or (kind, found) in ALSO, field_name
        else:
            assert _WIRE[field.type] == _WIRE[serialized._SCALARS[kind]], field_name
        assert (field.type in (9, 12)) == (kind in ("string", "bytes")) or field.type == 11


@pytest.mark.parametrize(
    "name",
    [
        "Thunk", "CustomKernelThunk", "CustomCall", "Kernel", "Memzero", "Memset32", "Copy",
        "AsyncStart", "Slice", "ShapedSlice", "DynamicSliceFusion", "KernelLoaderSpec", "Constant",
    ],
)  # fmt: skip
def test_messages_that_make_steps_are_read_completely(installed: dict[str, Any], name: str) -> None:
    known = {number for _, number, _, _ in serialized.fields()[name]}
    theirs = {field.number: field.name for field in installed[f".{NAMES[name]}"].field}
    assert {number: theirs[number] for number in set(theirs) - known} == {}


def test_an_empty_message_is_told_from_a_missing_one() -> None:
    thunk = serialized.message_type("Thunk")
    assert [f.name for f, _ in thunk.FromString(b"\xd2\x03\x00").ListFields()] == [
        "async_done_thunk"
    ]
    assert not thunk.FromString(b"").HasField("async_done_thunk")
