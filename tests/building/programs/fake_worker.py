"""A worker that imports next to nothing and executes the code that it is sent.

Becomes a worker by way of the warden, as the real one does. `{"op": "Prepare"}` makes it say that
it is ready, `{"op": "Warm"}` nothing; any other message is answered with what its `code` leaves in
`value`. The code sees the descriptor `answers`, the `channel`, and a dictionary `kept` that lives
as long as the worker.
"""

from __future__ import annotations

import json
import os
from typing import Any


class Channel:
    """Sends answers; importing pallasc's own messages would take longer than most tests."""

    def __init__(self, answers: int) -> None:
        self.answers = answers

    def send(self, answer: object) -> None:
        os.write(self.answers, json.dumps(answer).encode() + b"\n")


def main(requests: int, answers: int) -> int:
    channel = Channel(answers)
    kept: dict[str, Any] = {}
    with os.fdopen(requests, "rb") as source:
        for line in source:
            message = json.loads(line)
            if message["op"] == "Warm":
                continue
            scope = {"answers": answers, "channel": channel, "kept": kept}
            exec(message.get("code", ""), scope)
            if message["op"] == "Prepare":
                answer = {"ready": True}
            else:
                answer = {"ok": True, "value": scope.get("value"), "task": message["task"]}
            channel.send(answer)
    return 0
