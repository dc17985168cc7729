"""Read the Riegeli/records files in which XLA serialises executables.

Format (https://github.com/google/riegeli, doc/riegeli_records_file_format.md), as far as XLA's
serialiser uses it; everything else is refused by name::

    file   := block*                    blocks of 64 KiB, each starting with a 24-byte block header
    chunk  := header data padding       a chunk goes on after the block headers it meets
    header := header_hash:8 data_size:8 data_hash:8 type:1 records:7 decoded_size:8   (40 bytes)
    data   := compression:1 varint(sizes_size) sizes values          for type 'r', simple chunk
    sizes, values := raw bytes, or varint(raw size) compressed bytes  as compression says

Integers are little-endian; `sizes` holds one varint for each record. The hashes are HighwayHash;
they are not checked, because the bytes come from the same process and the protobufs inside are
checked field by field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pallasc.errors import CompileError

SIGNATURE = bytes.fromhex("83af70d10d884a3f")
"""How such a file starts: the hash of its first block header, which is always the same."""

_BLOCK = 1 << 16
_BLOCK_HEADER = 24
_CHUNK_HEADER = 40
_SIMPLE, _SIGNATURE, _METADATA, _PADDING = b"r", b"s", b"m", b"p"


def read_varint(data: bytes, start: int) -> tuple[int, int]:
    """Return the base-128 varint at `start` and the position after it."""
    value = shift = 0
    position = start
    while True:
        if position >= len(data) or shift > 63:
            raise CompileError("the serialised executable ends inside a varint")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def records(data: bytes) -> list[bytes]:
    """Return the records of the Riegeli file `data`, in order.

    Raises:
        CompileError: `data` is not such a file, or uses a chunk type or compression that is not
            known here.
    """
    stream = _without_block_headers(data)
    result: list[bytes] = []
    for kind, count, body in _chunks(stream):
        if kind == _SIMPLE:
            result.extend(_simple_chunk(body, count))
        elif kind not in (_SIGNATURE, _METADATA, _PADDING):
            raise CompileError(f"the serialised executable has a Riegeli chunk of type {kind!r}")
    return result


def _without_block_headers(data: bytes) -> bytes:
    if len(data) < _BLOCK_HEADER + _CHUNK_HEADER:
        raise CompileError(f"a Riegeli file of {len(data)} bytes is too short")
    return b"".join(
        data[start + _BLOCK_HEADER : start + _BLOCK] for start in range(0, len(data), _BLOCK)
    )


def _chunks(stream: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    position = 0
    while position + _CHUNK_HEADER <= len(stream):
        header = stream[position : position + _CHUNK_HEADER]
        size = int.from_bytes(header[8:16], "little")
        count = int.from_bytes(header[25:32], "little")
        position += _CHUNK_HEADER
        if position + size > len(stream):
            raise CompileError("the serialised executable ends inside a Riegeli chunk")
        if count > _CHUNK_HEADER + size:
            # Such a chunk is padded with zeros to one byte a record; XLA writes none.
            raise CompileError(f"a Riegeli chunk of {size} bytes counts {count} records")
        yield header[24:25], count, stream[position : position + size]
        position += size


def _simple_chunk(body: bytes, count: int) -> Iterator[bytes]:
    expand = _decompressor(body[:1])
    sizes_size, position = read_varint(body, 1)
    sizes = expand(body[position : position + sizes_size])
    values = expand(body[position + sizes_size :])
    at = start = 0
    for _ in range(count):
        size, at = read_varint(sizes, at)
        if start + size > len(values):
            raise CompileError("a Riegeli record is longer than its chunk")
        yield values[start : start + size]
        start += size


def _decompressor(kind: bytes) -> Callable[[bytes], bytes]:
    if kind == b"\0":
        return bytes
    if kind not in (b"s", b"z", b"b"):
        raise CompileError(f"the serialised executable uses Riegeli compression {kind!r}")
    import cramjam

    decoders: dict[bytes, Callable[[bytes], Any]] = {
        b"s": cramjam.snappy.decompress_raw,
        b"z": cramjam.zstd.decompress,
        b"b": cramjam.brotli.decompress,
    }
    return lambda data: _expand(decoders[kind], data)


def _expand(decode: Callable[[bytes], Any], data: bytes) -> bytes:
    import cramjam

    size, position = read_varint(data, 0)
    try:
        result = bytes(decode(data[position:]))
    except cramjam.DecompressionError as error:
        raise CompileError(f"a Riegeli buffer cannot be decompressed: {error}") from error
    if len(result) != size:
        raise CompileError(f"a Riegeli buffer says {size} bytes and holds {len(result)}")
    return result
