"""Flat plans taken apart and changed, by the grammar alone: a reader of its own for tests.

What it knows stands in `runtime/native/flat_plan.h`; nothing is taken from the writer.
"""

import hashlib
import struct

HEADER = struct.Struct("<8sIIQ32s")
TABLE = struct.Struct("<QII")
NAMES = (
    "strings", "numbers", "facts", "buffers", "arrays", "outputs", "steps", "launches",
    "parameters", "maps", "values", "kernels", "sizes", "cubins", "blobs", "data",
)  # fmt: skip
ROWS = {
    "numbers": "<q",
    "facts": "<6I32s",
    "buffers": "<QIIII",
    "arrays": "<8I",
    "outputs": "<8I",
    "steps": "<4I4Q",
    "launches": "<16I",
    "parameters": "<IIQ4I",
    "maps": "<IIQ5Q4Q5I5I3i3iII8B",
    "kernels": "<6I",
    "sizes": "<I",
    "cubins": "<4I",
    "blobs": "<32sQQII",
}


def place(data: bytes, table: str) -> tuple[int, int, int]:
    """Return where a table begins, how many entries it has, and of how many bytes."""
    offset, count, size = TABLE.unpack_from(data, HEADER.size + TABLE.size * NAMES.index(table))
    return offset, count, size


def rows(data: bytes, table: str) -> list[tuple[int | bytes, ...]]:
    """Return the entries of a table."""
    offset, count, size = place(data, table)
    row = struct.Struct(ROWS[table])
    assert row.size == size
    return list(row.iter_unpack(data[offset : offset + count * size]))


def raw(data: bytes, table: str) -> bytes:
    """Return a table of bytes."""
    offset, count, size = place(data, table)
    assert size == 1
    return data[offset : offset + count]


def text(data: bytes, at: int) -> str:
    """Return a string."""
    return raw(data, "strings")[at:].partition(b"\0")[0].decode()


def changed(data: bytes, table: str, entry: int, **fields: int) -> bytes:
    """Return a plan in which fields of an entry have other values, `f3` for the fourth, sealed."""
    offset, count, size = place(data, table)
    assert entry < count
    row, at = struct.Struct(ROWS[table]), offset + entry * size
    values: list[int | bytes] = list(row.unpack_from(data, at))
    for name, value in fields.items():
        values[int(name[1:])] = value
    return sealed(data[:at] + row.pack(*values) + data[at + size :])


def sealed(data: bytes) -> bytes:
    """Return a plan with the digest that its bytes have."""
    head = data[: HEADER.size - 32]
    return head + hashlib.sha256(data[HEADER.size :]).digest() + data[HEADER.size :]


def with_tables(data: bytes, **tables: bytes) -> bytes:
    """Return a plan in which tables have other bytes, sealed."""
    content, heads = bytearray(), bytearray()
    start = HEADER.size + TABLE.size * len(NAMES)
    for name in NAMES:
        offset, count, size = place(data, name)
        own = tables.get(name, data[offset : offset + count * size])
        content += bytes(-(start + len(content)) % 16)
        heads += TABLE.pack(start + len(content), len(own) // size, size)
        content += own
    magic, version, header_bytes, _, digest = HEADER.unpack_from(data)
    total = start + len(content)
    head = HEADER.pack(magic, version, header_bytes, total, digest)
    return sealed(head + bytes(heads + content))


def packed(table: str, *rows: tuple[int | bytes, ...]) -> bytes:
    """Return entries as the bytes of a table."""
    return b"".join(struct.pack(ROWS[table], *row) for row in rows)
