"""Read a serialized XLA executable: from its bytes to one `GpuExecutableProto`.

The bytes are the length of an IFRT header as a varint, the header, and an
`ExecutableAndOptionsProto`, whose `serialized_executable` is a Riegeli file. The first record of
such a file is a manifest that describes how the other records form a protobuf, here the
`GpuExecutableProto`. Up to JAX 0.10 the outer protobuf is plain; from 0.11 on it is a Riegeli file
as well.

Riegeli/records (https://github.com/google/riegeli, doc/riegeli_records_file_format.md), as far as
XLA's serializer uses it::

    file   := block*                    blocks of 64 KiB, each starting with a 24-byte block header
    chunk  := header data padding       a chunk continues after block headers inside it
    header := header_hash:8 data_size:8 data_hash:8 type:1 records:7 decoded_size:8   (40 bytes)
    data   := compression:1 varint(sizes_size) sizes values          for type 'r', simple chunk
    sizes, values := raw bytes, or varint(raw size) compressed bytes  (see compression)

Integers are little-endian; `sizes` holds one varint for each record. The hashes (HighwayHash) are
not checked: the bytes come from the same process, and the protobufs are checked field by field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from pallasc.errors import CompileError

SIGNATURE = bytes.fromhex("83af70d10d884a3f")
"""Start of every Riegeli file: the hash of its first block header, which never changes."""

_BLOCK = 1 << 16
_BLOCK_HEADER = 24
_CHUNK_HEADER = 40
_SIMPLE, _WITHOUT_RECORDS = b"r", (b"s", b"m", b"p")
_RAW, _SNAPPY = b"\0", b"s"
"""Compressions; XLA uses no others."""


def parse_executable(data: bytes) -> Any:
    """Return the `GpuExecutableProto` inside the serialized executable `data`.

    Raises:
        CompileError: the bytes do not have the layout of a supported JAX version.
    """
    size, start = read_varint(data, 0)
    body = data[start + size :]
    try:
        if body.startswith(SIGNATURE):
            outer = _read_split(body, "ExecutableAndOptionsProto")
        else:
            outer = message_type("ExecutableAndOptionsProto").FromString(body)
        return _read_split(outer.serialized_executable, "GpuExecutableProto")
    except CompileError:
        raise
    except Exception as error:  # its type depends on the damage
        raise CompileError(f"the serialized executable is not readable: {error}") from error


def _read_split(data: bytes, name: str) -> Any:
    """Return the protobuf `name` whose parts are in the Riegeli file `data`."""
    first, *parts = records(data)
    manifest = message_type("SplitProtoManifest").FromString(first)
    if manifest.result_proto_type.rpartition(".")[2] != name:
        raise CompileError(
            f"the serialized executable holds a {manifest.result_proto_type}, not a {name}"
        )
    if len(manifest.records) != len(parts):
        raise CompileError(
            f"the split manifest names {len(manifest.records)} records, the file has {len(parts)}"
        )
    message = message_type(name)()
    for record, part in zip(manifest.records, parts, strict=True):
        if record.HasField("field_override_record"):
            _override(message, record.field_override_record.field_path, part)
        else:
            message.MergeFromString(part)
    return message


def _override(message: Any, path: Any, value: bytes) -> None:
    """Set the field that `path` leads to, adding the messages on the way."""
    *inner, last = path
    for part in inner:
        child = getattr(message, _name(message, part.field_number))
        if hasattr(child, "add"):
            # Parts arrive in order, so at most the next element is missing.
            if part.repeated_field_index == len(child):
                child.add()
            child = child[part.repeated_field_index]
        message = child
    name = _name(message, last.field_number)
    is_text = message.DESCRIPTOR.fields_by_name[name].type == 9
    setattr(message, name, value.decode() if is_text else value)


def _name(message: Any, number: int) -> str:
    return str(message.DESCRIPTOR.fields_by_number[number].name)


# ---- Riegeli files


def read_varint(data: bytes, start: int) -> tuple[int, int]:
    """Return the base-128 varint at `start` and the position after it."""
    value = 0
    for position in range(start, min(len(data), start + 10)):
        value |= (data[position] & 0x7F) << 7 * (position - start)
        if data[position] < 0x80:
            return value, position + 1
    raise CompileError("the serialized executable ends inside a varint")


def records(data: bytes) -> list[bytes]:
    """Return the records of the Riegeli file `data`, in order.

    Raises:
        CompileError: `data` is truncated, or uses an unknown chunk type or compression.
    """
    stream = b"".join(
        data[start + _BLOCK_HEADER : start + _BLOCK] for start in range(0, len(data), _BLOCK)
    )
    result: list[bytes] = []
    position = 0
    while position + _CHUNK_HEADER <= len(stream):
        header = stream[position : position + _CHUNK_HEADER]
        size, count = _number(header[8:16]), _number(header[25:32])
        kind, start = header[24:25], position + _CHUNK_HEADER
        position = start + size
        if position > len(stream):
            raise CompileError("the serialized executable ends inside a Riegeli chunk")
        if kind == _SIMPLE:
            result.extend(_simple_chunk(stream[start:position], count))
        elif kind not in _WITHOUT_RECORDS:
            raise CompileError(f"the serialized executable has a Riegeli chunk of type {kind!r}")
    return result


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _simple_chunk(body: bytes, count: int) -> Iterator[bytes]:
    compression = body[:1]
    if compression not in (_RAW, _SNAPPY):
        raise CompileError(f"the serialized executable uses Riegeli compression {compression!r}")
    sizes_size, position = read_varint(body, 1)
    sizes = _expand(compression, body[position : position + sizes_size])
    values = _expand(compression, body[position + sizes_size :])
    at = start = 0
    for _ in range(count):
        size, at = read_varint(sizes, at)
        yield values[start : start + size]
        start += size


def _expand(compression: bytes, data: bytes) -> bytes:
    if compression == _RAW:
        return data
    import cramjam

    _, position = read_varint(data, 0)
    return bytes(cramjam.snappy.decompress_raw(data[position:]))


# ---- the schema

SCHEMA = """
Record: field_override_record 3 FieldOverride
FieldOverride: field_path 1 *FieldPathPart
FieldPathPart: field_number 1 int64, repeated_field_index 2 int64
SplitProtoManifest: result_proto_type 1 string, records 2 *Record
ExecutableAndOptionsProto: serialized_executable 1 bytes

