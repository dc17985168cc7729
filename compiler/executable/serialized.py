"""Take apart a serialised XLA executable: from its bytes to one `GpuExecutableProto`.

The bytes are the length of an IFRT header as a varint, the header, and an
`ExecutableAndOptionsProto`, whose `serialized_executable` is a Riegeli file. The first record of
such a file is a manifest that says how the other records make up a protobuf, here the
`GpuExecutableProto`. Up to JAX 0.10 the outer protobuf is plain; from 0.11 on it is a Riegeli file
as well.
"""

from __future__ import annotations

from typing import Any

from pallasc.compiler.executable import riegeli
from pallasc.compiler.executable.xla_schema import message_type
from pallasc.errors import CompileError


def parse_executable(data: bytes) -> Any:
    """Return the `GpuExecutableProto` inside the serialised executable `data`.

    Raises:
        CompileError: the bytes are not laid out as those of the supported JAX versions.
    """
    from google.protobuf.message import DecodeError

    size, start = riegeli.read_varint(data, 0)
    body = data[start + size :]
    try:
        if body.startswith(riegeli.SIGNATURE):
            outer = _read_split(body, "ExecutableAndOptionsProto")
        else:
            outer = message_type("ExecutableAndOptionsProto").FromString(body)
        return _read_split(outer.serialized_executable, "GpuExecutableProto")
    except (DecodeError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise CompileError(f"the serialised executable is not readable: {error}") from error


def _read_split(data: bytes, name: str) -> Any:
    """Return the protobuf `name` that the Riegeli file `data` holds in parts."""
    if not data.startswith(riegeli.SIGNATURE):
        raise CompileError(f"the serialised executable holds no Riegeli file for its {name}")
    first, *parts = riegeli.records(data) or [b""]
    manifest = message_type("SplitProtoManifest").FromString(first)
    if manifest.result_proto_type.rpartition(".")[2] != name:
        raise CompileError(
            f"the serialised executable holds a {manifest.result_proto_type}, not a {name}"
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
    if not path:
        raise CompileError("the serialised executable overrides a field without saying which")
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
    field = message.DESCRIPTOR.fields_by_number.get(number)
    if field is None:
        raise CompileError(
            f"the serialised executable sets the unknown field {number} of "
            f"{message.DESCRIPTOR.name}"
        )
    return str(field.name)
