"""`ActionResult` of Bazel's remote execution API, as far as a cache looks at it.

From `build/bazel/remote/execution/v2/remote_execution.proto`. One line a message:
`Name: field number type, ...`; `*` marks a repeated field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from pallasc.cache.remote.failure import Failure, RemoteError
from pallasc.errors import CorruptError

SCHEMA = """
Digest: hash 1 string, size_bytes 2 int64
OutputFile: path 1 string, digest 2 Digest, is_executable 4 bool, contents 5 bytes
ActionResult: output_files 2 *OutputFile, exit_code 4 int32, stdout_raw 5 bytes, \
  stdout_digest 6 Digest, stderr_raw 7 bytes, stderr_digest 8 Digest
"""
_SCALARS = {"int64": 3, "int32": 5, "bool": 8, "string": 9, "bytes": 12}
"""Numbers of `google.protobuf.FieldDescriptorProto.Type`."""
_PACKAGE = "pallasc.bazel"


class Output(NamedTuple):
    """A blob that an action's result names: its path there, its SHA-256, its bytes."""

    path: str
    digest: str
    size: int


class Result(NamedTuple):
    """What lies under an action: its standard output, and the blobs that must be there too."""

    stdout: bytes
    outputs: Sequence[Output]


@cache
def _message(name: str) -> Any:
    """Return the protobuf class of a message of this schema.

    Raises:
        RemoteError: protobuf is missing.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        raise RemoteError(
            "a cache of Bazel needs the package protobuf, which is not installed",
            Failure.SETTINGS,
            hint="Install the extra: pip install 'pallasc[remote]'.",
        ) from None
    file = descriptor_pb2.FileDescriptorProto(
        name="pallasc/bazel.proto", package=_PACKAGE, syntax="proto3"
    )
    for line in SCHEMA.replace("\\\n", "").strip().splitlines():
        label, _, rest = line.partition(":")
        message = file.message_type.add(name=label)
        for text in rest.split(","):
            field_name, number, kind = text.split()
            repeated, kind = kind.startswith("*"), kind.removeprefix("*")
            field = message.field.add(
                name=field_name, number=int(number), label=3 if repeated else 1
            )
            if kind in _SCALARS:
                field.type = _SCALARS[kind]
            else:
                field.type, field.type_name = 11, f".{_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


def encode_result(result: Result) -> bytes:
    """Return the bytes of an action's result."""
    message = _message("ActionResult")(stdout_raw=result.stdout)
    for output in result.outputs:
        file = message.output_files.add(path=output.path)
        file.digest.hash, file.digest.size_bytes = output.digest, output.size
    return bytes(message.SerializeToString(deterministic=True))


def decode_result(data: bytes) -> Result:
    """Return an action's result.

    Raises:
        CorruptError: it is not one.
    """
    from google.protobuf.message import DecodeError

    message = _message("ActionResult")()
    try:
        message.ParseFromString(data)
    except (DecodeError, RecursionError) as error:
        raise CorruptError("what lies under /ac/ is not an ActionResult") from error
    outputs = [
        Output(file.path, file.digest.hash, file.digest.size_bytes) for file in message.output_files
    ]
    return Result(message.stdout_raw, outputs)


def paths_of(result: Result) -> Mapping[str, Output]:
    """Return the outputs by their path."""
    return {output.path: output for output in result.outputs}