GpuExecutableProto: hlo_module_with_config 1 HloModuleWithConfig, asm_text 3 bytes, \
  binary 4 bytes, thunks 13 *Thunk, program_shape 9 ProgramShape, \
  buffer_allocations 10 Allocations, output_info_map 11 *OutputEntry, constants 12 *Constant
Allocations: values 1 *Allocation
Allocation: index 1 int64, size 2 int64, is_thread_local 3 bool, \
  is_entry_computation_parameter 5 bool, parameter_number 6 int64, color 8 int64, \
  parameter_shape_index 10 *int64, is_constant 12 bool
OutputEntry: shape_index 1 ShapeIndex, output_info 2 OutputInfo
ShapeIndex: indexes 1 *int64
OutputInfo: allocation_index 1 int64
Constant: symbol_name 1 string, content 2 DenseData, allocation_index 3 int64
DenseData: data 1 bytes

HloModuleWithConfig: hlo_module 1 HloModule
HloModule: computations 3 *HloComputation, stack_frame_index 17 StackFrameIndex
HloComputation: instructions 2 *HloInstruction, id 5 int64, root_id 6 int64
HloInstruction: name 1 string, opcode 2 string, metadata 7 OpMetadata, literal 8 Literal, \
  id 35 int64, called_computation_ids 38 *int64
OpMetadata: op_name 2 string, source_file 3 string, source_line 4 int64, stack_frame_id 15 int64
StackFrameIndex: file_names 1 *string, file_locations 3 *FileLocation, stack_frames 4 *StackFrame
FileLocation: file_name_id 1 int64, line 3 int64
StackFrame: file_location_id 1 int64, parent_frame_id 2 int64
Literal: shape 1 Shape, preds 2 *bool, u8s 3 bytes, s32s 4 *int32, s64s 5 *int64, u32s 6 *uint32, \
  u64s 7 *uint64, f32s 8 *fixed32, f64s 9 *fixed64, f16s 11 bytes, c64s 12 *fixed32, \
  bf16s 13 bytes, s8s 15 bytes, u16s 16 bytes, s16s 17 bytes, c128s 18 *fixed64, f8e5m2s 19 bytes, \
  f8e4m3fns 20 bytes, s4s 21 bytes, u4s 22 bytes, f8e4m3b11fnuzs 23 bytes, f8e5m2fnuzs 24 bytes, \
  f8e4m3fnuzs 25 bytes, s2s 26 bytes, u2s 27 bytes, f8e4m3s 28 bytes, f8e3m4s 29 bytes, \
  s1s 30 bytes, u1s 31 bytes, f4e2m1fns 32 bytes, f8e8m0fnus 33 bytes
Shape: element_type 2 int64, dimensions 3 *int64, tuple_shapes 4 *Shape, layout 5 Layout
Layout: minor_to_major 1 *int64
ProgramShape: result 2 Shape

