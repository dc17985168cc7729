"""Text that can be written out: halves of characters cannot."""

from __future__ import annotations

HALF = "holds half of a character, which cannot be written."
HALF_HINT = "Write the character itself, or its number: \\U0001f600."


def joined(text: str) -> str | None:
    """Return text with the halves of characters joined, None where a half stands alone.

    JSON escapes a character beyond 16 bits as two (RFC 8259, section 7); Python keeps bytes
    of a file name that are not UTF-8 as halves.
    """
    if text.isascii():
        return text
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        return None
