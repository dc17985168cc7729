"""Large texts of a report: compressed, stored once each, and unpacked when displayed.

A block is an element of the page that a browser does not execute:

    block    = <script type="text/plain" id="NAME"> content </script>
    content  = base64 (RFC 4648, with padding) of raw deflate (RFC 1951) of UTF-8 text

The Compression Streams standard calls this format `deflate-raw`; `script/blocks.js` reads it.
Base64 has no `<`, so no text can close its element. The compressed bytes depend on the zlib that
Python was linked with; everything else in a report depends only on its inputs.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib

_NAME_DIGITS = 16


class Blocks:
    """The blocks of one report, by name."""

    def __init__(self) -> None:
        self._packed: dict[str, str] = {}

    def add(self, text: str, *, name: str = "") -> str:
        """Add a text and return the name of its block; equal texts without a name share one."""
        data = text.encode("utf-8", "replace")
        name = name or f"b-{hashlib.sha256(data).hexdigest()[:_NAME_DIGITS]}"
        if name not in self._packed:
            self._packed[name] = packed(data)
        return name

    def add_json(self, value: object) -> str:
        """Add a value as JSON, and return the name of its block."""
        return self.add(json.dumps(value, ensure_ascii=False, separators=(",", ":")))

    def items(self) -> list[tuple[str, str]]:
        """Return names and contents, in the order in which they were added."""
        return list(self._packed.items())


def packed(data: bytes) -> str:
    """Return the content of a block."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return base64.b64encode(deflate.compress(data) + deflate.flush()).decode("ascii")


def unpacked(content: str) -> str:
    """Return the text of a block."""
    return zlib.decompress(base64.b64decode(content), -zlib.MAX_WBITS).decode()
