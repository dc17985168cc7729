"""Compress and decompress what a bundle holds; the result of both is bounded before it is made.

A frame has neither magic number nor content size nor checksum: the bundle knows the size and the
digest of each content, and what format it is in. So its first byte, the descriptor, is 0, and a
frame that begins otherwise is refused before zstd sees it. With the magic number in front of it, it
is a frame for any zstd library.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pallasc.errors import CorruptError, SpecError

if TYPE_CHECKING:
    import zstandard

RAW, ZSTD = 0, 1
"""How a content is stored."""

DEFAULT_LEVEL = 19
LEVELS = range(1, 23)

_MAGIC = b"\x28\xb5\x2f\xfd"

# The densest block of zstd: 3 bytes of header and 1 that is repeated 128 Ki times.
_MOST_DENSE = 2**15
_LEAST_WINDOW_BYTES = 2**20
_SMALL_BYTES = 2**18
_MOST_WINDOW_BYTES = 2**27

_THREAD = threading.local()


def library_version() -> str:
    """Return the version of the zstd library, on which compressed bytes depend."""
    import zstandard

    return ".".join(map(str, zstandard.ZSTD_VERSION))


def check_level(level: int) -> int:
    """Return a level of compression, checked.

    Raises:
        SpecError: zstd has no such level.
    """
    if level not in LEVELS:
        raise SpecError(
            f"zstd has no compression level {level}.",
            hint=f"Levels are {LEVELS.start} to {LEVELS.stop - 1}.",
        )
    return level


def most_stored(size: int) -> int:
    """Return an upper bound on what zstd makes of `size` bytes; larger frames are refused."""
    return size + size // 128 + 1024


def store(content: bytes, level: int, dictionary: bytes = b"") -> tuple[int, bytes]:
    """Return how a content is stored, and its stored bytes.

    Without a dictionary, it is stored raw where zstd would not make it smaller.
    """
    stored = compress(content, level, dictionary)
    if dictionary or len(stored) < len(content):
        return ZSTD, stored
    return RAW, content


def compress(content: bytes, level: int, dictionary: bytes = b"") -> bytes:
    """Return the frame of a content.

    Args:
        content: what to compress.
        level: of zstd.
        dictionary: what the reader has at hand when it decompresses.
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
    """Return the content of a frame.

    Args:
        stored: the frame.
        size: bytes of the content.
        dictionary: as it was compressed with.

    Raises:
        CorruptError: it is not such a frame, or its content has another size.
    """
    import zstandard as zstd

    if not stored or stored[0] or not 0 < size <= len(stored) * _MOST_DENSE:
        raise CorruptError(f"{len(stored)} bytes are not a frame of {size} bytes")
    small = not dictionary and size <= _SMALL_BYTES
    try:
        decompressor = _small_decompressor() if small else _decompressor(size, dictionary)
        content = decompressor.decompress(
            # zstd ignores bytes after a frame unless told not to.
            _MAGIC + stored,
            max_output_size=size,
            allow_extra_data=False,
        )
    except (zstd.ZstdError, MemoryError) as error:
        raise CorruptError(f"{len(stored)} bytes cannot be decompressed: {error}") from error
    if len(content) != size:
        raise CorruptError(f"{len(stored)} bytes hold {len(content)} bytes instead of {size}")
    return content


def _small_decompressor() -> zstandard.ZstdDecompressor:
    """Return this thread's decompressor for small frames; making one takes longer than using it."""
    decompressor: zstandard.ZstdDecompressor | None = getattr(_THREAD, "decompressor", None)
    if decompressor is None:
        decompressor = _THREAD.decompressor = _decompressor(_SMALL_BYTES, b"")
    return decompressor


def _decompressor(size: int, dictionary: bytes) -> zstandard.ZstdDecompressor:
    import zstandard as zstd

    return zstd.ZstdDecompressor(
        dict_data=_dictionary(dictionary),
        max_window_size=_window_bytes(size + len(dictionary)),
    )


def _window_bytes(size: int) -> int:
    """Return the largest window that a content may ask for, which bounds zstd's own memory."""
    return min(max(1 << (size.bit_length() + 1), _LEAST_WINDOW_BYTES), _MOST_WINDOW_BYTES)


def _dictionary(content: bytes) -> zstandard.ZstdCompressionDict | None:
    import zstandard as zstd

    if not content:
        return None
    return zstd.ZstdCompressionDict(content, dict_type=zstd.DICT_TYPE_RAWCONTENT)
