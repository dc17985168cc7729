"""Compress and decompress the content of a bundle, with bounds on the size of both results.

A frame has no magic number, content size, or checksum, because the bundle has the size, digest and
coding of each content. So the first byte, the descriptor, is 0; a frame with another first byte is
rejected before zstd reads it. With the magic number prepended, a frame is valid for any zstd
library.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pallasc.errors import CorruptError

if TYPE_CHECKING:
    import zstandard

RAW, ZSTD = 0, 1
"""Codings of stored content."""

DEFAULT_LEVEL = 19

_MAGIC = b"\x28\xb5\x2f\xfd"

# The densest block of zstd: a 3-byte header and 1 byte that is repeated 128 Ki times.
_MOST_DENSE = 2**15
_LEAST_WINDOW_BYTES = 2**20
_SMALL_BYTES = 2**18
_MOST_WINDOW_BYTES = 2**27

_THREAD = threading.local()


def library_version() -> str:
    """Return the version of the zstd library, which affects the compressed bytes."""
    import zstandard

    return ".".join(map(str, zstandard.ZSTD_VERSION))


def most_stored(size: int) -> int:
    """Return an upper bound on the compressed size of `size` bytes; larger frames are rejected."""
    return size + size // 128 + 1024


def store(content: bytes, level: int, dictionary: bytes = b"") -> tuple[int, bytes]:
    """Return the coding and the stored bytes of content.

    Without a dictionary, content that zstd would not make smaller is stored raw.
    """
    stored = compress(content, level, dictionary)
    if dictionary or len(stored) < len(content):
        return ZSTD, stored
    return RAW, content


def compress(content: bytes, level: int, dictionary: bytes = b"") -> bytes:
    """Compress content to a zstd frame.

    Args:
        content: the bytes to compress.
        level: compression level of zstd.
        dictionary: bytes that the reader has available when it decompresses.
    """
    import zstandard as zstd

    parameters = zstd.ZstdCompressionParameters.from_level(
        level,
        source_size=len(content) + len(dictionary),
        dict_size=len(dictionary),
        write_content_size=False,
        write_checksum=False,
        write_dict_id=False,
    )
    compressor = zstd.ZstdCompressor(
        dict_data=_dictionary(dictionary), compression_params=parameters
    )
    return compressor.compress(content).removeprefix(_MAGIC)


def decompress(stored: bytes, size: int, dictionary: bytes = b"") -> bytes:
    """Decompress a frame.

    Args:
        stored: the frame.
        size: size of the content in bytes.
        dictionary: the dictionary that it was compressed with.

    Raises:
        CorruptError: the bytes are not such a frame, or the content has another size.
    """
    import zstandard as zstd

    if not stored or stored[0] or not 0 < size <= len(stored) * _MOST_DENSE:
        raise CorruptError(f"{len(stored)} bytes are not a frame of {size} bytes")
    small = not dictionary and size <= _SMALL_BYTES
    try:
        decompressor = _small_decompressor() if small else _decompressor(size, dictionary)
        content = decompressor.decompress(
            # By default, zstd ignores bytes after a frame.
            _MAGIC + stored,
            max_output_size=size,
            allow_extra_data=False,
        )
    except (zstd.ZstdError, MemoryError) as error:
        raise CorruptError(f"{len(stored)} bytes cannot be decompressed: {error}") from error
    if len(content) != size:
        raise CorruptError(f"a frame decompresses to {len(content)} bytes instead of {size}")
    return content


def _small_decompressor() -> zstandard.ZstdDecompressor:
    """Return this thread's decompressor for small frames; creating one costs more than using it."""
    decompressor: zstandard.ZstdDecompressor | None = getattr(_THREAD, "decompressor", None)
    if decompressor is None:
        decompressor = _THREAD.decompressor = _decompressor(_SMALL_BYTES, b"")
    return decompressor


def _decompressor(size: int, dictionary: bytes) -> zstandard.ZstdDecompressor:
    import zstandard as zstd

    # The largest window allowed bounds zstd's memory.
    window_bytes = max(2 << (size + len(dictionary)).bit_length(), _LEAST_WINDOW_BYTES)
    return zstd.ZstdDecompressor(
        dict_data=_dictionary(dictionary), max_window_size=min(window_bytes, _MOST_WINDOW_BYTES)
    )


def _dictionary(content: bytes) -> zstandard.ZstdCompressionDict | None:
    import zstandard as zstd

    if not content:
        return None
    return zstd.ZstdCompressionDict(content, dict_type=zstd.DICT_TYPE_RAWCONTENT)
