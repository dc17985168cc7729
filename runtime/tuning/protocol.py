"""What the run and the process of a point say to each other: one JSON object a line, in turn.

    run:     {"op": "open", "device"}: begin to use a GPU
    process: {}
    run:     {"op": "launch", "bundle", "job", "name", "params", "target", "inputs", "outputs"}:
             load the variant, launch it once, write its outputs
    process: {"sizes": [bytes of each output]}
    run:     {"op": "time", "repeats", "cold"}: measure
    process: {"us": time of a launch}
    process: {"error", "code"}, in place of any answer: why it cannot; the driver's code, or 0

`inputs` and `outputs` are descriptors of memory that both have: an input each, and one for all
outputs, one behind the other. The process has no other way to be heard, and ends at the end of its
input.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

NO_ROOM = frozenset({2, 46})
"""The driver's codes where there is no memory for one process more, or it may be the only one."""


def encode(message: Mapping[str, object]) -> bytes:
    """Return a message as one line; the order of its keys is kept."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, object]:
    """Return the message on a line.

    Raises:
        ValueError: it is not a JSON object.
    """
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError(f"a message is a JSON object, not a {type(message).__name__}")
    return message
