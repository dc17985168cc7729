"""The schema that executables are read with, against the descriptors in the installed plugin."""

import mmap
import re
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from typing import Any

import pytest

from pallasc.compiler.lowering import serialized
from pallasc.compiler.toolchain.toolchain import find_toolchain

JAX = tuple(int(part) for part in metadata.version("jax").split(".")[:2])


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
    """Yield the descriptors of XLA's files, which begin with a length and the file's name."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    for found in re.finditer(rb"\n[\x05-\x7f](?:xla|jaxlib)/[\w/]+\.proto", data):
        at = found.start()
        if found[0][1] == len(found[0]) - 2:
            with suppress(DecodeError):
                yield FileDescriptorProto.FromString(data[at : _descriptor_end(data, at)])


@pytest.fixture(scope="module")
def installed() -> dict[str, Any]:
    """Return the message types of the installed CUDA plugin by their full names."""
    found: dict[str, Any] = {}

    def add(prefix: str, message: Any) -> None:
        name = f"{prefix}.{message.name}" if prefix else message.name
        found[name] = message
        for nested in message.nested_type:
            add(name, nested)

    with (
        find_toolchain().plugin.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        for descriptor in _file_descriptors(data):
            for message in descriptor.message_type:
                add(descriptor.package, message)
    return found


READ = {
    "ExecutableAndOptionsProto": "xla.ExecutableAndOptionsProto",
    "SplitProtoManifest": "xla.SplitProtoManifest",
    "GpuExecutableProto": "xla.gpu.GpuExecutableProto",
    "MosaicGpuKernelProto": "mosaic.gpu.MosaicGpuKernelProto",
}
"""XLA's names of the messages that are read from bytes; others are in their fields."""


@pytest.fixture(scope="module")
def names(installed: dict[str, Any]) -> dict[str, str]:
    """Return XLA's name of each message of the schema."""
    found, new = dict(READ), list(READ)
    while new:
        name = new.pop()
        types = {field.number: field.type_name for field in installed[found[name]].field}
        for _, number, kind, _ in serialized.fields()[name]:
            if kind in serialized.fields() and kind not in found and number in types:
                found[kind] = types[number].removeprefix(".")
                new.append(kind)
    return found


ALSO = {"ThunkSequence"}
"""A schema message that stands for two messages of XLA, which are laid out alike."""

ONLY_BEFORE_0_11 = {
    # Replaced by the slice fusion, thunk 60.
    ("Thunk", "dynamic_slice_thunk"),
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


def test_every_message_of_the_schema_is_in_the_plugin(names: dict[str, str]) -> None:
    assert {name for name in serialized.fields() if not _missing(name)} == set(names)


@pytest.mark.parametrize("name", sorted(serialized.fields()))
def test_every_field_is_numbered_and_laid_out_as_in_the_plugin(
    installed: dict[str, Any], names: dict[str, str], name: str
) -> None:
    if _missing(name):
        return
    by_number = {field.number: field for field in installed[names[name]].field}
    for field_name, number, kind, repeated in serialized.fields()[name]:
        field = by_number.get(number)
        assert (field is None) == _missing(name, field_name), field_name
        if field is None:
            continue
        assert field.name == field_name
        assert (field.label == 3) == repeated, field_name
        if kind in names:
            found = field.type_name.removeprefix(".")
            assert found == names[kind] or kind in ALSO, field_name
        else:
            assert _WIRE[field.type] == _WIRE[field.Type.Value(f"TYPE_{kind.upper()}")], field_name
        assert (field.type in (9, 12)) == (kind in ("string", "bytes")) or field.type == 11


@pytest.mark.parametrize(
    "name",
    [
        "Thunk", "CustomKernelThunk", "CustomCall", "Memzero", "Memset32", "Copy",
        "AsyncStart", "Slice", "ShapedSlice", "DynamicSliceFusion", "KernelLoaderSpec", "Constant",
    ],
)  # fmt: skip
def test_messages_that_make_steps_are_read_completely(
    installed: dict[str, Any], names: dict[str, str], name: str
) -> None:
    known = {number for _, number, _, _ in serialized.fields()[name]}
    theirs = {field.number: field.name for field in installed[names[name]].field}
    assert {number: theirs[number] for number in set(theirs) - known} == {}


def test_an_empty_message_is_told_from_a_missing_one() -> None:
    thunk = serialized.message_type("Thunk")
    assert [f.name for f, _ in thunk.FromString(b"\xd2\x03\x00").ListFields()] == [
        "async_done_thunk"
    ]
    assert not thunk.FromString(b"").HasField("async_done_thunk")
