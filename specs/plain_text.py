"""Untrusted text made safe for terminals and CI logs.

Names, messages, and output come from specs, stores, bundles, kernels, and exceptions. Terminals
execute escape sequences, characters that change the direction of text mislead readers, and CI
services execute lines that look like commands:

* GitHub: `::name …::` at the start of a line, `##[name]` anywhere in it
  (https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands)
* Azure Pipelines: `##vso[…]`; TeamCity: `##teamcity[…]`
"""

from __future__ import annotations

import re

# Control sequences (colors, cursor movement), titles and other strings, two-letter escapes.
_ESCAPE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)|\x1b[ -/]*[0-Z\\-~]", re.DOTALL
)
_COMMAND = re.compile(r"^([^\S\n]*)::", re.MULTILINE)
_MARKER = re.compile(r"##(?=\[|vso\[|teamcity\[)", re.IGNORECASE)
_BIDIRECTIONAL = (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_TAGS = range(0xE0000, 0xE0080)
"""Invisible copies of ASCII."""
UNDECODED = {0xDC00 + byte: f"\\x{byte:02x}" for byte in range(0x80, 0x100)}
"""Bytes in file names that are not UTF-8: Python's surrogates, and the text to show."""
_CHANGED: dict[int, str | None] = {
    **{code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"},
    **dict.fromkeys((*_BIDIRECTIONAL, *_TAGS)),
    **dict.fromkeys((0x2028, 0x2029), "\n"),
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),
    **UNDECODED,
}


def printable(text: str) -> str:
    r"""Remove everything that a terminal or a CI service would execute.

    Escape sequences, control characters, and direction marks are removed. Bytes of file names that
    are not UTF-8 become `\xe9`; other surrogates are replaced. Lines end in a line feed. Commands
    of CI services get a space: `: :error` and `## [`.
    """
    if not text.isprintable():
        text = _ESCAPE.sub("", text).replace("\r\n", "\n").replace("\r", "\n").translate(_CHANGED)
    if "::" in text:
        text = _COMMAND.sub(r"\1: :", text)
    return _MARKER.sub("## ", text) if "##" in text else text


def one_line(text: str) -> str:
    """Return printable text as one line."""
    shown = printable(text)
    return shown if "\n" not in shown else printable(shown.replace("\n", " "))