ThunkSequence: thunks 1 *Thunk
While: condition_result_buffer_index 1 Slice, condition_thunk_sequence 2 ThunkSequence, \
  body_thunk_sequence 3 ThunkSequence, trip_count 4 int64
Thunk: thunk_info 1 ThunkInfo, sequential_thunk 2 ThunkSequence, copy_thunk 3 Copy, \
  device_to_host_copy_thunk 4 bytes, host_to_device_copy_thunk 5 bytes, conditional_thunk 6 bytes, \
  while_thunk 7 While, kernel_thunk 8 bytes, gemm_thunk 9 bytes, triangular_solve_thunk 11 bytes, \
  replica_id_thunk 12 bytes, device_to_device_copy_thunk 13 DeviceCopy, \
  partition_id_thunk 14 bytes, cudnn_thunk 15 bytes, host_execute_start_thunk 16 bytes, \
  host_execute_done_thunk 17 bytes, dynamic_slice_thunk 18 bytes, memzero_thunk 19 Memzero, \
  select_k_thunk 20 bytes, infeed_thunk 21 bytes, cublas_lt_matmul_thunk 22 bytes, \
  outfeed_thunk 23 bytes, norm_thunk 24 bytes, convolution_thunk 25 bytes, \
  convolution_reorder_thunk 26 bytes, fft_thunk 27 bytes, memset32bit_value_thunk 28 Memset32, \
  custom_call_thunk 30 CustomCall, host_send_thunk 32 bytes, host_send_done_thunk 33 bytes, \
  host_recv_thunk 34 bytes, host_recv_done_thunk 35 bytes, \
  custom_kernel_thunk 36 CustomKernelThunk, all_gather_thunk 38 bytes, all_reduce_thunk 39 bytes, \
  reduce_scatter_thunk 40 bytes, all_to_all_thunk 41 bytes, ragged_all_to_all_thunk 42 bytes, \
  collective_permute_thunk 43 bytes, send_thunk 44 bytes, recv_thunk 45 bytes, \
  collective_broadcast_thunk 46 bytes, collective_group_thunk 47 bytes, \
  async_start_thunk 57 AsyncStart, async_done_thunk 58 AsyncDone, \
  collective_kernel_thunk 59 bytes, dynamic_slice_fusion_thunk 60 DynamicSliceFusion, \
  rng_seed_thunk 61 bytes, collective_reduce_thunk 62 bytes
ThunkInfo: profile_annotation 1 string
AsyncStart: async_execution_id 1 uint64, thunks 3 ThunkSequence, computation_stream_id 4 uint64, \
  communication_stream_id 5 uint64, memcpy_stream_id 6 uint64
AsyncDone: async_execution_id 1 uint64
Slice: offset 1 int64, size 2 int64, buffer_allocation_index 3 int64, element_type 4 int64
ShapedSlice: slice 1 Slice, shape 2 Shape
NullableShapedSlice: shaped_slice 1 ShapedSlice
Copy: source_buffer 1 ShapedSlice, destination_buffer 2 ShapedSlice, mem_size 3 int64
DeviceCopy: copy_thunk 1 Copy
Memzero: dest_buffer 1 ShapedSlice
Memset32: dest_buffer 1 Slice, value 2 uint32
Dim3D: x 1 int64, y 2 int64, z 3 int64
ThreadDim: coordinates 1 Dim3D
BlockDim: coordinates 2 Dim3D
ClusterDim: coordinates 3 Dim3D
CustomCall: target_name 1 string, operands 2 *NullableShapedSlice, results 3 *NullableShapedSlice, \
  opaque 4 bytes, api_version 5 int64, attributes 6 AttributesMap, called_computation 7 string, \
  execution_state 8 ExecutionState, use_pdl 9 bool
ExecutionState: type_name 1 string, state 2 bytes
AttributesMap: attrs 1 *AttributeEntry
AttributeEntry: key 1 string, value 2 Attribute
Attribute: scalar 1 ScalarAttribute, str 3 bytes
ScalarAttribute: b 1 bool
CustomKernelThunk: args 1 *ShapedSlice, written 2 *bool, custom_kernel 3 CustomKernel, \
  use_pdl 4 bool, zeroed_output_buffer_indices 5 *int64, tma_metadata 6 bytes
CustomKernel: name 1 string, kernel_spec 2 KernelLoaderSpec, block_dims 3 BlockDim, \
  thread_dims 4 ThreadDim, cluster_dim 5 ClusterDim, shared_memory_bytes 6 int64
KernelLoaderSpec: ptx 1 PtxSource, cubin 2 CubinSource, arity 3 int64, kernel_name 4 string, \
  kernel_args_packing_spec 5 ArgsPacking, in_process_symbol 6 bytes
PtxSource: data 1 string
CubinSource: data 1 bytes
ArgsPacking: kernel_arguments 1 *ArgPacking
ArgPacking: relocations 1 *Relocation, data 2 bytes
Relocation: kind 1 int64, argument_index 2 int64

DynamicSliceFusion: parameters 1 *SlicedParameter, results 2 *SlicedResult, \
  parameter_buffers 3 *Slice, result_buffers 4 *Slice, slice_allocations 5 *Allocation, \
  embedded_thunks 6 ThunkSequence, verify_offsets 7 bool
SlicedParameter: parameter_number 1 int64, parameter_shape 2 Shape, slice_shape 3 Shape, \
  slice_config 4 SliceConfig, slice_offsets 5 *bytes
SlicedResult: parameter_number 1 int64, result_number 2 int64, result_shape 3 Shape, \
  update_shape 4 Shape, update_config 5 SliceConfig, update_offsets 6 *bytes
SliceConfig: loop_index 1 int64, byte_offset 2 int64, byte_stride 3 int64, table 4 bytes, \
  linear 5 SliceLinear
SliceLinear: byte_offset 1 int64, byte_stride 2 int64

MosaicGpuKernelProto: version 1 int64, object_file 2 bytes, is_nvshmem_used 3 bool, \
  kernel_hash 4 bytes, host_func_name 5 string, init_func_name 6 string, is_multimem_used 7 bool, \
  gpu_binary 8 bytes, kernel_name 9 string, smem_bytes 10 int64, cluster_size 11 int64
"""
"""The part of XLA's protobuf schemas that is used to read executables.

Field numbers are as in OpenXLA's files: `xla/service/gpu/gpu_executable.proto`,
`xla/backends/gpu/runtime/thunk.proto`, `custom_kernel.proto`, `copy_thunk.proto`,
`dynamic_slice_fusion_thunk.proto`, `xla/service/{hlo,buffer_assignment,shaped_slice}.proto`,
`xla/xla_data.proto`, `xla/stream_executor/{kernel_spec,launch_dim}.proto`,
`xla/util/split_proto/split_proto.proto`, and JAX's `jaxlib/mosaic/gpu/mosaic_gpu.proto`. If two XLA
versions use one number for two different fields, the message is declared once for each version.

One line per message: `Name: field number type, ...`; `*` marks a repeated field. A field that is
never read has type `bytes`, and floats are read as their bits. A test compares every line with the
descriptors in the installed CUDA plugin. The messages are proto2 here, so that the presence of an
empty inner message is preserved.
"""

_PACKAGE = "pallasc.xla"


def fields() -> dict[str, list[tuple[str, int, str, bool]]]:
    """Return the schema as message name -> [(field name, number, type, repeated)]."""
    lines = (line.partition(":") for line in SCHEMA.replace("\\\n", "").splitlines() if line)
    return {
        message: [
            (name, int(number), kind, star == "*")
            for name, number, star, kind in re.findall(r"(\w+) (\d+) (\*?)(\w+)", rest)
        ]
        for message, _, rest in lines
    }


@cache
def message_type(name: str) -> Any:
    """Return the protobuf class of the message `name` of this schema."""
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{_PACKAGE}.{name}"))


@cache
def _pool() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool

    file = descriptor_pb2.FileDescriptorProto(
        name="pallasc/xla.proto", package=_PACKAGE, syntax="proto2"
    )
    for message_name, rows in fields().items():
        message = file.message_type.add(name=message_name)
        for name, number, kind, repeated in rows:
            field = message.field.add(name=name, number=number, label=3 if repeated else 1)
            if kind[0].isupper():
                field.type, field.type_name = field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                field.type = field.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def refuse_unknown_fields(message: Any, *, deep: bool = True) -> None:
    """Check that the schema knows every field that is set: an unknown field might change a launch.

    Raises:
        CompileError: a field is unknown; the message gives its number.
    """
    from google.protobuf.unknown_fields import UnknownFieldSet

    for unknown in UnknownFieldSet(message):
        raise CompileError(
            f"the executable sets the unknown field {unknown.field_number} of "
            f"{message.DESCRIPTOR.name}",
            hint="Install a supported JAX version (`pallasc doctor` lists them).",
        )
    for _, inner in submessages(message) if deep else ():
        if inner.DESCRIPTOR.name not in _UNREAD:
            refuse_unknown_fields(inner)


def submessages(message: Any) -> Iterator[tuple[str, Any]]:
    """Yield the messages that are set in a message, with the names of their fields."""
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None:
            for inner in value if hasattr(value, "add") else [value]:
                yield descriptor.name, inner


_UNREAD = frozenset({"Shape", "AttributesMap", "Allocation", "Thunk"})
"""Messages whose other fields do not matter here, or that are checked separately."""
